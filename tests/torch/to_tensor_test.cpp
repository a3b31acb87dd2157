#include <headrace/torch/to_tensor.hpp>

#include "loading.hpp"

#include <doctest/doctest.h>

#include <map>
#include <set>
#include <thread>

namespace headrace {
namespace {

using test::bytes_of;
using test::opened_model;
using test::wanted_tensor;

task<tensor> first_of(async_generator<tensor>* tensors) {
  auto* const t = co_await tensors->next();
  REQUIRE(t != nullptr);
  tensor taken = std::move(*t);
  co_await tensors->close();
  co_return taken;
}

/// The only tensor of a model of one.
tensor take(const opened_model& of) {
  auto tensors = of.opened->stream();
  return test::run(first_of(&tensors));
}

TEST_SUITE("unit") {
  TEST_CASE(
      "torch's tensor is the memory that the bytes arrived in, and gives it back on any thread") {
    const opened_model made({{"weight", dtype::f32, {1024, 1024}}});
    const std::string expected = test::content_of("weight", 4_MiB);
    tensor arrived = take(made);
    const void* const where = arrived.bytes().data();
    ::torch::Tensor whole = torch::to_tensor(std::move(arrived));
    CHECK(arrived.bytes().empty());
    CHECK(whole.const_data_ptr() == where);
    CHECK(test::has_type(whole, ::torch::kFloat32));
    CHECK(whole.sizes() == ::torch::IntArrayRef({1024, 1024}));
    CHECK(whole.is_contiguous());
    CHECK(whole.is_leaf());
    CHECK_FALSE(whole.requires_grad());
    CHECK(whole.device().is_cpu());
    CHECK(bytes_of(whole) == expected);

    ::torch::Tensor row = whole[7];
    whole.reset();
    CHECK(test::resident(where, 4_MiB));
    CHECK(bytes_of(row) == expected.substr(std::size_t{7} * 4096, 4096));
    std::thread([last = std::move(row)]() mutable { last.reset(); }).join();
    CHECK_FALSE(test::resident(where, 4_MiB));
  }

  TEST_CASE("a tensor of torch's outlives model and runtime") {
    std::optional<opened_model> made;
    made.emplace(std::vector<wanted_tensor>{{"weight", dtype::bf16, {64, 64}}});
    const ::torch::Tensor whole = torch::to_tensor(take(*made));
    made.reset();
    CHECK(bytes_of(whole) == test::content_of("weight", 8192));
  }

  TEST_CASE("every dtype that torch has arrives as that dtype, byte for byte") {
    std::set<::torch::ScalarType> seen;
    for (std::size_t number = 0; number < dtype_count; ++number) {
      const auto type = static_cast<dtype>(number);
      CAPTURE(to_string(type));
      const wanted_tensor wanted{"w", type, {3, 8}};
      const opened_model made({wanted});
      tensor arrived = take(made);
      const auto expected = torch::to_scalar_type(type);
      if (!expected) {
        const auto failed =
            test::failure_of([&] { static_cast<void>(torch::to_tensor(std::move(arrived))); });
        REQUIRE(failed);
        CHECK(failed->kind() == errc::unsupported);
        CHECK(failed->message().find("'w'") != std::string::npos);
        CHECK(failed->message().find(to_string(type)) != std::string::npos);
        CHECK(arrived.bytes().size() == wanted.size());
        continue;
      }
      CHECK(seen.insert(*expected).second);
      const ::torch::Tensor whole = torch::to_tensor(std::move(arrived));
      CHECK(test::has_type(whole, *expected));
      CHECK(whole.sizes() ==
            (type == dtype::f4 ? ::torch::IntArrayRef({3, 4}) : ::torch::IntArrayRef({3, 8})));
      CHECK(whole.nbytes() == wanted.size());
      CHECK(bytes_of(whole.view(::torch::kUInt8)) == test::content_of("w", wanted.size()));
    }
    CHECK(seen.size() == dtype_count - 2);
    CHECK(seen.contains(::torch::kFloat8_e8m0fnu));
    CHECK(seen.contains(::torch::kFloat8_e4m3fn));
  }

  TEST_CASE("scalars and tensors of nothing keep their shapes") {
    const opened_model scalar({{"s", dtype::i64, {}}});
    const ::torch::Tensor one = torch::to_tensor(take(scalar));
    CHECK(one.dim() == 0);
    CHECK(bytes_of(one) == test::content_of("s", 8));

    const opened_model empty({{"e", dtype::f32, {0, 5}}});
    const ::torch::Tensor none = torch::to_tensor(take(empty));
    CHECK(none.sizes() == ::torch::IntArrayRef({0, 5}));
    CHECK(test::has_type(none, ::torch::kFloat32));
    CHECK((none + 1).numel() == 0);
  }

  TEST_CASE("an F4 tensor whose last extent is odd is refused, and stays as it was") {
    const opened_model made({{"packed", dtype::f4, {4, 3}}});
    tensor arrived = take(made);
    const auto failed =
        test::failure_of([&] { static_cast<void>(torch::to_tensor(std::move(arrived))); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::unsupported);
    CHECK(failed->message().find("'packed'") != std::string::npos);
    CHECK(arrived.bytes().size() == 6);
  }

  TEST_CASE("devices are torch's by kind and index") {
    CHECK(torch::to_device(cpu()) == ::torch::Device(::torch::kCPU));
    CHECK(torch::to_device(cuda(3)) == ::torch::Device(::torch::kCUDA, 3));
    const auto failed =
        test::failure_of([] { static_cast<void>(torch::to_device(cuda(100'000))); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::invalid_request);
  }

  TEST_CASE("torch may write into what it was given") {
    const opened_model made({{"w", dtype::f32, {8}}});
    ::torch::Tensor whole = torch::to_tensor(take(made));
    whole.fill_(2.0);
    CHECK(whole.sum().item<float>() == 16.0F);
  }
}

}  // namespace
}  // namespace headrace
