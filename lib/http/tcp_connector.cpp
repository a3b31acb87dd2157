#include <headrace/http/tcp_connector.hpp>

#include "http/connect_first.hpp"
#include "http/http_proxy.hpp"
#include "http/within.hpp"

#include <headrace/io/blocking_pool.hpp>
#include <headrace/io/tls_stream.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iterator>
#include <optional>
#include <utility>

namespace headrace {
namespace {

/// More than fail in a minute: beyond it the oldest are forgiven.
constexpr std::size_t most_avoided = 256;

/// A failure at the proxy, as one.
failure<error> failed_at(const detail::http_proxy& proxy, const error& reason) {
  return failure{error(reason.kind(), proxy.describe() + ": " + reason.reason(), reason.context())};
}

}  // namespace

tcp_connector::tcp_connector(io_context& context, name_service& names, options limits)
    : context_(context), names_(names), limits_(limits) {}

task<result<std::unique_ptr<byte_stream>>> tcp_connector::connect(http_route route) {
  const http_origin& origin = route.origin;
  if (default_port(origin.scheme) == 0) {
    co_return failure{error(errc::unsupported, "'" + origin.scheme + "' is not spoken here")};
  }
  auto found = detail::proxy_for(route);
  if (!found) co_return failure{std::move(found).error()};
  const std::optional<detail::http_proxy> proxy = std::move(*found);

  auto stream =
      co_await reach(proxy ? proxy->at : origin, proxy ? proxy->describe() : origin.to_string());
  if (!stream) co_return stream;
  if (proxy) {
    if (proxy->at.is_secure()) {
      // Our own certificate is for the store.
      tls_options for_proxy = route.settings().tls;
      for_proxy.certificate_file.clear();
      for_proxy.key_file.clear();
      stream = co_await make_secure(std::move(*stream), std::move(for_proxy), proxy->at.host);
      if (!stream) co_return failed_at(*proxy, stream.error());
    }
    if (!origin.is_secure()) co_return stream;
    auto tunnel = detail::within(context_, limits_.connect_limit,
                                 proxy->describe() + " did not connect to " + origin.to_string(),
                                 detail::open_tunnel(std::move(*stream), *proxy, origin));
    stream = co_await std::move(tunnel);
    if (!stream) co_return stream;
  }
  if (!origin.is_secure()) co_return stream;
  auto secured = co_await make_secure(std::move(*stream), route.settings().tls, origin.host);
  co_return secured;
}

/// A plain connection to `at`, which messages call `described`.
task<tcp_connector::connected> tcp_connector::reach(http_origin at, std::string described) {
  auto looking = detail::within(context_, limits_.connect_limit,
                                "the host of " + described + " was not resolved",
                                names_.resolve(at.host, at.port));
  auto resolved = co_await std::move(looking);
  if (!resolved) {
    const error& failed = resolved.error();
    if (failed.kind() == errc::timeout) co_return failure{failed};
    co_return failure{error(failed.kind(),
                            "cannot connect to " + described + ": " + failed.reason(),
                            failed.context())};
  }
  auto addresses = in_order(std::move(*resolved));
  const std::string peer = addresses.size() == 1 ? addresses.front().to_string() : std::string();
  const std::size_t count = addresses.size();
  auto outcome = co_await detail::connect_first(context_, std::move(addresses),
                                                limits_.connect_limit, limits_.attempt_delay);
  for (const endpoint& useless : outcome.useless) avoid(useless.to_string());
  if (outcome.stream != nullptr) co_return std::move(outcome.stream);
  if (kind_of(outcome.failed) == errc::cancelled)
    co_return failure{error(errc::cancelled, "stopped while connecting to " + described)};
  names_.forget(at.host);
  std::string what = "cannot connect to " + described;
  if (count > 1) what += " at any of its " + std::to_string(count) + " addresses";
  co_return failure{system_failure(outcome.failed, what).with({.peer = peer})};
}

task<tcp_connector::connected> tcp_connector::make_secure(std::unique_ptr<byte_stream> transport,
                                                          tls_options wanted, std::string host) {
  auto terms = co_await tls_for(std::move(wanted));
  if (!terms) co_return failure{std::move(terms).error()};
  const std::string peer = transport->peer();
  auto secured = co_await secure(context_, std::move(transport), std::move(*terms), std::move(host),
                                 limits_.connect_limit);
  if (!secured && secured.error().kind() == errc::timeout) avoid(peer);
  co_return secured;
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
  const auto known = std::find_if(avoided_.begin(), avoided_.end(),
                                  [peer](const avoided& one) { return one.peer == peer; });
  if (known != avoided_.end()) avoided_.erase(known);
  if (avoided_.size() == most_avoided) avoided_.erase(avoided_.begin());
  avoided_.push_back({std::string(peer), context_.now() + limits_.avoid_for});
}

/// All are used, those that failed a while ago last.
std::vector<endpoint> tcp_connector::in_order(std::vector<endpoint> addresses) {
  const steady_time now = context_.now();
  std::erase_if(avoided_, [now](const avoided& one) { return one.until <= now; });
  addresses = detail::in_turn(std::move(addresses), turn_++);
  if (avoided_.empty()) return addresses;
  const auto comes_last = [this](const endpoint& address) {
    const std::string peer = address.to_string();
    return std::any_of(avoided_.begin(), avoided_.end(),
                       [&peer](const avoided& one) { return one.peer == peer; });
  };
  std::vector<endpoint> last;
  std::copy_if(addresses.begin(), addresses.end(), std::back_inserter(last), comes_last);
  std::erase_if(addresses, comes_last);
  addresses.insert(addresses.end(), last.begin(), last.end());
  return addresses;
}

}  // namespace headrace
