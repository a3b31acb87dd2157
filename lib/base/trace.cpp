#include <headrace/base/trace.hpp>

#include <array>
#include <cstdio>

namespace headrace {
namespace {

// The length of the valid UTF-8 sequence at the start of `text`, 0 where there is none (RFC 3629).
std::size_t utf8_sequence(std::string_view text) {
  const auto byte = [text](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char first = byte(0);
  std::size_t size = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xbf;
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) {
    size = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    size = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    size = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  if (text.size() < size || byte(1) < low || byte(1) > high) return 0;
  for (std::size_t at = 2; at < size; ++at) {
    if (byte(at) < 0x80 || byte(at) > 0xbf) return 0;
  }
  return size;
}

}  // namespace

std::string json_quote(std::string_view text) {
  std::string quoted = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const auto letter = static_cast<unsigned char>(text[at]);
    if (letter == '"' || letter == '\\') {
      quoted += '\\';
      quoted += text[at++];
    } else if (letter < 0x20 || letter == 0x7f) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", letter);
      quoted += escape.data();
      ++at;
    } else if (const auto size = utf8_sequence(text.substr(at)); size > 0) {
      quoted += text.substr(at, size);
      at += size;
    } else {
      quoted += "\\ufffd";
      ++at;
    }
  }
  quoted += '"';
  return quoted;
}

trace::trace(const clock& time) : clock_(time), start_(time.now()) {}

std::int64_t trace::now() const noexcept {
  return std::chrono::duration_cast<std::chrono::microseconds>(clock_.now() - start_).count();
}

std::uint32_t trace::track(std::string name) {
  const std::lock_guard lock(mutex_);
  tracks_.push_back(std::move(name));
  return static_cast<std::uint32_t>(tracks_.size());
}

void trace::span(std::uint32_t track, std::string_view name, std::int64_t began,
                 std::string arguments) {
  const auto ended = now();
  const std::lock_guard lock(mutex_);
  events_.push_back({'X', track, began, ended - began, std::string(name), std::move(arguments)});
}

void trace::instant(std::uint32_t track, std::string_view name, std::string arguments) {
  const auto at = now();
  const std::lock_guard lock(mutex_);
  events_.push_back({'i', track, at, 0, std::string(name), std::move(arguments)});
}

void trace::counter(std::string_view name, std::int64_t value) {
  const auto at = now();
  const std::lock_guard lock(mutex_);
  events_.push_back({'C', 0, at, 0, std::string(name), "\"value\":" + std::to_string(value)});
}

std::string trace::to_json() const {
  const std::lock_guard lock(mutex_);
  std::string json = R"({"displayTimeUnit":"ms","traceEvents":[)";
  json += R"({"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"headrace"}})";
  for (std::size_t at = 0; at < tracks_.size(); ++at) {
    json += R"(,{"ph":"M","pid":1,"tid":)" + std::to_string(at + 1) +
            R"(,"name":"thread_name","args":{"name":)" + json_quote(tracks_[at]) + "}}";
  }
  for (const auto& entry : events_) {
    json += ",\n{\"ph\":\"";
    json += entry.phase;
    json += R"(","pid":1,"tid":)" + std::to_string(entry.track) + R"(,"ts":)" +
            std::to_string(entry.began);
    if (entry.phase == 'X') json += R"(,"dur":)" + std::to_string(entry.duration);
    if (entry.phase == 'i') json += R"(,"s":"t")";
    json += R"(,"name":)" + json_quote(entry.name);
    if (!entry.arguments.empty()) json += R"(,"args":{)" + entry.arguments + "}";
    json += '}';
  }
  json += "]}\n";
  return json;
}

}  // namespace headrace
