#include "engine.hpp"

#include <headrace/base/error.hpp>

#include <nanobind/nanobind.h>

#include <map>
#include <utility>

namespace headrace::python {
namespace {

struct engine_table {
  std::map<unsigned, std::shared_ptr<runtime>> runtimes;
  bool ended = false;
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
  if (all.ended) throw error(errc::cancelled, "the interpreter is shutting down");
  std::shared_ptr<runtime>& wanted = all.runtimes[threads];
  if (!wanted) wanted = std::make_shared<runtime>(runtime_options{.threads = threads});
  return wanted;
}

void shut_down() {
  engine_table& all = table();
  all.ended = true;
  auto runtimes = std::exchange(all.runtimes, {});
  const nanobind::gil_scoped_release released;
  runtimes.clear();
}

}  // namespace headrace::python
