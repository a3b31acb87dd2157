#pragma once

#include <support/checkpoint.hpp>
#include <support/scripted_server.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace headrace::test {

/// A store of one model that breaks in every way that a range can, as a seed says, and remembers
/// what has to be asked for next.
class faulty_store {
 public:
  faulty_store(const checkpoint& model, std::uint64_t seed, unsigned faulty_percent = 50)
      : seed_(seed), faulty_percent_(faulty_percent) {
    files_["model.safetensors.index.json"] = model.index();
    for (const auto& [name, tensors] : model.files) files_[name] = safetensors_file(tensors);
  }

  steps answer_to(const seen_request& request) {
    const auto slash = request.path().rfind('/');
    const auto found = files_.find(request.path().substr(slash + 1));
    if (found == files_.end()) return {action::send{answer(404)}};
    const std::string& bytes = found->second;
    const std::string etag = "\"" + found->first + "\"";
    const std::lock_guard lock(mutex_);
    const auto range = request.range();
    if (!range) {
      wrong_.push_back("a request without a range: " + request.target);
      return {action::send{answer(400)}};
    }
    auto& pinned = pinned_[found->first];
    const auto match = request.field("If-Match");
    if (match && *match != etag) wrong_.push_back("If-Match: " + *match);
    if (range->begin > 0 && !match)
      wrong_.push_back("no If-Match for " + request.target + " from " +
                       std::to_string(range->begin));
    if (range->begin >= bytes.size() && !bytes.empty()) wrong_.push_back("a range beyond the end");
    resumed_.erase({found->first, range->begin, range->end()});

    const std::string whole = answer_with(bytes, request, etag);
    const std::size_t body = whole.size() - (whole.find("\r\n\r\n") + 4);
    const auto upto = [&whole](std::size_t count) {
      return whole.substr(0, whole.find("\r\n\r\n") + 4 + count);
    };
    // Never three times without progress.
    const auto again = times_[{found->first, range->begin}]++;
    std::mt19937_64 chance(seed_ ^
                           (std::hash<std::string>()(found->first) + range->begin * 31 + again));
    const auto below = [&chance](std::uint64_t bound) { return bound == 0 ? 0 : chance() % bound; };
    if (again >= 2 || below(100) >= faulty_percent_) {
      pinned = true;
      return {action::send{whole}};
    }
    ++faults_;
    switch (below(11)) {
      case 0:
        return {action::reset{}};
      case 1:
        return {action::close{}};
      case 2:
        return {action::send{answer(503, {}, "busy")}};
      case 3:
        return {action::send{answer(500, {}, std::string(100'000, '<'))}};
      case 4:
        return {action::send{answer(429, {{"Retry-After", "0"}})}};
      case 5: {  // cut, orderly: what was sent has arrived
        const auto count = below(body);
        pinned = true;
        if (range->begin > 0 || count > 0)
          resumed_.insert(
              {found->first, range->begin + count, std::min(range->end(), bytes.size())});
        return {action::send{upto(count)}, action::close{}};
      }
      case 6:  // cut by a reset, which may overtake what was sent
        pinned = true;
        return {action::send{upto(below(body))}, action::reset{}};
      case 7: {  // shorter than asked
        pinned = true;
        seen_request shorter = request;
        const auto count = 1 + below(body);
        for (auto& [name, value] : shorter.fields) {
          if (name == "Range" || name == "range") {
            value = "bytes=" + std::to_string(range->begin) + "-" +
                    std::to_string(range->begin + count - 1);
          }
        }
        return {action::send{answer_with(bytes, shorter, etag)}};
      }
      case 8:  // the whole instead of a part
        pinned = true;
        return {action::send{answer(200, {{"ETag", etag}}, bytes)}};
      case 9:  // half a head
        return {action::send{whole.substr(0, below(whole.find("\r\n\r\n")))}, action::close{}};
      default:  // in small packets
        pinned = true;
        return {action::drip{whole, std::max<std::size_t>(1, whole.size() / 7),
                             std::chrono::milliseconds(0)}};
    }
  }

  /// What was asked that should not have been, or not asked that should.
  [[nodiscard]] std::vector<std::string> complaints() {
    const std::lock_guard lock(mutex_);
    auto all = wrong_;
    for (const auto& missing : resumed_) {
      all.push_back(missing.file + " was cut at " + std::to_string(missing.begin) +
                    " and not resumed there, up to " + std::to_string(missing.end));
    }
    return all;
  }
  [[nodiscard]] int faults() {
    const std::lock_guard lock(mutex_);
    return faults_;
  }

 private:
  struct place {
    std::string file;
    std::uint64_t begin;
    std::uint64_t end;
    auto operator<=>(const place&) const = default;
  };

  const std::uint64_t seed_;
  const unsigned faulty_percent_;
  std::map<std::string, std::string> files_;
  std::mutex mutex_;
  std::map<std::string, bool> pinned_;
  std::map<std::pair<std::string, std::uint64_t>, unsigned> times_;
  std::set<place> resumed_;
  std::vector<std::string> wrong_;
  int faults_ = 0;
};

}  // namespace headrace::test
