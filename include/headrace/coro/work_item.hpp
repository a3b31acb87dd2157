#pragma once

namespace headrace {

/// Something to run once, linked into an executor's queue without an allocation.
///
/// The owner embeds it and keeps it alive until `run` has been called. `run` may destroy the item.
struct work_item {
  using function = void(work_item&) noexcept;

  explicit work_item(function* to_run = nullptr) noexcept : run(to_run) {}
  work_item(const work_item&) = delete;
  work_item& operator=(const work_item&) = delete;

  work_item* next = nullptr;
  function* run;

 protected:
  ~work_item() = default;
};

/// A first-in, first-out list of work items. Threads: the owner's alone.
class work_queue {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }

  void push(work_item& item) noexcept {
    item.next = nullptr;
    *last_ = &item;
    last_ = &item.next;
  }

  /// The oldest item, null where there is none.
  [[nodiscard]] work_item* pop() noexcept {
    work_item* item = first_;
    if (item == nullptr) return nullptr;
    first_ = item->next;
    if (first_ == nullptr) last_ = &first_;
    return item;
  }

  work_queue() = default;
  work_queue(const work_queue&) = delete;
  work_queue& operator=(const work_queue&) = delete;

 private:
  work_item* first_ = nullptr;
  work_item** last_ = &first_;
};

}  // namespace headrace
