#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/result.hpp>
#include <headrace/safetensors/tensor_info.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

/// The header of a safetensors file, read and checked.
struct header {
  /// Bytes before the tensors' data: the length field of 8 bytes and the JSON after it. A tensor's
  /// bytes are `[size + begin, size + end)` of the file.
  std::uint64_t size = 0;

  /// Sorted by `begin`, then `end`, then name (by bytes). Their data fills the rest of the file
  /// without a hole or an overlap.
  std::vector<tensor_info> tensors;

  /// `__metadata__`, sorted by key. Of a key that is there several times the last value counts.
  std::vector<std::pair<std::string, std::string>> metadata;
};

/// The largest JSON that the format allows, in bytes.
inline constexpr std::uint64_t header_limit = 100'000'000;

/// How many bytes of a file's start `parse_header` needs: 8 and what the length field says.
///
/// `first` is the start of the file, at least 8 bytes of it (all of a shorter file); `file_size` is
/// the size of the whole file, in bytes. Nothing is allocated but the message of an error: a length
/// beyond `header_limit` or beyond the end of the file is `invalid_safetensors`, so a file that
/// claims 2^63 bytes costs nothing. Fewer bytes than demanded: `invalid_request`. Threads: any.
///
///     auto size = header_size(first, total);
///     if (size && *size > first.size()) … read the rest
[[nodiscard]] HEADRACE_API result<std::uint64_t> header_size(std::span<const std::byte> first,
                                                             std::uint64_t file_size);

/// Reads and checks a header. `bytes` is the start of the file, at least `header_size` bytes of it
/// (what follows is not looked at); `file_size` is the size of the whole file.
///
/// Accepts what the reference implementation (the `safetensors` package 0.8.0) accepts, with one
/// exception: two tensors of one name are refused, where the reference silently takes the last.
/// Every fault is `invalid_safetensors`; the message names the tensor, what it says and what was
/// expected, and ends with the reference's name of the fault: `… (TensorInvalidInfo)`. Memory is
/// bounded by a small multiple of the header's own size. Fewer bytes than demanded:
/// `invalid_request`. Threads: any. Throws nothing but `std::bad_alloc`.
///
///     auto parsed = parse_header(bytes, total);
///     if (!parsed) return failure{parsed.error().with({.uri = uri})};
[[nodiscard]] HEADRACE_API result<header> parse_header(std::span<const std::byte> bytes,
                                                       std::uint64_t file_size);

}  // namespace headrace
