#include <headrace/base/assert.hpp>
#include <headrace/coro/timer_service.hpp>

namespace headrace {

void timer_queue::start(timer_item& item, steady_time deadline) {
  HEADRACE_ASSERT(!item.pending());
  heap_.push_back({deadline, &item});
  item.position = heap_.size() - 1;
  rise(item.position);
}

void timer_queue::cancel(timer_item& item) noexcept {
  if (!item.pending()) return;
  const auto position = item.position;
  item.position = timer_item::idle;
  const entry last = heap_.back();
  heap_.pop_back();
  if (position == heap_.size()) return;
  place(position, last);
  rise(position);
  sink(last.item->position);
}

std::optional<steady_time> timer_queue::next() const noexcept {
  if (heap_.empty()) return std::nullopt;
  return heap_.front().deadline;
}

void timer_queue::run_due(steady_time now) noexcept {
  while (!heap_.empty() && heap_.front().deadline <= now) {
    timer_item& due = *heap_.front().item;
    cancel(due);
    due.run(due);
  }
}

void timer_queue::place(std::size_t position, entry moved) noexcept {
  heap_[position] = moved;
  moved.item->position = position;
}

void timer_queue::rise(std::size_t position) noexcept {
  const entry moved = heap_[position];
  while (position > 0) {
    const auto parent = (position - 1) / 2;
    if (heap_[parent].deadline <= moved.deadline) break;
    place(position, heap_[parent]);
    position = parent;
  }
  place(position, moved);
}

void timer_queue::sink(std::size_t position) noexcept {
  const entry moved = heap_[position];
  for (;;) {
    auto child = 2 * position + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1].deadline < heap_[child].deadline) ++child;
    if (moved.deadline <= heap_[child].deadline) break;
    place(position, heap_[child]);
    position = child;
  }
  place(position, moved);
}

}  // namespace headrace
