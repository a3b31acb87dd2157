#pragma once

#include <headrace/base/clock.hpp>
#include <headrace/base/export.hpp>

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// Collects Chrome trace events: open the file in Perfetto or `chrome://tracing`.
///
/// Times are microseconds from the trace's start. A track is one row of the picture: a connection,
/// the consumer. Threads: safe from any thread; costs a lock and a push per event, so only ranges
/// and tensors are traced, not receives.
///
///     trace events;
///     auto began = events.now();
///     … events.span(track, "range", began, R"("bytes":16777216)");
///     std::ofstream("trace.json") << events.to_json();
class HEADRACE_API trace {
 public:
  explicit trace(const clock& time = real_clock());

  [[nodiscard]] std::int64_t now() const noexcept;

  /// A new row with this name.
  [[nodiscard]] std::uint32_t track(std::string name);

  /// Something that began at `began` and ends now. `arguments` is the inside of a JSON object,
  /// already escaped.
  void span(std::uint32_t track, std::string_view name, std::int64_t began,
            std::string arguments = {});

  /// Something that happened now.
  void instant(std::uint32_t track, std::string_view name, std::string arguments = {});

  /// The value of a counter from now on.
  void counter(std::string_view name, std::int64_t value);

  /// The whole trace as one JSON object.
  [[nodiscard]] std::string to_json() const;

 private:
  struct event {
    char phase;
    std::uint32_t track;
    std::int64_t began;
    std::int64_t duration;
    std::string name;
    std::string arguments;
  };

  const clock& clock_;
  steady_time start_;
  mutable std::mutex mutex_;
  std::vector<std::string> tracks_;
  std::vector<event> events_;
};

/// `text` as a JSON string, quotes included; control characters escaped, valid UTF-8 kept, other
/// bytes replaced by U+FFFD.
[[nodiscard]] HEADRACE_API std::string json_quote(std::string_view text);

}  // namespace headrace
