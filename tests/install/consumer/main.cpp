// Somebody else's program: everything that crosses the library's edge, types of exceptions among
// it.

#include <headrace/headrace.hpp>

#include <cstdio>
#include <exception>
#include <string>
#include <utility>

namespace {

headrace::task<void> print(headrace::model model) {
  auto tensors = model.stream({.memory_limit = headrace::parse_size("64MiB").value()});
  while (auto* t = co_await tensors.next()) {
    const std::string name(t->name());
    std::printf("%s %zu\n", name.c_str(), t->bytes().size());
  }
  co_await tensors.close();
}

bool refuses(headrace::runtime& runtime, std::string uri, headrace::errc kind) {
  try {
    headrace::sync_wait(headrace::open(runtime, std::move(uri)));
  } catch (const headrace::error& failed) {
    return failed.kind() == kind && failed.code() == kind && !failed.message().empty();
  }
  return false;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) return 2;
  headrace::runtime runtime;
  try {
    headrace::sync_wait(print(headrace::sync_wait(headrace::open(runtime, arguments[1]))));
  } catch (const std::exception& failed) {
    std::fprintf(stderr, "%s\n", failed.what());
    return 1;
  }
  if (!refuses(runtime, "/nowhere/at/all", headrace::errc::not_found)) return 3;
  if (!refuses(runtime, "gopher://host/model", headrace::errc::unsupported)) return 4;
  headrace::inline_executor here;  // a polymorphic type of the library's
  const headrace::executor& seen = here;
  return dynamic_cast<const headrace::inline_executor*>(&seen) != nullptr ? 0 : 5;
}
