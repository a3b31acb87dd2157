#pragma once

namespace headrace::detail {

class runtime_state;

/// From now on `state` is parked around every fork of the process (`pthread_atfork`). A second call
/// does nothing. Threads: any.
void prepare_for_fork(runtime_state& state);

/// `state` is about to go. Does nothing where it was never prepared. Threads: any.
void forget_at_fork(runtime_state& state) noexcept;

}  // namespace headrace::detail
