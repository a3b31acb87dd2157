#include <headrace/safetensors/index.hpp>

#include "safetensors/json.hpp"
#include "safetensors/text.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

namespace headrace {
namespace {

using detail::quote;

failure<error> refuse(std::string message) {
  return failure{error(errc::invalid_safetensors, "the index: " + std::move(message))};
}

// Why `name` is not a plain relative path; empty where it is one.
std::string_view file_name_fault(std::string_view name) {
  if (name.empty()) return "is empty";
  for (std::size_t at = 0; at < name.size(); ++at) {
    const auto letter = static_cast<unsigned char>(name[at]);
    if (letter == '\\') return "holds a backslash";
    // U+0080 to U+009F are control characters too; in UTF-8 they are C2 80 to C2 9F.
    const bool upper =
        letter == 0xc2 && at + 1 < name.size() && static_cast<unsigned char>(name[at + 1]) < 0xa0;
    if (letter < 0x20 || letter == 0x7f || upper) return "holds a control character";
  }
  if (name.front() == '/') return "is an absolute path";
  while (true) {
    const std::size_t slash = name.find('/');
    const std::string_view component = name.substr(0, slash);
    if (component.empty()) return "has an empty component";
    if (component == "." || component == "..") return "has a component that is . or ..";
    if (slash == std::string_view::npos) return {};
    name.remove_prefix(slash + 1);
  }
}

// { "weight_map": { tensor: file, … }, anything: … }
class index_reader final : public detail::json_listener {
 public:
  std::map<std::string, std::uint32_t, std::less<>> files;  // numbered as they come
  std::vector<index::entry> tensors;

  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  [[nodiscard]] bool complete() const noexcept { return weight_map_seen_; }

  void restart() override { *this = index_reader(); }

  bool object_begin() override {
    if (depth_ == 1 && wanted_) in_weight_map_ = true;
    else if (!fits("an object", depth_ == 0)) return false;
    ++depth_;
    return true;
  }

  bool object_end() override {
    if (--depth_ == 1) in_weight_map_ = false;
    return true;
  }

  bool array_begin() override {
    if (!fits("an array", false)) return false;
    ++depth_;
    return true;
  }

  bool array_end() override {
    --depth_;
    return true;
  }

  bool key(std::string_view text) override {
    if (in_weight_map_) {
      tensor_ = text;
    } else if (depth_ == 1) {
      wanted_ = text == "weight_map";
      if (wanted_ && weight_map_seen_) return stop("\"weight_map\" is there twice");
      weight_map_seen_ = weight_map_seen_ || wanted_;
    }
    return true;
  }

  bool string(std::string_view text) override {
    if (!in_weight_map_) return fits(quote(text), false);
    if (const auto fault = file_name_fault(text); !fault.empty()) {
      return stop("\"weight_map\": the file of tensor " + quote(tensor_) + ", " + quote(text) +
                  ", " + std::string(fault) + "; it must be a plain relative path");
    }
    tensors.push_back({std::move(tensor_), number_of(text)});
    return true;
  }

  bool integer(std::uint64_t number) override { return fits(std::to_string(number), false); }
  bool other(std::string_view text) override { return fits(text, false); }

 private:
  // Whether a value that is neither the weight map nor in it may stand here.
  bool fits(std::string_view found, bool is_document) {
    if (in_weight_map_) {
      return stop("\"weight_map\": the file of tensor " + quote(tensor_) +
                  " must be a string, not " + shortened(found));
    }
    if (depth_ == 0 && !is_document)
      return stop("it must be a JSON object, not " + shortened(found));
    if (depth_ == 1 && wanted_) {
      return stop("\"weight_map\" must be an object of tensor names and file names, not " +
                  shortened(found));
    }
    return true;
  }

  static std::string shortened(std::string_view found) {
    return found.size() > 140 ? quote(found) : std::string(found);
  }

  std::uint32_t number_of(std::string_view file) {
    // Neighbours mostly live in one file.
    if (last_ != nullptr && last_->first == file) return last_->second;
    auto found = files.find(file);
    if (found == files.end())
      found = files.emplace(file, static_cast<std::uint32_t>(files.size())).first;
    last_ = &*found;
    return last_->second;
  }

  bool stop(std::string message) {
    message_ = std::move(message);
    return false;
  }

  std::size_t depth_ = 0;
  bool wanted_ = false;
  bool in_weight_map_ = false;
  bool weight_map_seen_ = false;
  std::string tensor_;
  const std::pair<const std::string, std::uint32_t>* last_ = nullptr;
  std::string message_;
};

}  // namespace

std::optional<std::uint32_t> index::find(std::string_view tensor) const noexcept {
  const auto found = std::ranges::lower_bound(
      tensors, tensor, {}, [](const entry& each) -> std::string_view { return each.tensor; });
  if (found == tensors.end() || found->tensor != tensor) return std::nullopt;
  return found->file;
}

result<index> parse_index(std::string_view json) {
  if (json.size() > index_limit) {
    return refuse("it has " + detail::count(json.size(), "byte") + ", more than the " +
                  std::to_string(index_limit) + " that are read");
  }
  const std::size_t invalid = detail::find_invalid_utf8(json);
  if (invalid != std::string_view::npos)
    return refuse("it is not UTF-8 at byte " + std::to_string(invalid));

  index_reader reader;
  if (const auto fault = detail::read_json(json, reader)) {
    if (fault->what.empty()) return refuse(reader.message());
    return refuse("it is not JSON at byte " + std::to_string(fault->position) + ": " + fault->what);
  }
  if (!reader.complete())
    return refuse("it has no \"weight_map\", the object that says which file holds which tensor");

  index parsed;
  std::vector<std::uint32_t> places(reader.files.size());
  parsed.files.reserve(reader.files.size());
  for (const auto& [name, number] : reader.files) {
    places[number] = static_cast<std::uint32_t>(parsed.files.size());
    parsed.files.push_back(name);
  }
  parsed.tensors = std::move(reader.tensors);
  for (auto& entry : parsed.tensors) entry.file = places[entry.file];

  const auto name = [](const index::entry& entry) -> const std::string& { return entry.tensor; };
  if (!std::ranges::is_sorted(parsed.tensors, {}, name))
    std::ranges::sort(parsed.tensors, {}, name);
  const auto twin = std::ranges::adjacent_find(parsed.tensors, {}, name);
  if (twin != parsed.tensors.end())
    return refuse("\"weight_map\": tensor " + quote(twin->tensor) + " is there twice");
  return parsed;
}

}  // namespace headrace
