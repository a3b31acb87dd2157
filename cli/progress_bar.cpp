#include "progress_bar.hpp"

#include "standard_error.hpp"
#include "text.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace headrace::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto redraw_interval = 100ms;
constexpr auto rate_window = 3s;
constexpr std::size_t narrowest_bar = 8;
constexpr std::size_t widest_bar = 60;

std::string right_aligned(const std::string& text, std::size_t columns) {
  return text.size() < columns ? std::string(columns - text.size(), ' ') + text : text;
}

std::string bar(double fraction, std::size_t columns) {
  const auto filled = static_cast<std::size_t>(fraction * static_cast<double>(columns));
  std::string cells(filled, '=');
  if (filled < columns) {
    cells += '>';
    cells.append(columns - filled - 1, ' ');
  }
  return "[" + cells + "]";
}

std::string time_left(std::uint64_t bytes, double rate) {
  if (bytes == 0) return "0:00";
  if (rate < 1) return "-:--";
  return clock_time(
      std::chrono::seconds(static_cast<std::int64_t>(static_cast<double>(bytes) / rate + 0.999)));
}

// The richest of several forms that fits.
std::string line(const std::string& label, const progress& now, double rate, std::size_t columns) {
  const double fraction =
      now.total_bytes == 0
          ? 0
          : std::min(1.0, static_cast<double>(now.bytes) / static_cast<double>(now.total_bytes));
  const auto total = static_cast<double>(now.total_bytes);
  const std::string percent =
      label + right_aligned(std::to_string(static_cast<int>(fraction * 100)), 3) + "%";
  const std::string sizes = "  " + right_aligned(decimal_size(static_cast<double>(now.bytes)), 7) +
                            " / " + decimal_size(total);
  const std::string speed = "  " + right_aligned(decimal_size(rate), 7) + "/s";
  const std::string left =
      "  " + time_left(now.total_bytes - std::min(now.bytes, now.total_bytes), rate) + " left";

  const std::string full = sizes + speed + left;
  const std::size_t beside = percent.size() + full.size() + 3;
  if (columns >= beside + narrowest_bar) {
    return percent + " " + bar(fraction, std::min(columns - beside, widest_bar)) + full;
  }
  const std::string without_sizes = percent + speed;
  const std::array<std::string, 4> forms = {percent + full, without_sizes + left, without_sizes,
                                            percent};
  const auto fitting = std::find_if(forms.begin(), forms.end(),
                                    [columns](const auto& text) { return text.size() <= columns; });
  return fitting == forms.end() ? "" : *fitting;
}

}  // namespace

void progress_counters::store(const progress& now) noexcept {
  bytes_.store(now.bytes, std::memory_order_relaxed);
  total_.store(now.total_bytes, std::memory_order_relaxed);
}

progress progress_counters::load() const noexcept {
  return {.bytes = bytes_.load(std::memory_order_relaxed),
          .total_bytes = total_.load(std::memory_order_relaxed)};
}

progress_bar::progress_bar(bool wanted, std::string label) : label_(std::move(label)) {
  if (!wanted || !standard_error::get().is_terminal()) return;
  counters_ = std::make_shared<progress_counters>();
  drawing_ = std::thread(&progress_bar::draw_until_finished, this);
}

progress_bar::~progress_bar() {
  if (!drawing_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  finishing_.notify_one();
  drawing_.join();
  standard_error::get().clear_status();
}

void progress_bar::draw_until_finished() {
  std::unique_lock lock(mutex_);
  while (true) {
    // The last drawing of a stream that was over before the second one.
    if (finished_ && (drew_progress_ || counters_->load().total_bytes == 0)) return;
    draw();
    if (finished_) return;
    finishing_.wait_for(lock, redraw_interval, [this] { return finished_; });
  }
}

void progress_bar::draw() {
  auto& terminal = standard_error::get();
  // The last column stays free: a character there makes some terminals wrap.
  const std::size_t columns = terminal.columns() - 1;
  const progress now = counters_->load();
  if (now.total_bytes == 0) {
    terminal.show_status((label_ + "opening ...").substr(0, columns));
    return;
  }
  drew_progress_ = true;
  const steady_time time = std::chrono::steady_clock::now();
  if (samples_.empty()) samples_.push_back({time, 0});
  samples_.push_back({time, now.bytes});
  while (samples_.size() > 2 && samples_[1].time < time - rate_window) samples_.pop_front();
  const std::chrono::duration<double> elapsed = time - samples_.front().time;
  const auto received =
      static_cast<double>(now.bytes - std::min(now.bytes, samples_.front().bytes));
  const double rate = elapsed.count() > 0 ? received / elapsed.count() : 0;
  terminal.show_status(line(label_, now, rate, columns));
}

}  // namespace headrace::cli
