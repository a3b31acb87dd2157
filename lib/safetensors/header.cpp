#include <headrace/safetensors/header.hpp>

#include "safetensors/json.hpp"
#include "safetensors/text.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <tuple>

namespace headrace {
namespace {

using detail::count;
using detail::quote;

constexpr std::uint64_t length_size = 8;

failure<error> refuse(std::string message, std::string_view fault) {
  message += " (";
  message += fault;
  message += ')';
  return failure{error(errc::invalid_safetensors, std::move(message))};
}

failure<error> too_few_bytes(std::uint64_t needed, std::uint64_t given) {
  return failure{error(errc::invalid_request, "reading a header takes the first " +
                                                  count(needed, "byte") + " of the file, but " +
                                                  std::to_string(given) + " were given")};
}

// What the reference calls HashMetadata: { "__metadata__": { text: text } | null, name: entry, … },
// where an entry is
// {"dtype", "shape", "data_offsets"} in any order, unknown members skipped, or the array [dtype,
// shape, data_offsets], and a dtype "F32" or {"F32": null}. The two odd forms come from serde,
// which the reference reads with.
class header_reader final : public detail::json_listener {
 public:
  std::vector<tensor_info> tensors;
  std::map<std::string, std::string, std::less<>> metadata;

  /// Why reading was stopped.
  [[nodiscard]] const std::string& message() const noexcept { return message_; }

  void restart() override { *this = header_reader(); }

  bool object_begin() override {
    switch (expected()) {
      case value::skipped:
        ++skipped_depth_;
        return true;
      case value::document:
        return open(place::document);
      case value::metadata:
        return open(place::metadata);
      case value::entry:
        begin_entry();
        return open(place::entry);
      case value::dtype:
        field_ = field::none;
        return open(place::dtype);
      default:
        return mismatch("an object");
    }
  }

  bool object_end() override {
    if (skipped_depth_ > 0) {
      --skipped_depth_;
      return true;
    }
    const place closed = close();
    if (closed == place::entry) return end_entry();
    if (closed == place::dtype && field_ == field::none)
      return stop(subject("dtype") + " is an empty object");
    return true;
  }

  bool array_begin() override {
    switch (expected()) {
      case value::skipped:
        ++skipped_depth_;
        return true;
      case value::entry:
        begin_entry();
        return open(place::entry_list);
      case value::shape:
        seen_ |= bit(field::shape);
        numbers_.clear();
        return open(place::shape);
      case value::offsets:
        seen_ |= bit(field::offsets);
        numbers_.clear();
        return open(place::offsets);
      default:
        return mismatch("an array");
    }
  }

  bool array_end() override {
    if (skipped_depth_ > 0) {
      --skipped_depth_;
      return true;
    }
    tensor_info& tensor = tensors.back();
    const place closed = close();
    if (closed == place::entry_list) return end_entry();
    if (closed == place::shape) {
      tensor.shape.assign(numbers_.begin(), numbers_.end());
      return true;
    }
    if (numbers_.size() != 2) {
      return stop(subject("data_offsets") + " must be an array of two integers, not of " +
                  std::to_string(numbers_.size()));
    }
    tensor.begin = numbers_[0];
    tensor.end = numbers_[1];
    return true;
  }

  bool key(std::string_view text) override {
    if (skipped_depth_ > 0) return true;
    switch (here()) {
      case place::document:
        in_metadata_ = text == "__metadata__";
        if (in_metadata_) {
          if (metadata_seen_) return stop("\"__metadata__\" is there twice");
          metadata_seen_ = true;
        } else {
          name_ = text;
        }
        return true;
      case place::metadata:
        key_ = text;
        return true;
      case place::entry:
        field_ = field_of(text);
        if (field_ != field::none && (seen_ & bit(field_)) != 0) {
          return stop(subject(text) + " is there twice");
        }
        return true;
      default: {  // place::dtype
        if (field_ != field::none)
          return stop(subject("dtype") + " is an object of more than one member");
        field_ = field::dtype;
        return take_dtype(text);
      }
    }
  }

  bool string(std::string_view text) override {
    switch (expected()) {
      case value::skipped:
        return true;
      case value::metadata_text:
        metadata.insert_or_assign(std::move(key_), std::string(text));
        return true;
      case value::dtype:
        return take_dtype(text);
      default:
        return mismatch(quote(text));
    }
  }

