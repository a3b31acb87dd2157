#include <headrace/storage/token_bucket.hpp>

#include <algorithm>
#include <cstddef>

namespace headrace {
namespace {

// Redirects can lead to any number of hosts; those that nobody uses any more are forgotten beyond
// this.
constexpr std::size_t remembered_hosts = 1024;

}  // namespace

token_bucket::grant token_bucket::take(unsigned cost, steady_time now) {
  const std::scoped_lock lock(mutex_);
  grant answer;
  answer.successes = successes_;
  if (tokens_ >= cost) {
    tokens_ -= cost;
    answer.granted = true;
  } else if (now >= next_probe_) {
    next_probe_ = now + probe_interval;
    answer.granted = true;
  } else {
    answer.until_probe = next_probe_ - now;
  }
  return answer;
}

void token_bucket::success() {
  const std::scoped_lock lock(mutex_);
  tokens_ = std::min(tokens_ + 1, capacity);
  ++successes_;
}

unsigned token_bucket::tokens() const {
  const std::scoped_lock lock(mutex_);
  return tokens_;
}

std::shared_ptr<token_bucket> token_buckets::of(std::string_view host) {
  const std::scoped_lock lock(mutex_);
  if (const auto known = buckets_.find(host); known != buckets_.end()) return known->second;
  if (buckets_.size() >= remembered_hosts) {
    std::erase_if(buckets_, [](const auto& entry) { return entry.second.use_count() == 1; });
  }
  return buckets_.emplace(std::string(host), std::make_shared<token_bucket>()).first->second;
}

}  // namespace headrace
