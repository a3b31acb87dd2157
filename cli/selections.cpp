#include "selections.hpp"

#include "text.hpp"

#include <headrace/base/error.hpp>

#include <fnmatch.h>

#include <algorithm>

namespace headrace::cli {
namespace {

bool matches_one(const std::string& name, const std::vector<std::string>& globs) {
  return std::any_of(globs.begin(), globs.end(), [&name](const std::string& glob) {
    return fnmatch(glob.c_str(), name.c_str(), 0) == 0;
  });
}

}  // namespace

std::vector<selection> selections(const model& from, const std::vector<std::string>& include,
                                  const std::vector<std::string>& exclude) {
  if (include.empty() && exclude.empty()) return {};
  std::vector<selection> chosen;
  for (const tensor_info& candidate : from.tensors()) {
    // fnmatch reads C strings, and a name may hold a NUL: any other character stands for it.
    std::string name = candidate.name;
    std::replace(name.begin(), name.end(), '\0', '\1');
    if ((include.empty() || matches_one(name, include)) && !matches_one(name, exclude))
      chosen.push_back({candidate.name});
  }
  if (!chosen.empty()) return chosen;
  std::string message = "no tensor is left by --include and --exclude: ";
  if (from.tensors().empty()) {
    message += "the model has none";
  } else {
    message += "the model has " + grouped(from.tensors().size()) + ", the first is " +
               json_string(from.tensors().front().name);
  }
  throw error(errc::not_found, message, {.uri = from.uri()});
}

}  // namespace headrace::cli
