#include <headrace/io/inherited.hpp>

#include <unistd.h>

#include <mutex>
#include <set>

namespace headrace::detail {
namespace {

struct registry {
  std::mutex mutex;
  std::set<int> numbers;
};

// Never destroyed: loops of the shared runtime may run until the very end of the process.
registry& all() {
  static auto* const instance = new registry;
  return *instance;
}

}  // namespace

void inherited_descriptors::add(int number) {
  auto& known = all();
  const std::lock_guard lock(known.mutex);
  known.numbers.insert(number);
}

void inherited_descriptors::forget(int number) noexcept {
  auto& known = all();
  const std::lock_guard lock(known.mutex);
  known.numbers.erase(number);
}

void inherited_descriptors::close(int number) noexcept {
  auto& known = all();
  // Forgotten first: once it is closed, another thread may get and add the same number.
  const std::lock_guard lock(known.mutex);
  known.numbers.erase(number);
  ::close(number);
}

void inherited_descriptors::lock() noexcept { all().mutex.lock(); }

void inherited_descriptors::unlock() noexcept { all().mutex.unlock(); }

void inherited_descriptors::close_in_child() noexcept {
  auto& known = all();
  for (const int number : known.numbers) ::close(number);
  known.numbers.clear();
  known.mutex.unlock();
}

}  // namespace headrace::detail
