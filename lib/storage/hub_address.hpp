#pragma once

#include <headrace/base/result.hpp>
#include <headrace/base/uri.hpp>

#include <string>
#include <string_view>

namespace headrace {

/// A place in a repository of the Hugging Face Hub.
struct hub_address {
  std::string repository;         ///< `org/name`.
  std::string revision = "main";  ///< A branch, a tag, a commit, `refs/pr/1`: decoded.
  std::string folder;             ///< Empty, or without a `/` at its end.
  std::string single;  ///< The name of the file in it that the location is; may be empty.
};

/// Reads `hf://org/repo[@revision][/folder][/file.safetensors]`. A `/` in a revision is written
/// `%2F`; `refs/pr/N` and `refs/convert/NAME` may be written as they are. Errors are
/// `invalid_request`, or `unsupported` for datasets and spaces, and say what was expected.
[[nodiscard]] result<hub_address> parse_hub_address(const uri& location);

/// Whether `text` is the full name of a commit: then nobody has to be asked for it.
[[nodiscard]] bool is_commit(std::string_view text) noexcept;

/// Whether `text` is `org/name`, or the `name` alone that old repositories have.
[[nodiscard]] bool is_hub_repository(std::string_view text) noexcept;

}  // namespace headrace
