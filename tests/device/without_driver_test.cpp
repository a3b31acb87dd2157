#include <headrace/device/copy_engine.hpp>
#include <headrace/device/cuda_device.hpp>

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <string>

using namespace headrace;

TEST_SUITE("unit") {
  TEST_CASE("a machine without a driver says so when a device is asked for, each time") {
    if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr) {
      MESSAGE("there is a CUDA driver on this machine");
      return;
    }
    for (unsigned time = 0; time < 2; ++time) {
      const auto opened = cuda_device::open(time);
      REQUIRE_FALSE(opened);
      CHECK(opened.error().kind() == errc::unsupported);
#ifdef HEADRACE_CUDA
      CHECK(opened.error().message() == "no CUDA driver (libcuda.so.1 not found)");
#else
      CHECK(opened.error().message().starts_with("this build has no CUDA support"));
#endif
    }
  }
}