  bool integer(std::uint64_t number) override {
    switch (expected()) {
      case value::skipped:
        return true;
      case value::extent:
      case value::offset:
        numbers_.push_back(number);
        return true;
      default:
        return mismatch(std::to_string(number));
    }
  }

  bool other(std::string_view text) override {
    switch (expected()) {
      case value::skipped:
        return true;
      case value::metadata:
      case value::dtype_null:
        if (text == "null") return true;
        return mismatch(text);
      default:
        return mismatch(text);
    }
  }

 private:
  // The containers that are open, apart from skipped ones.
  enum class place : std::uint8_t { document, metadata, entry, entry_list, dtype, shape, offsets };
  // What the next value has to be.
  enum class value : std::uint8_t {
    document,
    metadata,
    metadata_text,
    entry,
    dtype,
    dtype_null,
    shape,
    extent,
    offsets,
    offset,
    nothing,
    skipped
  };
  enum class field : std::uint8_t { dtype, shape, offsets, none };

  static unsigned bit(field which) { return 1U << static_cast<unsigned>(which); }

  static field field_of(std::string_view key) {
    if (key == "dtype") return field::dtype;
    if (key == "shape") return field::shape;
    if (key == "data_offsets") return field::offsets;
    return field::none;
  }

  static value value_of(field which) {
    switch (which) {
      case field::dtype:
        return value::dtype;
      case field::shape:
        return value::shape;
      case field::offsets:
        return value::offsets;
      default:
        return value::skipped;
    }
  }

  [[nodiscard]] place here() const { return places_[depth_ - 1]; }

  bool open(place opened) {
    places_[depth_++] = opened;
    return true;
  }

  place close() { return places_[--depth_]; }

  [[nodiscard]] value expected() const {
    if (skipped_depth_ > 0) return value::skipped;
    if (depth_ == 0) return value::document;
    switch (here()) {
      case place::document:
        return in_metadata_ ? value::metadata : value::entry;
      case place::metadata:
        return value::metadata_text;
      case place::entry:
        return value_of(field_);
      case place::entry_list:
        // In an array the fields come in this order, so those that were seen say which is next.
        for (const auto next : {field::dtype, field::shape, field::offsets}) {
          if ((seen_ & bit(next)) == 0) return value_of(next);
        }
        return value::nothing;
      case place::dtype:
        return value::dtype_null;
      case place::shape:
        return value::extent;
      default:
        return numbers_.size() < 2 ? value::offset : value::nothing;
    }
  }

  void begin_entry() {
    tensors.emplace_back().name = std::move(name_);
    seen_ = 0;
  }

  bool end_entry() {
    for (const auto& [which, name] :
         {std::pair(field::dtype, "dtype"), std::pair(field::shape, "shape"),
          std::pair(field::offsets, "data_offsets")}) {
      if ((seen_ & bit(which)) == 0) return stop(subject(name) + " is missing");
    }
    return true;
  }

  bool take_dtype(std::string_view text) {
    const auto known = parse_dtype(text);
    if (!known)
      return stop(subject("dtype") + " is " + quote(text) + ", which is no dtype of the format");
    tensors.back().dtype = *known;
    seen_ |= bit(field::dtype);
    return true;
  }

  [[nodiscard]] std::string subject(std::string_view member) const {
    return "tensor " + quote(tensors.back().name) + ": " + quote(member);
  }

  bool stop(std::string message) {
    message_ = std::move(message);
    return false;
  }

  bool mismatch(std::string_view found) {
    if (expected() == value::nothing) return stop(demand() + ", not more");
    return stop(demand() + ", not " + (found.size() > 140 ? quote(found) : std::string(found)));
  }

