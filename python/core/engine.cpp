#include "engine.hpp"

#include <headrace/base/error.hpp>

#include <unistd.h>

#include <atomic>
#include <map>
#include <utility>

namespace headrace::python {
namespace {

struct engine_table {
  std::map<unsigned, std::shared_ptr<runtime>> runtimes;
  std::atomic<bool> ended{false};  // relaxed: whoever changes it holds the GIL
};

// Never destroyed: without `shut_down`, as in a forked child that ends by _exit, its threads may
// still be in the kernel.
engine_table& table() {
  static auto* const instance = new engine_table;
  return *instance;
}

}  // namespace

std::shared_ptr<runtime> engine(unsigned threads) {
  engine_table& all = table();
  if (all.ended.load(std::memory_order_relaxed))
    throw error(errc::cancelled, "the interpreter is shutting down");
  std::shared_ptr<runtime>& wanted = all.runtimes[threads];
  if (!wanted) wanted = std::make_shared<runtime>(runtime_options{.threads = threads});
  return wanted;
}

void shut_down() {
  engine_table& all = table();
  all.ended.store(true, std::memory_order_relaxed);
  auto runtimes = std::exchange(all.runtimes, {});
  const nanobind::gil_scoped_release released;
  runtimes.clear();
}

without_gil::without_gil() noexcept : thread_(PyEval_SaveThread()) {}

without_gil::~without_gil() {
  while (table().ended.load(std::memory_order_relaxed) && !on_main_thread()) ::pause();
  PyEval_RestoreThread(thread_);
}

bool on_main_thread() noexcept { return ::gettid() == ::getpid(); }

}  // namespace headrace::python
