#pragma once

#include <pthread.h>

#include <csignal>
#include <string>
#include <thread>
#include <utility>

namespace headrace::detail {

/// Starts a thread of headrace's: named, and with every signal blocked, so that the host's handlers
/// run on its own threads.
template <class Function>
[[nodiscard]] std::thread start_thread(const char* name, Function function) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  // Inherited by the new thread; blocked before it exists, so that there is no moment in which it
  // takes a signal.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread started;
  try {
    started = std::thread(std::move(function));
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(started.native_handle(), name);
  return started;
}

}  // namespace headrace::detail
