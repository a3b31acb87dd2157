#include <headrace/http/tcp_connector.hpp>

#include "http/connect_first.hpp"

#include <headrace/io/blocking_pool.hpp>
#include <headrace/io/tls_stream.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iterator>
#include <utility>

namespace headrace {
namespace {

// RFC 8305, 5: long enough for a far-away server, too short for anybody to notice.
constexpr std::chrono::milliseconds patience{250};

}  // namespace

tcp_connector::tcp_connector(io_context& context, resolver& names, options limits)
    : context_(context), names_(names), limits_(limits) {}

task<result<std::unique_ptr<byte_stream>>> tcp_connector::connect(http_route route) {
  const http_origin& origin = route.origin;
  if (default_port(origin.scheme) == 0) {
    co_return failure{error(errc::unsupported, "'" + origin.scheme + "' is not spoken here")};
  }
  auto resolved = co_await names_.resolve(origin.host, origin.port);
  if (!resolved) co_return failure{std::move(resolved).error()};
  auto addresses = in_order(std::move(*resolved));
  const std::string peer = addresses.size() == 1 ? addresses.front().to_string() : std::string();
  const std::size_t count = addresses.size();
  auto outcome = co_await detail::connect_first(context_, std::move(addresses),
                                                limits_.connect_limit, patience);
  for (const endpoint& useless : outcome.useless) avoid(useless.to_string());
  if (outcome.stream != nullptr) {
    if (!origin.is_secure()) co_return std::move(outcome.stream);
    auto terms = co_await tls_for(route.settings().tls);
    if (!terms) co_return failure{std::move(terms).error()};
    auto secured = co_await secure(context_, std::move(outcome.stream), std::move(*terms),
                                   origin.host, limits_.connect_limit);
    co_return secured;
  }
  if (kind_of(outcome.failed) == errc::cancelled)
    co_return failure{error(errc::cancelled, "stopped while connecting")};
  std::string what = "cannot connect to " + origin.to_string();
  if (count > 1) what += " at any of its " + std::to_string(count) + " addresses";
  co_return failure{system_failure(outcome.failed, what).with({.peer = peer})};
}

task<result<std::shared_ptr<tls_context>>> tcp_connector::tls_for(tls_options wanted) {
  // One reads the files, the others of this loop wait for what it gets. An error is not kept: the
  // file may be there next time.
  while (tls_.contains(wanted) && tls_[wanted] == nullptr) {
    std::unique_lock lock(mutex_);
    const bool notified = co_await tls_made_.wait(lock);
    if (!notified) co_return failure{error(errc::cancelled, "stopped while connecting")};
  }
  if (const auto known = tls_.find(wanted); known != tls_.end()) co_return known->second;
  tls_[wanted] = nullptr;
  auto made = co_await make_tls(wanted);
  if (made) {
    tls_[wanted] = *made;
  } else {
    tls_.erase(wanted);
  }
  async_condition::wake_list woken;
  const std::lock_guard lock(mutex_);
  tls_made_.notify_all(woken);
  co_return made;
}

task<result<std::shared_ptr<tls_context>>> tcp_connector::make_tls(tls_options wanted) {
  if (context_.helpers() == nullptr) co_return tls_context::make(wanted);
  try {
    auto making = context_.helpers()->run([&wanted] { return tls_context::make(wanted); });
    auto made = co_await making;
    co_return made;
  } catch (const std::exception& failed) {
    co_return failure{error(errc::internal, std::string("cannot prepare TLS: ") + failed.what())};
  }
}

void tcp_connector::avoid(std::string_view peer) {
  const steady_time until = context_.now() + limits_.avoid_for;
  const auto known = std::find_if(avoided_.begin(), avoided_.end(),
                                  [peer](const avoided& one) { return one.peer == peer; });
  if (known != avoided_.end()) {
    known->until = until;
  } else {
    avoided_.push_back({std::string(peer), until});
  }
}

std::vector<endpoint> tcp_connector::in_order(std::vector<endpoint> addresses) {
  const steady_time now = context_.now();
  std::erase_if(avoided_, [now](const avoided& one) { return one.until <= now; });
  std::vector<endpoint> last;
  if (!avoided_.empty()) {
    const auto comes_last = [this](const endpoint& address) {
      const std::string peer = address.to_string();
      return std::any_of(avoided_.begin(), avoided_.end(),
                         [&peer](const avoided& one) { return one.peer == peer; });
    };
    std::copy_if(addresses.begin(), addresses.end(), std::back_inserter(last), comes_last);
    std::erase_if(addresses, comes_last);
  }
  // The resolver prefers a family; among its addresses all are alike, and each gets its turn.
  const auto alike_end =
      std::find_if(addresses.begin(), addresses.end(), [&addresses](const endpoint& address) {
        return address.family() != addresses.front().family();
      });
  const auto alike = static_cast<std::size_t>(alike_end - addresses.begin());
  if (alike > 1) {
    std::rotate(addresses.begin(), addresses.begin() + static_cast<std::ptrdiff_t>(turn_++ % alike),
                alike_end);
  }
  addresses.insert(addresses.end(), last.begin(), last.end());
  return addresses;
}

}  // namespace headrace
