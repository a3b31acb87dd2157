#include <headrace/stream/copy_to_host.hpp>

#include "stream/hosted.hpp"

#include <headrace/device/cuda_device.hpp>
#include <headrace/io/blocking_pool.hpp>

#include <cstring>
#include <string>

namespace headrace {
namespace {

task<void> read_here(const tensor* from, std::span<std::byte> to, detail::loop_services* loop) {
  auto reading = loop->context().helpers()->run([from, to]() -> result<void> {
    auto device = cuda_device::open(from->device().index);
    if (!device) return failure{device.error()};
    return (*device)->read(to, from->bytes().data());
  });
  const result<void> done = co_await reading;
  if (!done) throw error(done.error());
}

}  // namespace

task<void> copy_to_host(runtime& runtime, const tensor& from, std::span<std::byte> to) {
  if (to.size() != from.bytes().size()) {
    throw error(errc::invalid_request, "the tensor has " + std::to_string(from.bytes().size()) +
                                           " bytes, and the memory to copy it to " +
                                           std::to_string(to.size()));
  }
  if (to.empty()) co_return;
  if (from.device().kind == device::type::cpu) {
    std::memcpy(to.data(), from.bytes().data(), to.size());
    co_return;
  }
  const auto make = [&from, to](detail::loop_services& loop) {
    return read_here(&from, to, &loop);
  };
  co_await detail::hosted<void>(runtime.state(), make);
}

}  // namespace headrace
