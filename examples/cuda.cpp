// Weights straight onto a CUDA device.
//
//     cuda s3://bucket/model [DEVICE]
//
// What is on the device is not for the host to read: the program prints where each tensor is, and
// keeps it until all have arrived. Without a driver, a device or CUDA support in this build of
// headrace it says which of them is missing and exits with 3.

#include <headrace/headrace.hpp>

#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace {

headrace::task<std::vector<headrace::tensor>> load(headrace::runtime& runtime, std::string uri,
                                                   headrace::device where) {
  headrace::model model = co_await headrace::open(runtime, std::move(uri));
  auto tensors = model.stream({.device = where});
  std::vector<headrace::tensor> kept;
  kept.reserve(model.tensors().size());
  while (auto* t = co_await tensors.next()) kept.push_back(std::move(*t));
  co_await tensors.close();
  co_return kept;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2 && count != 3) {
    std::cerr << "usage: cuda URI [cuda:0]\n";
    return 2;
  }
  try {
    const auto where = headrace::parse_device(count == 3 ? arguments[2] : "cuda").value();
    headrace::runtime runtime;
    const auto weights = headrace::sync_wait(load(runtime, arguments[1], where));
    for (const headrace::tensor& t : weights) {
      std::cout << t.name() << " on " << t.device().to_string() << "\n";
    }
    std::cout << weights.size() << " tensors on " << where.to_string() << "\n";
  } catch (const headrace::error& failed) {
    std::cerr << failed.what() << "\n";
    if (failed.kind() != headrace::errc::unsupported) return 1;
    std::cerr
        << "No CUDA here. headrace finds the driver (libcuda.so.1) when it is first asked for "
           "a CUDA device, and needs nothing of CUDA before.\n";
    return 3;
  }
}
