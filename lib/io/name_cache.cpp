#include "io/name_cache.hpp"

#include <algorithm>
#include <utility>

namespace headrace::detail {

const std::vector<endpoint>* name_cache::find(std::string_view name, steady_time now) {
  const auto found = names_.find(name);
  if (found == names_.end()) return nullptr;
  if (found->second.until > now) return &found->second.addresses;
  names_.erase(found);
  return nullptr;
}

void name_cache::keep(std::string name, std::vector<endpoint> addresses,
                      std::chrono::seconds lifetime, steady_time now) {
  if (names_.size() >= most_names && !names_.contains(name)) {
    names_.erase(std::min_element(names_.begin(), names_.end(), [](const auto& a, const auto& b) {
      return a.second.until < b.second.until;
    }));
  }
  names_.insert_or_assign(
      std::move(name), entry{std::move(addresses), now + std::clamp(lifetime, shortest, longest)});
}

void name_cache::forget(std::string_view name) {
  const auto found = names_.find(name);
  if (found != names_.end()) names_.erase(found);
}

}  // namespace headrace::detail
