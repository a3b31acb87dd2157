#include "statistics.hpp"

#include "text.hpp"

#include <sys/resource.h>

#include <array>
#include <cstdio>

namespace headrace::cli {
namespace {

std::string fixed(double number, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, number);
  return text.data();
}

rusage usage() noexcept {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return used;
}

double seconds_of(const timeval& time) noexcept {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace

double statistics::bytes_per_second() const noexcept {
  return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
}

std::string statistics::to_json() const {
  std::string json = "{";
  const auto add = [&json](const char* name, const std::string& value) {
    if (json.size() > 1) json += ", ";
    json += "\"" + std::string(name) + "\": " + value;
  };
  add("tensors", std::to_string(tensors));
  add("bytes", std::to_string(bytes));
  add("seconds", fixed(seconds, 6));
  add("gbps", fixed(bytes_per_second() / 1e9, 6));
  add("first_tensor_seconds", first_tensor_seconds ? fixed(*first_tensor_seconds, 6) : "null");
  add("requests", std::to_string(requests));
  add("retries", std::to_string(retries));
  add("cpu_seconds", fixed(cpu_seconds, 6));
  add("peak_rss_bytes", std::to_string(peak_rss_bytes));
  add("io_backend", json_string(io_backend));
  if (copies) {
    add("copies", "{\"pieces\": " + std::to_string(copies->pieces) +
                      ", \"bytes\": " + std::to_string(copies->bytes) +
                      ", \"batches\": " + std::to_string(copies->batches) +
                      ", \"wake_ups\": " + std::to_string(copies->wake_ups) + "}");
  }
  return json + "}";
}

std::string statistics::summary() const {
  return grouped(tensors) + (tensors == 1 ? " tensor, " : " tensors, ") +
         decimal_size(static_cast<double>(bytes)) + " in " + fixed(seconds, 2) + " s (" +
         decimal_size(bytes_per_second()) + "/s)";
}

double process_cpu_seconds() noexcept {
  const rusage used = usage();
  return seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
}

std::uint64_t process_peak_rss_bytes() noexcept {
  return static_cast<std::uint64_t>(usage().ru_maxrss) * 1024;
}

}  // namespace headrace::cli
