#include "commands.hpp"
#include "output.hpp"
#include "text.hpp"

#include <headrace/headrace.hpp>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

namespace headrace::cli {
namespace {

// 2026-01-31T12:00:00Z
std::string utc_time(system_time time) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  const auto day = std::chrono::floor<std::chrono::days>(seconds);
  const std::chrono::year_month_day date{day};
  const std::chrono::hh_mm_ss clock{seconds - day};
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%04d-%02u-%02uT%02d:%02d:%02dZ",
                static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                static_cast<unsigned>(date.day()), static_cast<int>(clock.hours().count()),
                static_cast<int>(clock.minutes().count()),
                static_cast<int>(clock.seconds().count()));
  return text.data();
}

std::string as_json(const credential_report& report) {
  std::string json = "{\"source\":" + json_string(report.source) +
                     ",\"identity\":" + json_string(report.identity) + ",\"expires\":" +
                     (report.expires ? json_string(utc_time(*report.expires)) : "null") +
                     ",\"details\":{";
  const char* separator = "";
  for (const auto& [name, value] : report.details) {
    json += separator + json_string(name) + ":" + json_string(value);
    separator = ",";
  }
  return json + "}}\n";
}

std::string as_text(const credential_report& report) {
  std::string text;
  const auto add = [&text](const std::string& name, const std::string& value) {
    if (!value.empty()) text += one_line(name) + ": " + one_line(value) + "\n";
  };
  add("source", report.source);
  add("identity", report.identity);
  if (report.expires) add("expires", utc_time(*report.expires));
  for (const auto& [name, value] : report.details) add(name, value);
  return text;
}

}  // namespace

void run_credentials(const credentials_arguments& arguments, std::stop_token stop) {
  runtime engine({.threads = arguments.source.threads});
  const credential_report report =
      sync_wait(describe_credentials(engine, arguments.source.uri, arguments.source.opening),
                std::move(stop));
  write_standard_output(arguments.json ? as_json(report) : as_text(report));
}

}  // namespace headrace::cli