  [[nodiscard]] std::string demand() const {
    switch (expected()) {
      case value::document:
        return "the header must be a JSON object";
      case value::metadata:
        return "\"__metadata__\" must be an object of strings";
      case value::metadata_text:
        return "\"__metadata__\": " + quote(key_) + " must be a string";
      case value::entry:
        return "tensor " + quote(name_) +
               " must be an object with \"dtype\", \"shape\" and \"data_offsets\"";
      case value::dtype:
        return subject("dtype") + " must be a string";
      case value::dtype_null:
        return subject("dtype") + " must be a string, or an object with null in it";
      case value::shape:
      case value::extent:
        return subject("shape") + " must be an array of integers from 0 to 2^64 - 1";
      case value::offsets:
      case value::offset:
        return subject("data_offsets") + " must be an array of two integers from 0 to 2^64 - 1";
      default:
        if (here() == place::offsets)
          return subject("data_offsets") + " must be an array of two integers";
        return "tensor " + quote(tensors.back().name) +
               " must have three values where it is an array";
    }
  }

  std::array<place, 4> places_{};
  std::size_t depth_ = 0;
  std::size_t skipped_depth_ = 0;
  bool in_metadata_ = false;
  bool metadata_seen_ = false;
  field field_ = field::none;
  unsigned seen_ = 0;
  std::string name_;
  std::string key_;
  std::vector<std::uint64_t> numbers_;
  std::string message_;
};

bool before(const tensor_info& left, const tensor_info& right) {
  return std::tie(left.begin, left.end, left.name) < std::tie(right.begin, right.end, right.name);
}

// Most files list their tensors in the data's order already. Where not, places are sorted before
// tensors are moved, once each.
void sort_by_offsets(std::vector<tensor_info>& tensors) {
  if (std::ranges::is_sorted(tensors, before)) return;
  struct place {
    std::uint64_t begin;
    tensor_info* tensor;
  };
  std::vector<place> order;
  order.reserve(tensors.size());
  for (auto& tensor : tensors) order.push_back({tensor.begin, &tensor});
  std::ranges::sort(order, [](const place& left, const place& right) {
    if (left.begin != right.begin) return left.begin < right.begin;
    return before(*left.tensor, *right.tensor);
  });
  std::vector<tensor_info> sorted;
  sorted.reserve(tensors.size());
  for (const auto& each : order) sorted.push_back(std::move(*each.tensor));
  tensors = std::move(sorted);
}

// A tensor whose name another one has too. Names are compared only where their hashes are equal.
const tensor_info* find_duplicate(const std::vector<tensor_info>& tensors) {
  struct hashed {
    std::size_t hash;
    const tensor_info* tensor;
  };
  std::vector<hashed> order;
  order.reserve(tensors.size());
  for (const auto& tensor : tensors)
    order.push_back({std::hash<std::string>{}(tensor.name), &tensor});
  std::ranges::sort(order, [](const hashed& left, const hashed& right) {
    if (left.hash != right.hash) return left.hash < right.hash;
    return left.tensor->name < right.tensor->name;
  });
  const auto twin = std::ranges::adjacent_find(order, [](const hashed& left, const hashed& right) {
    return left.hash == right.hash && left.tensor->name == right.tensor->name;
  });
  return twin == order.end() ? nullptr : twin->tensor;
}

std::string shape_text(const tensor_info& tensor) {
  constexpr std::size_t shown = 8;
  std::string text = "[";
  for (std::size_t at = 0; at < tensor.shape.size() && at < shown; ++at) {
    if (at > 0) text += ", ";
    text += std::to_string(tensor.shape[at]);
  }
  if (tensor.shape.size() > shown) text += ", … " + count(tensor.shape.size(), "extent");
  text += "] of ";
  text += to_string(tensor.dtype);
  return text;
}

std::optional<std::uint64_t> product(std::uint64_t left, std::uint64_t right) {
  std::uint64_t both = 0;
  if (__builtin_mul_overflow(left, right, &both)) return std::nullopt;
  return both;
}

std::optional<std::uint64_t> elements(const tensor_info& tensor) {
  std::optional<std::uint64_t> total = 1;
  for (const auto extent : tensor.shape) {
    total = product(*total, extent);
    if (!total) return std::nullopt;
  }
  return total;
}

// Checks one tensor that has to begin at `begin`.
result<void> check(const tensor_info& tensor, std::uint64_t begin) {
  const auto subject = [&] { return "tensor " + quote(tensor.name) + ": "; };
  const auto offsets = [&] {
    return "data_offsets [" + std::to_string(tensor.begin) + ", " + std::to_string(tensor.end) +
           "]";
  };

  if (tensor.begin != begin) {
    return refuse(
        subject() + offsets() + " must begin at " + std::to_string(begin) +
            (begin == 0 ? ", the start of the data" : ", where the tensor before it ends"),
        "InvalidOffset");
  }
  if (tensor.end < tensor.begin) {
    return refuse(subject() + offsets() + " must not end before they begin", "InvalidOffset");
  }

  const auto total = elements(tensor);
  const auto total_bits = total ? product(*total, bits(tensor.dtype)) : std::nullopt;
  if (!total_bits) {
    return refuse(
        subject() + "shape " + shape_text(tensor) + " takes more bits than 64 bits can count",
        "ValidationOverflow");
  }
  if (*total_bits % 8 != 0) {
    return refuse(subject() + "shape " + shape_text(tensor) + " takes " +
                      count(*total_bits, "bit") + ", which must be a multiple of 8",
                  "MisalignedSlice");
  }
  if (tensor.size() != *total_bits / 8) {
    return refuse(subject() + "shape " + shape_text(tensor) + " takes " +
                      count(*total_bits / 8, "byte") + ", but " + offsets() + " span " +
                      std::to_string(tensor.size()),
                  "TensorInvalidInfo");
  }
  return {};
}

}  // namespace

result<std::uint64_t> header_size(std::span<const std::byte> first, std::uint64_t file_size) {
  if (file_size < length_size) {
    return refuse("the file has " + count(file_size, "byte") +
                      ": a safetensors file starts with the length of its header, in 8 bytes",
                  "HeaderTooSmall");
  }
  if (first.size() < length_size) return too_few_bytes(length_size, first.size());

  std::uint64_t length = 0;
  for (std::size_t at = 0; at < length_size; ++at) {
    length |= std::to_integer<std::uint64_t>(first[at]) << (8 * at);
  }
  if (length > header_limit) {
    return refuse("the first 8 bytes of the file give its header " + count(length, "byte") +
                      ", more than the " + std::to_string(header_limit) +
                      " allowed: is this a safetensors file?",
                  "HeaderTooLarge");
  }
  if (length > file_size - length_size) {
    return refuse(
        "the header should take " + count(length, "byte") + ", but only " +
            std::to_string(file_size - length_size) +
            " follow its length field: the file is cut short, or it is no safetensors file",
        "InvalidHeaderLength");
  }
  return length_size + length;
}

result<header> parse_header(std::span<const std::byte> bytes, std::uint64_t file_size) {
  const auto size = header_size(bytes, file_size);
  if (!size) return failure{size.error()};
  if (bytes.size() < *size) return too_few_bytes(*size, bytes.size());

  const std::string_view json(reinterpret_cast<const char*>(bytes.data()) + length_size,
                              static_cast<std::size_t>(*size - length_size));
  const std::size_t invalid = detail::find_invalid_utf8(json);
  if (invalid != std::string_view::npos) {
    return refuse(
        "the header is not UTF-8 at byte " + std::to_string(length_size + invalid) + " of the file",
        "InvalidHeader");
  }

  header_reader reader;
  if (const auto fault = detail::read_json(json, reader)) {
    const std::string where =
        " at byte " + std::to_string(length_size + fault->position) + " of the file";
    return refuse(fault->what.empty() ? reader.message()
                                      : "the header is not JSON" + where + ": " + fault->what,
                  "InvalidHeaderDeserialization");
  }

  header parsed{*size, std::move(reader.tensors), {reader.metadata.begin(), reader.metadata.end()}};
  if (const auto* twin = find_duplicate(parsed.tensors)) {
    return refuse("tensor " + quote(twin->name) + " is there twice", "DuplicateName");
  }
  sort_by_offsets(parsed.tensors);

  std::uint64_t end = 0;
  for (const auto& tensor : parsed.tensors) {
    if (auto checked = check(tensor, end); !checked) return failure{std::move(checked).error()};
    end = tensor.end;
  }
  const std::uint64_t data = file_size - *size;
  if (end != data) {
    return refuse("the tensors take " + count(end, "byte") + ", but " + std::to_string(data) +
                      " follow the header: the file " +
                      (end > data ? "is cut short" : "has bytes that belong to no tensor"),
                  "MetadataIncompleteBuffer");
  }
  return parsed;
}

}  // namespace headrace
