#include "storage/http_object_store.hpp"

#include <headrace/coro/with.hpp>
#include <headrace/io/blocking_pool.hpp>
#include <headrace/io/file.hpp>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

namespace headrace {
namespace {

/// Which version of a file it is: rewriting it in place changes the time, replacing it the inode.
struct file_version {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  timespec modified{};

  static file_version of(const struct stat& status) noexcept {
    return {status.st_dev, status.st_ino, status.st_size, status.st_mtim};
  }
  friend bool operator==(const file_version& left, const file_version& right) noexcept {
    return left.device == right.device && left.inode == right.inode && left.size == right.size &&
           left.modified.tv_sec == right.modified.tv_sec &&
           left.modified.tv_nsec == right.modified.tv_nsec;
  }
};

class file_source final : public range_source {
 public:
  explicit file_source(std::string path) : path_(std::move(path)) {}

  task<result<std::size_t>> open(storage_loop& loop, const transfer& terms,
                                 std::span<std::byte> into) override {
    auto opened = co_await file::open(loop.context, path_);
    if (!opened) co_return failure{opened.error()};
    auto status = opened->status();
    if (!status) co_return failure{system_failure(status.error(), "cannot examine " + path_)};
    file_ = std::move(*opened);
    version_ = file_version::of(*status);
    const std::size_t wanted = std::min<std::size_t>(into.size(), size());
    if (wanted == 0) co_return std::size_t{0};
    buffer_sink sink(into.first(wanted));
    auto done = co_await read(loop, terms, {0, wanted}, sink);
    if (!done) co_return failure{done.error()};
    co_return wanted;
  }

  task<result<void>> read(storage_loop& loop, const transfer& terms, byte_range range,
                          range_sink& sink) override {
    std::uint64_t position = range.begin;
    while (position < range.end()) {
      const buffer_sequence buffers = sink.prepare(range.end() - position);
      terms.statistics->count_request(loop.context.now());
      auto count = co_await file_.read(loop.context, position, buffers);
      const error_context where{.uri = path_, .range = range};
      if (!count) {
        if (kind_of(count.error()) == errc::cancelled)
          co_return failure{error(errc::cancelled, "stopped", where)};
        co_return failure{system_failure(count.error(), "cannot read").with(where)};
      }
      // The size is part of the version: a file that ends early is another one.
      if (*count == 0) co_return failure{changed(where)};
      // Before they are committed: a tensor that they complete is handed over at once.
      const auto status = file_.status();
      if (!status || !(file_version::of(*status) == version_)) co_return failure{changed(where)};
      sink.commit(*count);
      position += *count;
      terms.statistics->bytes.fetch_add(*count, std::memory_order_relaxed);
    }
    co_return result<void>();
  }

  [[nodiscard]] std::uint64_t size() const noexcept override {
    return static_cast<std::uint64_t>(version_.size);
  }
  [[nodiscard]] const std::string& uri() const noexcept override { return path_; }
  [[nodiscard]] bool local() const noexcept override { return true; }

 private:
  static error changed(error_context where) {
    return error(errc::object_changed, "the file changed while it was read: load it again",
                 std::move(where));
  }

  const std::string path_;
  file file_;
  file_version version_;
};

/// A directory, or a file, of this machine.
class file_store final : public object_store {
 public:
  explicit file_store(std::string path) : location_(std::move(path)), directory_(location_) {
    while (directory_.size() > 1 && directory_.back() == '/') directory_.pop_back();
    if (directory_.ends_with(".safetensors")) {
      const auto slash = directory_.rfind('/');
      single_ = slash == std::string::npos ? directory_ : directory_.substr(slash + 1);
      directory_ = slash == std::string::npos ? "." : directory_.substr(0, slash);
      if (directory_.empty()) directory_ = "/";
    }
  }

  [[nodiscard]] bool lists() const noexcept override { return true; }
  [[nodiscard]] const std::string& single() const noexcept override { return single_; }
  [[nodiscard]] const std::string& location() const noexcept override { return location_; }

  [[nodiscard]] std::shared_ptr<range_source> source(std::string_view name) override {
    if (name == single_) return std::make_shared<file_source>(location_);
    return std::make_shared<file_source>(directory_ + (directory_.ends_with('/') ? "" : "/") +
                                         std::string(name));
  }

  task<result<std::vector<object_entry>>> list(storage_loop& loop, const transfer&) override {
    auto reading = loop.context.helpers()->run([directory = directory_] {
      return read_directory<std::filesystem::directory_iterator>(directory);
    });
    auto entries = co_await reading;
    co_return entries;
  }

  task<result<std::vector<object_entry>>> list_all(storage_loop& loop, const transfer&) override {
    auto reading = loop.context.helpers()->run([directory = directory_] {
      return read_directory<std::filesystem::recursive_directory_iterator>(directory);
    });
    auto entries = co_await reading;
    co_return entries;
  }

 private:
  template <class Iterator>
  static result<std::vector<object_entry>> read_directory(const std::string& directory) {
    std::vector<object_entry> found;
    std::error_code failed;
    for (Iterator it(directory, failed), end; !failed && it != end; it.increment(failed)) {
      std::error_code gone;
      // Follows links: model caches are made of them.
      if (!it->is_regular_file(gone)) continue;
      const auto size = it->file_size(gone);
      if (!gone) found.push_back({it->path().lexically_relative(directory).string(), size});
    }
    if (failed) return failure{system_failure(failed, "cannot list " + directory)};
    std::ranges::sort(found, {}, &object_entry::name);
    return found;
  }

  const std::string location_;
  std::string directory_;
  std::string single_;
};

}  // namespace

result<std::shared_ptr<object_store>> make_file_store(const uri& location, const storage_options&) {
  return std::make_shared<file_store>(location.path);
}

}  // namespace headrace
