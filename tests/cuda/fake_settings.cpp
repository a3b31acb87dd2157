#include "fake_settings.hpp"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <optional>

namespace fake_cuda {
namespace {

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (text.empty() || read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return value;
}

std::optional<std::size_t> size(std::string_view text) {
  for (const std::string_view ending : {"iB", "B"}) {
    if (text.ends_with(ending)) text.remove_suffix(ending.size());
  }
  unsigned shift = 0;
  if (text.ends_with('K')) shift = 10;
  if (text.ends_with('M')) shift = 20;
  if (text.ends_with('G')) shift = 30;
  if (shift != 0) text.remove_suffix(1);
  const auto value = number<std::size_t>(text);
  if (!value) return std::nullopt;
  return *value << shift;
}

std::optional<bool> truth(std::string_view text) {
  if (text == "1") return true;
  if (text == "0") return false;
  return std::nullopt;
}

/// `cuMemAllocAsync:2=700`, `cuMemAllocAsync:2+=700`, `cuMemAllocAsync=2`.
std::optional<planned_failure> failure(std::string_view text) {
  const auto equals = text.rfind('=');
  if (equals == std::string_view::npos) return std::nullopt;
  const auto code = number<int>(text.substr(equals + 1));
  std::string_view call = text.substr(0, equals);
  planned_failure found;
  found.from_then_on = call.ends_with('+');
  if (found.from_then_on) call.remove_suffix(1);
  const auto colon = call.find(':');
  if (colon != std::string_view::npos) {
    const auto nth = number<std::uint64_t>(call.substr(colon + 1));
    if (!nth || *nth == 0) return std::nullopt;
    found.nth = *nth;
    call = call.substr(0, colon);
  }
  if (!code || *code == 0 || call.empty()) return std::nullopt;
  found.function = call;
  found.code = *code;
  return found;
}

std::optional<std::vector<planned_failure>> failures(std::string_view text) {
  std::vector<planned_failure> found;
  while (!text.empty()) {
    const auto comma = text.find(',');
    auto one = failure(text.substr(0, comma));
    if (!one) return std::nullopt;
    found.push_back(std::move(*one));
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
  }
  return found;
}

template <class Value>
bool take(Value& into, std::optional<Value> value) {
  if (value) into = std::move(*value);
  return value.has_value();
}

}  // namespace

bool settings::set(std::string_view name, std::string_view value) {
  if (name == "devices") return take(devices, number<int>(value));
  if (name == "driver") return take(driver, number<int>(value));
  if (name == "memory") return take(memory, size(value));
  if (name == "pinned") return take(pinned, size(value));
  if (name == "pools") return take(pools, truth(value));
  if (name == "copy_gbps") return take(copy_gbps, number<double>(value));
  if (name == "move") return take(move, truth(value));
  if (name == "seed") return take(seed, number<std::uint64_t>(value));
  if (name == "delay_us") return take(delay_us, number<unsigned>(value));
  if (name == "init_ms") return take(init_ms, number<unsigned>(value));
  if (name == "check_bytes") return take(check_bytes, truth(value));
  if (name == "fail") return take(fail, failures(value));
  if (name == "abort") return take(abort, truth(value));
  if (name == "report") return take(report, std::optional(std::string(value)));
  if (name == "fail_copy") {
    if (value.empty()) {
      fail_copy = 0;
      return true;
    }
    const auto equals = value.find('=');
    if (equals == std::string_view::npos) return false;
    const auto nth = number<std::uint64_t>(value.substr(0, equals));
    const auto code = number<int>(value.substr(equals + 1));
    if (!nth || !code || *code == 0) return false;
    fail_copy = *nth;
    fail_copy_code = *code;
    return true;
  }
  return false;
}

settings settings::of_environment() {
  settings found;
  for (const char* const name :
       {"devices", "driver", "memory", "pinned", "pools", "copy_gbps", "move", "seed", "delay_us",
        "init_ms", "check_bytes", "fail", "fail_copy", "abort", "report"}) {
    std::string variable = "FAKE_CUDA_";
    for (const char* letter = name; *letter != '\0'; ++letter) {
      variable += *letter == '_' ? '_' : static_cast<char>(*letter - 'a' + 'A');
    }
    const char* const value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0') continue;
    if (!found.set(name, value)) {
      std::fprintf(stderr, "fake libcuda.so.1: %s=%s is not understood\n", variable.c_str(), value);
      std::_Exit(125);
    }
  }
  return found;
}

}  // namespace fake_cuda
