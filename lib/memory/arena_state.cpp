#include "memory/arena_state.hpp"

#include <headrace/base/assert.hpp>
#include <headrace/base/sizes.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <string>
#include <utility>

namespace headrace::detail {

namespace {

constexpr std::size_t block_alignment = 64;

// Blocks from this size on begin and end on a page, so that all of their pages can be returned. It
// also is how much is worth a call to the system at once after the stream has ended.
constexpr std::size_t large_block = 1_MiB;

// What may be idle beyond the allowance after the stream has ended: small drops are returned in
// batches.
constexpr std::size_t small_drops = 2_MiB;

// How many runs of free memory are looked at, from the lowest on, for one that fits only when its
// warm and cold parts are taken together. There are hardly ever more than a few; the bound is for
// an arena that is all splinters.
constexpr int runs_looked_at = 64;

constexpr std::size_t extents_at_once = 128;
constexpr std::size_t extents_for_one_call = 32;
constexpr std::size_t extents_for_one_cut = 4;

[[nodiscard]] constexpr std::size_t alignment_of(std::size_t size) noexcept {
  return size >= large_block ? page_size : block_alignment;
}

[[nodiscard]] bool is_free(const extent* node) noexcept {
  return node != nullptr &&
         (node->state == extent_state::warm || node->state == extent_state::cold);
}

[[nodiscard]] bool is_cold(const extent* node) noexcept {
  return node != nullptr && node->state == extent_state::cold;
}

[[nodiscard]] std::size_t bytes_outside_whole_pages(const extent& node) noexcept {
  const auto begin = align_up(node.begin, page_size);
  const auto end = align_down(node.end(), page_size);
  return begin < end ? node.size - (end - begin) : node.size;
}

[[nodiscard]] failure<error> no_memory(std::size_t size) {
  return failure{error(errc::out_of_memory, "the system gave no memory for a block of " +
                                                format_size(size) + " (" + std::to_string(size) +
                                                " bytes)")};
}

[[nodiscard]] failure<error> stream_ended() {
  return failure{error(errc::cancelled, "memory was asked for a stream that has ended")};
}

/// Free neighbours of any temperature, as they lie next to each other.
struct free_run {
  extent* begin;
  extent* last;
  extent* last_cold;
};

[[nodiscard]] free_run free_run_around(extent& cold) noexcept {
  free_run run{&cold, &cold, &cold};
  while (is_free(run.begin->previous)) run.begin = run.begin->previous;
  while (is_free(run.last->next)) {
    run.last = run.last->next;
    if (is_cold(run.last)) run.last_cold = run.last;
  }
  return run;
}

}  // namespace

// Opening and closing

std::uint64_t arena_state::open(std::size_t limit, std::size_t largest_block,
                                std::weak_ptr<release_listener> listener) {
  guard lock(mutex_);
  HEADRACE_ASSERT(!open_);
  open_ = true;
  limit_ = limit;
  bound_ = std::max(limit, host_arena::footprint(largest_block));
  keep_ = 0;
  listener_ = std::move(listener);
  const auto opening = ++opening_;
  trim(lock);
  return opening;
}

bool arena_state::close(std::uint64_t opening) noexcept {
  const guard lock(mutex_);
  if (!is_open(opening)) return false;
  open_ = false;
  armed_ = false;
  held_ += std::exchange(live_, 0);
  extra_ = 0;
  keep_ = std::numeric_limits<std::size_t>::max();  // until the pool has decided
  listener_.reset();
  self_ = blocks_ != 0 ? shared_from_this() : nullptr;
  return true;
}

void arena_state::keep(std::size_t idle) noexcept {
  guard lock(mutex_);
  keep_ = idle;
  trim(lock);
}

void arena_state::drop_idle() noexcept {
  guard lock(mutex_);
  trim(lock, trim_to::nothing);
}

// What a stream asks

std::size_t arena_state::allowance() const noexcept {
  if (!open_) return keep_;
  const auto used = live_ + extra_;
  return used < bound_ ? bound_ - used : 0;
}

bool arena_state::fits(std::uint64_t opening, std::size_t size) noexcept {
  const auto need = host_arena::footprint(size);
  const guard lock(mutex_);
  if (!is_open(opening)) return false;
  const auto used = live_ + extra_;
  if (used == 0) return true;
  if (used > limit_ || need > limit_ - used) return false;
  // With nothing live there is no drop to wait for, so splinters between held blocks must not
  // hinder.
  if (live_ == 0) return true;
  // Warm bytes that become live do not change the sum; cold ones are touched by the page.
  if (warm_.largest() >= need + alignment_of(need) - block_alignment) return true;
  return stuck_ + align_up(need, page_size) <= limit_ - used;
}

result<host_block> arena_state::allocate(std::uint64_t opening, std::size_t size) {
  const auto need = host_arena::footprint(size);
  guard lock(mutex_);
  if (!is_open(opening)) return stream_ended();
  if (size == 0) return host_block();

  placement at;
  try {
    for (;;) {
      reserve_extents();
      at = place(need);
      if (at.block != nullptr) break;
      lock.unlock();
      auto fresh = mapping::make(need);
      if (!fresh) return no_memory(size);
      lock.lock();
      if (!is_open(opening)) return stream_ended();
      add(std::move(*fresh));
    }
  } catch (const std::bad_alloc&) {
    return no_memory(size);
  }

  at.block->opening = opening;
  live_ += need;
  ++blocks_;
  auto* const data = at.block->data();
  if (at.ends_cold || idle_ > allowance()) {
    trim(lock, trim_to::allowance, rest_of_huge_page(at).size);
    warm_up(at);
  }
  lock.unlock();
  unpoison(data, size);
  return host_block(this, at.block, data, size);
}

std::size_t arena_state::warm_ahead(std::uint64_t opening, std::size_t size,
                                    std::size_t step) noexcept {
  const auto wanted = host_arena::footprint(size) + alignment_of(size) - block_alignment;
  guard lock(mutex_);
  if (!is_open(opening) || warm_.largest() >= wanted) return 0;
  const auto allowed = allowance();
  if (idle_ >= allowed) return 0;
  step = std::min(step, allowed - idle_);
  try {
    reserve_extents();
  } catch (const std::bad_alloc&) {
    return 0;
  }
  auto* const cold = first_cold_for(wanted);
  if (cold == nullptr) return 0;
  // Up to the end of a huge page: the kernel clears them whole.
  const auto end = std::min(cold->end(), align_down(cold->begin + step, huge_page_size));
  if (end <= cold->begin) return 0;
  auto& part = cut(*cold, cold->begin, static_cast<std::size_t>(end - cold->begin));
  part.state = extent_state::returning;
  const auto touched = part.size;
  auto* const data = part.data();
  lock.unlock();
  const bool resident = populate(data, touched);
  lock.lock();
  put_back(part, resident ? extent_state::warm : extent_state::cold);
  // Others have used the room meanwhile, or the stream has ended.
  if (idle_ > allowance()) trim(lock);
  return resident ? touched : 0;
}

/// The first cold extent of the lowest run of free neighbours in which `size` bytes fit; null where
/// there is none yet.
extent* arena_state::first_cold_for(std::size_t size) noexcept {
  auto* cold = cold_.first(1);
  for (int looked_at = 0; cold != nullptr && looked_at < runs_looked_at; ++looked_at) {
    const auto [begin, last, last_cold] = free_run_around(*cold);
    if (last->end() - begin->begin >= size) return cold;
    cold = extent_tree::following(*last_cold, 1);
  }
  return cold_.first(size);
}

void arena_state::charge(std::uint64_t opening, std::size_t size) noexcept {
  guard lock(mutex_);
  if (!is_open(opening)) return;
  extra_ += size;
  trim(lock);
}

void arena_state::uncharge(std::uint64_t opening, std::size_t size) noexcept {
  std::weak_ptr<release_listener> listener;
  {
    const guard lock(mutex_);
    if (!is_open(opening)) return;
    HEADRACE_ASSERT(size <= extra_);
    extra_ -= size;
    listener = take_notice();
  }
  if (const auto told = listener.lock()) told->memory_released();
}

void arena_state::notify_on_release(std::uint64_t opening) noexcept {
  const guard lock(mutex_);
  armed_ = armed_ || is_open(opening);
}

std::weak_ptr<release_listener> arena_state::take_notice() noexcept {
  return std::exchange(armed_, false) ? listener_ : std::weak_ptr<release_listener>();
}

// What blocks do

void arena_state::detach(extent& block) noexcept {
  std::weak_ptr<release_listener> listener;
  {
    const guard lock(mutex_);
    if (!is_charged(block)) return;
    block.opening = 0;
    live_ -= block.size;
    held_ += block.size;
    listener = take_notice();
  }
  if (const auto told = listener.lock()) told->memory_released();
}

void arena_state::release(extent& block, std::size_t size) noexcept {
  std::weak_ptr<release_listener> listener;
  std::shared_ptr<arena_state> last;  // goes after the lock
  poison(block.data(), size);
  {
    guard lock(mutex_);
    const auto freed = block.size;
    const bool charged = is_charged(block);
    (charged ? live_ : held_) -= freed;
    put_back(block, extent_state::warm);
    if (open_) {
      if (!charged) trim(lock);
    } else if (freed >= large_block || idle_ - stuck_ > keep_ + std::min(small_drops, ~keep_)) {
      trim(lock);
    }
    // Until here the block counts, so that the arena outlives a trim without the lock.
    --blocks_;
    listener = take_notice();
    if (!open_ && blocks_ == 0) last = std::move(self_);
  }
  if (const auto told = listener.lock()) told->memory_released();
}

// Numbers

arena_state::idle_bytes arena_state::idle() const noexcept {
  const guard lock(mutex_);
  return {.whole = idle_ - stuck_, .stuck = stuck_};
}

memory_usage arena_state::usage() const noexcept {
  const guard lock(mutex_);
  return {.live = live_, .held = held_, .idle = idle_, .extra = extra_, .mapped = mapped_};
}

memory_usage arena_state::usage(std::uint64_t opening) const noexcept {
  const guard lock(mutex_);
  if (!is_open(opening)) return {};
  return {.live = live_, .held = held_, .idle = idle_, .extra = extra_, .mapped = mapped_};
}

// Extents

extent& arena_state::make_extent(mapping& home, std::uint64_t begin, std::size_t size) noexcept {
  HEADRACE_ASSERT(spare_ != nullptr);
  auto& made = *spare_;
  spare_ = made.next;
  --spares_;
  made.begin = begin;
  made.size = size;
  made.home = &home;
  made.previous = nullptr;
  made.next = nullptr;
  made.opening = 0;
  return made;
}

void arena_state::recycle(extent& gone) noexcept {
  gone.next = spare_;
  spare_ = &gone;
  ++spares_;
}

// Ahead of need: what is cut later cannot fail.
void arena_state::reserve_extents() {
  if (spares_ >= extents_for_one_call) return;
  auto& fresh = extents_.emplace_back(std::make_unique<extent[]>(extents_at_once));
  for (auto made = extents_at_once; made != 0; --made) recycle(fresh[made - 1]);
}

void arena_state::add(mapping fresh) {
  reserve_extents();
  fresh.place(next_place_);
  auto& home = mappings_.emplace_back(std::move(fresh));
  next_place_ += home.size() + huge_page_size;
  mapped_ += home.size();
  put_back(make_extent(home, home.place(), home.size()), extent_state::cold);
}

// Lets `node` take over the bytes of `neighbour`, which is in no tree and goes away. `node` must
// not be in one either, or be told `resized`.
void arena_state::absorb(extent& node, extent& neighbour) noexcept {
  node.begin = std::min(node.begin, neighbour.begin);
  node.size += neighbour.size;
  if (neighbour.previous != nullptr) neighbour.previous->next = neighbour.next;
  if (neighbour.next != nullptr) neighbour.next->previous = neighbour.previous;
  recycle(neighbour);
}

void arena_state::count(const extent& free) noexcept {
  if (free.state != extent_state::warm) return;
  idle_ += free.size;
  stuck_ += bytes_outside_whole_pages(free);
}

void arena_state::discount(const extent& free) noexcept {
  if (free.state != extent_state::warm) return;
  idle_ -= free.size;
  stuck_ -= bytes_outside_whole_pages(free);
}

void arena_state::put_back(extent& node, extent_state state) noexcept {
  auto* const previous = node.previous;
  auto* const next = node.next;
  const bool joins_next = next != nullptr && next->state == state;
  if (previous != nullptr && previous->state == state) {
    discount(*previous);
    if (joins_next) {
      discount(*next);
      tree(state).erase(*next);
      absorb(*previous, *next);
    }
    absorb(*previous, node);
    extent_tree::resized(*previous);
    count(*previous);
  } else if (joins_next) {
    discount(*next);
    absorb(*next, node);
    extent_tree::resized(*next);
    count(*next);
  } else {
    node.state = state;
    tree(state).insert(node);
    count(node);
  }
}

extent& arena_state::cut(extent& from, std::uint64_t begin, std::size_t size) noexcept {
  const auto state = from.state;
  const auto end = begin + size;
  const auto from_end = from.end();
  discount(from);
  if (begin == from.begin && end == from_end) {
    tree(state).erase(from);
    from.state = extent_state::live;
    return from;
  }
  auto& part = make_extent(*from.home, begin, size);
  part.state = extent_state::live;
  if (begin == from.begin) {
    part.previous = from.previous;
    part.next = &from;
    if (from.previous != nullptr) from.previous->next = &part;
    from.previous = &part;
    from.begin = end;
    from.size -= size;
    extent_tree::resized(from);
    count(from);
    return part;
  }
  part.previous = &from;
  part.next = from.next;
  if (from.next != nullptr) from.next->previous = &part;
  from.next = &part;
  from.size = begin - from.begin;
  extent_tree::resized(from);
  count(from);
  if (end != from_end) {
    auto& rest = make_extent(*from.home, end, from_end - end);
    rest.state = state;
    rest.previous = &part;
    rest.next = part.next;
    if (part.next != nullptr) part.next->previous = &rest;
    part.next = &rest;
    tree(state).insert(rest);
    count(rest);
  }
  return part;
}

// Placing a block

arena_state::placement arena_state::place(std::size_t size) noexcept {
  const auto alignment = alignment_of(size);
  auto* warm = warm_.first(size);
  if (warm != nullptr && align_up(warm->begin, alignment) + size > warm->end()) {
    warm = warm_.first(size + alignment - block_alignment);
  }
  if (warm != nullptr) {
    return {.block = &cut(*warm, align_up(warm->begin, alignment), size)};
  }
  return place_cold(size, alignment);
}

// No warm extent fits alone: the lowest run of free neighbours that does, from its first warm byte
// on where the rest of the run is long enough.
arena_state::placement arena_state::place_cold(std::size_t size, std::size_t alignment) noexcept {
  auto* cold = cold_.first(1);
  for (int looked_at = 0; cold != nullptr && looked_at < runs_looked_at; ++looked_at) {
    const auto [begin_of_run, last, last_cold] = free_run_around(*cold);
    auto* begin = begin_of_run;
    const auto end = last->end();
    for (auto* node = begin;; node = node->next) {
      const auto from = align_up(node->begin, alignment);
      if (!is_cold(node) && from < node->end() && from + size <= end) {
        return take_run(*node, from, size);
      }
      if (node == last) break;
    }
    const auto from = align_up(begin->begin, alignment);
    if (from + size <= end) {
      while (begin->end() <= from) begin = begin->next;
      return take_run(*begin, from, size);
    }
    cold = extent_tree::following(*last_cold, 1);
  }
  cold = cold_.first(size);
  return cold == nullptr ? placement{} : take_run(*cold, cold->begin, size);
}

arena_state::placement arena_state::take_run(extent& first, std::uint64_t begin,
                                             std::size_t size) noexcept {
  const auto end = begin + size;
  placement at;
  auto* from = &first;
  for (auto next = begin; next < end;) {
    at.ends_cold = is_cold(from);
    at.cold_begin = from->begin;
    auto* const after = from->next;
    const auto part_end = std::min(end, from->end());
    const bool whole = part_end == from->end();
    auto& part = cut(*from, next, part_end - next);
    if (at.block == nullptr) {
      at.block = &part;
    } else {
      absorb(*at.block, part);
    }
    next = part_end;
    if (whole) from = after;
  }
  // A page is touched as a whole.
  if (const auto page_end = align_up(end, page_size); at.ends_cold && page_end != end) {
    put_back(cut(*from, end, page_end - end), extent_state::warm);
  }
  return at;
}

// A huge page is touched as a whole too, where all of it was cold.
arena_state::cold_rest arena_state::rest_of_huge_page(const placement& at) noexcept {
  const auto page_end = align_up(at.block->end(), huge_page_size);
  if (!at.ends_cold || page_end == at.block->end() || page_end - huge_page_size < at.cold_begin) {
    return {};
  }
  auto* cold = at.block->next;
  if (cold != nullptr && cold->state == extent_state::warm) cold = cold->next;
  if (!is_cold(cold) || cold->begin >= page_end || cold->end() < page_end) return {};
  return {.from = cold, .size = static_cast<std::size_t>(page_end - cold->begin)};
}

// Counts the rest of the last huge page as idle, ready for the next block. Where the limit leaves
// no room for that it stays cold by our count, though the kernel may make it resident: less than 2
// MiB at the end of what is in use.
void arena_state::warm_up(const placement& at) noexcept {
  const auto rest = rest_of_huge_page(at);
  if (rest.from == nullptr || rest.size > allowance() - std::min(allowance(), idle_)) return;
  put_back(cut(*rest.from, rest.from->begin, rest.size), extent_state::warm);
}

// Returning memory

void arena_state::trim(guard& lock, trim_to target, std::size_t reserve) noexcept {
  for (;;) {
    auto allowed = target == trim_to::nothing ? 0 : allowance();
    if (reserve <= allowed) allowed -= reserve;
    if (idle_ <= allowed || idle_ == stuck_) return;
    // Small pages only where there are no huge ones left: they split a huge page, and the kernel
    // gives the memory of a split one back late.
    try {
      reserve_extents();
    } catch (const std::bad_alloc&) {  // what is spare has to do
    }
    std::array<extent*, 8> batch{};
    const auto excess = idle_ - allowed;
    auto count = collect(huge_page_size, excess, batch.data(), batch.size());
    if (count == 0) count = collect(page_size, excess, batch.data(), batch.size());
    if (count == 0) return;
    lock.unlock();
    for (std::size_t i = 0; i < count; ++i) return_pages(batch[i]->data(), batch[i]->size);
    lock.lock();
    for (std::size_t i = 0; i < count; ++i) put_back(*batch[i], extent_state::cold);
  }
}

std::size_t arena_state::collect(std::size_t granule, std::size_t excess, extent** batch,
                                 std::size_t room) noexcept {
  std::size_t count = 0;
  for (auto* node = warm_.last(granule); node != nullptr && count < room && excess != 0;) {
    if (spares_ < extents_for_one_cut) break;
    auto& warm = *node;
    node = extent_tree::preceding(warm, granule);

    auto begin = align_up(warm.begin, granule);
    auto end = align_down(warm.end(), granule);
    // A huge page whose other part is cold is ours as a whole.
    if (is_cold(warm.previous) && align_down(warm.begin, huge_page_size) >= warm.previous->begin) {
      begin = warm.begin;
    }
    if (is_cold(warm.next) && align_up(warm.end(), huge_page_size) <= warm.next->end()) {
      end = warm.end();
    }
    if (begin >= end) continue;
    const auto wanted = granule == huge_page_size ? excess : std::max(excess, huge_page_size);
    if (end - begin > wanted) begin = std::max(begin, align_down(end - wanted, granule));

    auto& part = cut(warm, begin, end - begin);
    part.state = extent_state::returning;
    excess -= std::min(excess, part.size);
    if (is_cold(part.next)) {
      const auto upto = std::min(align_up(end, huge_page_size), part.next->end());
      if (upto > end) absorb(part, cut(*part.next, end, upto - end));
    }
    if (is_cold(part.previous)) {
      const auto from = std::max(align_down(begin, huge_page_size), part.previous->begin);
      if (from < begin) absorb(part, cut(*part.previous, from, begin - from));
    }
    batch[count++] = &part;
  }
  return count;
}

}  // namespace headrace::detail
