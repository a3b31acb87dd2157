#pragma once

#include <headrace/base/result.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// A file of a repository.
struct hub_file {
  std::string path;  ///< From the repository's root.
  std::uint64_t size = 0;
};

/// What the Hub's answers may cost: a page of a listing holds a thousand files; what it tells about
/// a revision names all of them.
inline constexpr std::size_t max_hub_answer = std::size_t{8} << 20;
inline constexpr std::size_t max_hub_page = 10'000;

/// The commit that a revision stands for, of what the Hub tells about it. `protocol_error` where it
/// tells none.
[[nodiscard]] result<std::string> parse_hub_commit(std::string_view body);

/// The files of one page of a listing; folders are left out. `protocol_error` for what is no
/// listing or out of bounds.
[[nodiscard]] result<std::vector<hub_file>> parse_hub_tree(std::string_view body);

/// The target of `rel="next"` in a `Link` field (RFC 8288); nothing where there is none.
[[nodiscard]] std::optional<std::string> next_link(std::string_view field);

}  // namespace headrace
