#pragma once

#include <headrace/base/error.hpp>
#include <headrace/stream/runtime.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

namespace headrace {
namespace detail {

class asio_host;

/// Ends the runtimes that a context hosts when the context is destroyed before them.
class asio_host_service final : public boost::asio::execution_context::service {
 public:
  using key_type = asio_host_service;
  static inline boost::asio::execution_context::id id;

  explicit asio_host_service(boost::asio::execution_context& owner)
      : boost::asio::execution_context::service(owner) {}

  void add(asio_host& host) noexcept;
  void remove(asio_host& host) noexcept;

 private:
  void shutdown() noexcept override;

  asio_host* first_ = nullptr;
};

/// Drives a hosted loop from an `io_context`. Threads: the one that runs that.
///
/// Watching counts as no work, as a timer of a library's own should not: a context whose
/// operations are all over stops. So for each wait that is under way, one piece of outstanding work
/// is taken off, and given back before the wait's handler counts as done.
class asio_host final : public loop_host, public std::enable_shared_from_this<asio_host> {
 public:
  explicit asio_host(boost::asio::io_context& context)
      : context_(context), descriptor_(context), timer_(context) {}

  void attach(hosted_loop& loop) override {
    // A descriptor of its own: Asio closes what it is given, and a forked child may still have it
    // when the loop's own is closed there.
    const int watched = ::fcntl(loop.descriptor(), F_DUPFD_CLOEXEC, 0);
    if (watched < 0)
      throw system_failure({errno, std::system_category()}, "cannot duplicate a descriptor");
    try {
      descriptor_.assign(watched);
    } catch (...) {
      ::close(watched);
      throw;
    }
    loop_ = &loop;
    // After the services that the members use: so it is shut down before them.
    service_ = &boost::asio::use_service<asio_host_service>(context_);
    service_->add(*this);
    // Not here: waits begin within handlers, where taking off work cannot stop the context.
    boost::asio::post(context_, [self = shared_from_this()] { self->turn(); });
  }

  void detach() noexcept override {
    if (service_ != nullptr) service_->remove(*this);
    service_ = nullptr;
    loop_ = nullptr;
    if (std::exchange(watching_, false)) give_back_work();
    if (std::exchange(timing_, std::nullopt)) give_back_work();
    ++timer_waits_;
    boost::system::error_code ignored;
    descriptor_.close(ignored);
    try {
      timer_.cancel();
    } catch (...) {  // NOLINT(bugprone-empty-catch): it then fires for nobody
    }
  }

  /// The context ends.
  void end() noexcept {
    if (loop_ != nullptr) loop_->end();
  }

 private:
  friend asio_host_service;

  void turn() {
    if (loop_ == nullptr || loop_->left_behind()) return;
    const auto next = loop_->poll();
    const auto now = std::chrono::steady_clock::now();
    if (next && *next <= now) {
      boost::asio::post(context_, [self = shared_from_this()] { self->turn(); });
      return;
    }
    watch();
    // A timer that fires too early costs a turn; moving it with every turn would cost more.
    if (next && (!timing_ || *next < *timing_)) set_timer(*next);
  }

  void watch() {
    if (watching_) return;
    descriptor_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                           [self = shared_from_this()](boost::system::error_code failed) {
                             if (!std::exchange(self->watching_, false)) return;
                             self->give_back_work();
                             if (!failed) self->turn();
                           });
    watching_ = true;
    take_off_work();
  }

  void set_timer(steady_time when) {
    if (timing_) give_back_work();
    timing_.reset();
    timer_.expires_at(when);
    timer_.async_wait(
        [self = shared_from_this(), number = ++timer_waits_](boost::system::error_code failed) {
          // One that was replaced has been accounted for.
          if (number != self->timer_waits_) return;
          self->timing_.reset();
          self->give_back_work();
          if (!failed) self->turn();
        });
    timing_ = when;
    take_off_work();
  }

  void take_off_work() noexcept { context_.get_executor().on_work_finished(); }
  void give_back_work() noexcept { context_.get_executor().on_work_started(); }

  boost::asio::io_context& context_;
  boost::asio::posix::stream_descriptor descriptor_;
  boost::asio::steady_timer timer_;
  hosted_loop* loop_ = nullptr;
  asio_host_service* service_ = nullptr;
  asio_host* next_ = nullptr;  ///< The service's.
  bool watching_ = false;
  std::optional<steady_time> timing_;  ///< When the timer that is under way fires.
  std::uint64_t timer_waits_ = 0;
};

inline void asio_host_service::add(asio_host& host) noexcept {
  host.next_ = std::exchange(first_, &host);
}

inline void asio_host_service::remove(asio_host& host) noexcept {
  for (asio_host** at = &first_; *at != nullptr; at = &(*at)->next_) {
    if (*at != &host) continue;
    *at = host.next_;
    return;
  }
}

inline void asio_host_service::shutdown() noexcept {
  // Ending one removes it.
  while (first_ != nullptr) first_->end();
}

}  // namespace detail

namespace asio {

/// How many threads call `run` of a context.
enum class context_threads : std::uint8_t { one, several };

/// A runtime for a service on `context`.
///
/// With `one`, its loop is hosted by the context: no second thread (but the few helpers for what
/// can only block), and tensors are received between the context's own handlers, in steps of a few
/// MiB. It belongs to the calling thread, which has to be the one that runs the context and
/// destroys the runtime; a turn on another thread throws `invalid_request` out of `run`. The
/// runtime may be destroyed before or after the context, but not inside a headrace coroutine that
/// runs on its loop; a context that goes first ends the streams, with `cancelled`. The runtime by
/// itself does not keep the context running: operations under way do.
///
/// With `several`, the loop has a thread of its own (`options.threads`; 0: one), and completions
/// are posted to the context's threads. It is as a `headrace::runtime` of one thread, but for the
/// name.
///
///     boost::asio::io_context context(1);
///     headrace::runtime runtime = headrace::asio::hosted(context);
///     headrace::asio::async_open(runtime, uri, {}, boost::asio::bind_executor(context, opened));
///     context.run();
[[nodiscard]] inline runtime hosted(boost::asio::io_context& context, runtime_options options = {},
                                    context_threads threads = context_threads::one) {
  if (threads == context_threads::one) {
    options.host = std::make_shared<detail::asio_host>(context);
  } else if (options.threads == 0) {
    options.threads = 1;
  }
  return runtime(std::move(options));
}

}  // namespace asio
}  // namespace headrace
