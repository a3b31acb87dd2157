#pragma once

#include <headrace/base/export.hpp>
#include <headrace/base/sizes.hpp>
#include <headrace/memory/host_arena.hpp>

#include <cstddef>
#include <memory>

namespace headrace {

/// The runtime's host memory: gives each stream an arena and keeps warm memory from one stream to
/// the next.
///
/// An ended stream's idle bytes are kept for the next stream, up to `idle_limit` for all ended
/// streams together, the latest first; the rest goes back to the system. Blocks that users still
/// hold do not hinder that. What is dropped after its stream has ended goes back to the system: 1
/// MiB and more at once, smaller blocks as soon as their whole pages sum up to 2 MiB; so for each
/// ended stream of which blocks are held at most 2 MiB and the pages shared with held blocks stay.
///
/// Arenas and blocks may outlive the pool; their memory then goes straight back to the system.
/// Threads: every member may be called from any thread.
///
///     host_pool pool;
///     auto arena = pool.open(1_GiB, listener);
class HEADRACE_API host_pool {
 public:
  explicit host_pool(std::size_t idle_limit = 512_MiB);
  host_pool(const host_pool&) = delete;
  host_pool& operator=(const host_pool&) = delete;
  ~host_pool();

  /// An arena for one stream, with warm memory of an ended one if there is any. `listener` is who
  /// `notify_on_release` tells; it may be empty, and is not kept alive. `largest_block`: what the
  /// stream is going to ask for at most, in bytes; where that is more than the limit, idle memory
  /// may stay warm up to it, since the stream touches as much in any case.
  [[nodiscard]] std::shared_ptr<host_arena> open(std::size_t limit,
                                                 std::weak_ptr<release_listener> listener = {},
                                                 std::size_t largest_block = 0);

  /// Returns all idle memory to the system, that of open arenas too.
  void trim();

  /// The sum over all arenas of this pool, ended ones with held blocks included.
  [[nodiscard]] memory_usage usage() const;

 private:
  const std::shared_ptr<detail::pool_state> state_;
};

}  // namespace headrace
