#include <headrace/torch/stream.hpp>

#include "loading.hpp"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <map>

namespace headrace {
namespace {

using test::bytes_of;
using test::opened_model;
using weights = std::map<std::string, ::torch::Tensor>;

task<weights> collect(async_generator<torch::named_tensor> tensors) {
  weights all;
  while (auto* t = co_await tensors.next()) all.insert(std::move(*t));
  co_await tensors.close();
  co_return all;
}

const std::vector<test::wanted_tensor> mixed = {
    {"a", dtype::f32, {16, 4}}, {"b", dtype::bf16, {32}}, {"c", dtype::i64, {5}},
    {"d", dtype::f8_e4m3, {8}}, {"e", dtype::f4, {4, 2}},
};

TEST_SUITE("unit") {
  TEST_CASE("a stream of torch's tensors brings every tensor by its name") {
    const opened_model made(mixed);
    const weights all = test::run(collect(torch::stream(*made.opened)));
    REQUIRE(all.size() == mixed.size());
    for (const auto& wanted : mixed) {
      CAPTURE(wanted.name);
      CHECK(bytes_of(all.at(wanted.name).view(::torch::kUInt8)) ==
            test::content_of(wanted.name, wanted.size()));
    }
  }

  TEST_CASE("a stream obeys its selection") {
    const opened_model made(mixed);
    const weights all =
        test::run(collect(torch::stream(*made.opened, {.tensors = {{"a", {{2, 4}}}}})));
    REQUIRE(all.size() == 1);
    CHECK(bytes_of(all.at("a")) == test::content_of("a", 256).substr(32, 32));
  }

  TEST_CASE("a dtype casts floating-point tensors alone") {
    const opened_model made({{"f", dtype::bf16, {4}},
                             {"i", dtype::i32, {4}},
                             {"p", dtype::f4, {4}},
                             {"c", dtype::c64, {2}}});
    const weights plain = test::run(collect(torch::stream(*made.opened)));
    const weights cast = test::run(collect(torch::stream(*made.opened, {}, ::torch::kFloat64)));
    CHECK(test::has_type(cast.at("f"), ::torch::kFloat64));
    CHECK(::torch::allclose(cast.at("f"), plain.at("f").to(::torch::kFloat64), 0, 0, true));
    CHECK(test::has_type(cast.at("i"), ::torch::kInt32));
    CHECK(test::has_type(cast.at("p"), ::torch::kFloat4_e2m1fn_x2));
    CHECK(test::has_type(cast.at("c"), ::torch::kComplexFloat));
  }

  TEST_CASE("a stream may be dropped half-way, and closing it ends it") {
    const opened_model made(
        {{"a", dtype::f32, {4096}}, {"b", dtype::f32, {4096}}, {"c", dtype::f32, {4096}}});
    {
      auto tensors = torch::stream(*made.opened);
      auto* const first = test::run(tensors.next());
      REQUIRE(first != nullptr);
    }
    {
      const auto never_asked = torch::stream(*made.opened);
    }
    auto tensors = torch::stream(*made.opened);
    auto* const first = test::run(tensors.next());
    REQUIRE(first != nullptr);
    const ::torch::Tensor kept = first->second;
    const std::string name = first->first;
    test::run(tensors.close());
    CHECK(test::run(tensors.next()) == nullptr);
    CHECK(bytes_of(kept) == test::content_of(name, 16384));
  }

  TEST_CASE("a dtype that torch lacks ends the stream with an error that names the tensor") {
    const opened_model made({{"six", dtype::f6_e2m3, {4}}});
    const auto failed = test::failure_of(
        [&] { static_cast<void>(test::run(collect(torch::stream(*made.opened)))); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::unsupported);
    CHECK(failed->message().find("'six'") != std::string::npos);
  }

  TEST_CASE("a stop ends the stream with cancelled") {
    const opened_model made(mixed);
    std::stop_source stop;
    stop.request_stop();
    const auto failed = test::failure_of([&] {
      static_cast<void>(test::run(collect(torch::stream(*made.opened)), stop.get_token()));
    });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::cancelled);
  }
}

}  // namespace
}  // namespace headrace
