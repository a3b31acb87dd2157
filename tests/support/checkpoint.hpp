#pragma once

#include <headrace/base/trace.hpp>
#include <headrace/safetensors/dtype.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::test {

/// A tensor to be written to a file. Its bytes follow from its name and a seed alone: see
/// `content_of`.
struct wanted_tensor {
  std::string name;
  headrace::dtype dtype = headrace::dtype::u8;
  std::vector<std::uint64_t> shape;

  [[nodiscard]] std::uint64_t size() const {
    std::uint64_t elements = 1;
    for (const auto extent : shape) elements *= extent;
    return elements * bits(dtype) / 8;
  }
};

/// The `size` bytes of the tensor `name`. Another `version` has others.
[[nodiscard]] inline std::string content_of(std::string_view name, std::uint64_t size,
                                            std::uint64_t version = 0) {
  std::uint64_t state = 0xcbf29ce484222325U ^ (version * 0x9e3779b97f4a7c15U);
  for (const char c : name) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  std::string bytes(static_cast<std::size_t>(size), '\0');
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    state += 0x9e3779b97f4a7c15U;
    std::uint64_t mixed = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
    mixed ^= mixed >> 31;
    std::memcpy(bytes.data() + at, &mixed, std::min<std::size_t>(8, bytes.size() - at));
  }
  return bytes;
}

/// How a file is written.
struct file_form {
  std::vector<std::pair<std::string, std::string>> metadata = {};
  std::size_t padding = 0;    ///< Blanks at the end of the header: files whose header is large.
  std::uint64_t version = 0;  ///< Of the contents.
};

/// A safetensors file that holds `tensors`, in this order.
[[nodiscard]] inline std::string safetensors_file(const std::vector<wanted_tensor>& tensors,
                                                  const file_form& form = {}) {
  std::string header = "{";
  if (!form.metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : form.metadata)
      header += json_quote(key) + ":" + json_quote(value) + ",";
    header.back() = '}';
    header += ',';
  }
  std::uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    header += json_quote(tensor.name) + ":{\"dtype\":\"" + std::string(to_string(tensor.dtype)) +
              "\",\"shape\":[";
    for (std::size_t at = 0; at < tensor.shape.size(); ++at) {
      header += (at > 0 ? "," : "") + std::to_string(tensor.shape[at]);
    }
    header += "],\"data_offsets\":[" + std::to_string(offset) + "," +
              std::to_string(offset + tensor.size()) + "]},";
    offset += tensor.size();
  }
  if (header.back() == ',') header.pop_back();
  header += '}';
  header.append(form.padding, ' ');

  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof length);
  file += header;
  file.reserve(file.size() + offset);
  for (const auto& tensor : tensors) file += content_of(tensor.name, tensor.size(), form.version);
  return file;
}

/// An index that places tensors in files: pairs of tensor and file.
[[nodiscard]] inline std::string index_file(
    const std::vector<std::pair<std::string, std::string>>& places) {
  std::string json = "{\"metadata\":{},\"weight_map\":{";
  for (const auto& [tensor, file] : places)
    json += json_quote(tensor) + ":" + json_quote(file) + ",";
  if (json.back() == ',') json.pop_back();
  return json + "}}";
}

/// A model: what its files hold, by name.
struct checkpoint {
  std::map<std::string, std::vector<wanted_tensor>> files;

  [[nodiscard]] std::size_t tensors() const {
    std::size_t count = 0;
    for (const auto& [name, held] : files) count += held.size();
    return count;
  }

  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [name, held] : files) {
      for (const auto& tensor : held) sum += tensor.size();
    }
    return sum;
  }

  [[nodiscard]] const wanted_tensor* find(std::string_view tensor) const {
    for (const auto& [name, held] : files) {
      for (const auto& one : held) {
        if (one.name == tensor) return &one;
      }
    }
    return nullptr;
  }

  [[nodiscard]] std::string index() const {
    std::vector<std::pair<std::string, std::string>> places;
    for (const auto& [name, held] : files) {
      for (const auto& tensor : held) places.emplace_back(tensor.name, name);
    }
    return index_file(places);
  }
};

/// `count` tensors of `size` bytes in one file: t1000, t1001, …
[[nodiscard]] inline checkpoint equal_tensors(unsigned count, std::uint64_t size) {
  checkpoint made;
  for (unsigned number = 0; number < count; ++number) {
    made.files["model.safetensors"].push_back(
        {"t" + std::to_string(1000 + number), dtype::u8, {size}});
  }
  return made;
}

/// The shapes of a small model, in `shards` files: embeddings, square and narrow matrices, vectors,
/// scalars, and one tensor of nothing.
[[nodiscard]] inline checkpoint small_model(unsigned shards = 3, std::uint64_t width = 96,
                                            unsigned layers = 6) {
  checkpoint made;
  const auto shard = [shards](unsigned number) {
    return "model-0000" + std::to_string(number % shards + 1) + "-of-0000" +
           std::to_string(shards) + ".safetensors";
  };
  made.files[shard(0)].push_back({"embed.weight", dtype::bf16, {40 * width, width}});
  for (unsigned layer = 0; layer < layers; ++layer) {
    auto& file = made.files[shard(layer)];
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    file.push_back({prefix + "norm.weight", dtype::f32, {width}});
    file.push_back({prefix + "q_proj.weight", dtype::bf16, {width, width}});
    file.push_back({prefix + "k_proj.weight", dtype::f16, {width / 3, width}});
    file.push_back({prefix + "up_proj.weight", dtype::bf16, {4 * width, width}});
    file.push_back({prefix + "scale", dtype::f8_e4m3, {width, 3}});
    file.push_back({prefix + "step", dtype::i64, {}});
  }
  made.files[shard(shards - 1)].push_back({"empty", dtype::f32, {0, width}});
  made.files[shard(shards - 1)].push_back({"norm.weight", dtype::f32, {width + 1}});
  return made;
}

/// A directory of its own, removed in the end.
class temporary_directory {
 public:
  temporary_directory() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "headrace-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr)
      throw std::runtime_error("cannot make a temporary directory");
    path_ = pattern;
  }
  temporary_directory(const temporary_directory&) = delete;
  temporary_directory& operator=(const temporary_directory&) = delete;
  ~temporary_directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string path() const { return path_.string(); }
  [[nodiscard]] std::string path_of(std::string_view name) const { return (path_ / name).string(); }

  void write(std::string_view name, std::string_view bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream file(path_ / name, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) throw std::runtime_error("cannot write a file of a test");
  }

  /// All files of `model`, without an index.
  void write(const checkpoint& model, const file_form& form = {}) const {
    for (const auto& [name, held] : model.files) write(name, safetensors_file(held, form));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace headrace::test
