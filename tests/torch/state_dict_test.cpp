#include <headrace/torch/state_dict.hpp>

#include "loading.hpp"

#include <doctest/doctest.h>

namespace headrace {
namespace {

using test::bytes_of;
using test::opened_model;

TEST_SUITE("unit") {
  TEST_CASE("a state dict holds every tensor, in the order of the files") {
    std::vector<test::wanted_tensor> wanted;
    for (unsigned number = 0; number < 40; ++number) {
      wanted.push_back({"w" + std::to_string(40 - number), dtype::bf16, {1 + number * 37, 8}});
    }
    const opened_model made(wanted);
    const auto all = test::run(torch::state_dict(*made.opened));
    REQUIRE(all.size() == wanted.size());
    for (std::size_t at = 0; at < wanted.size(); ++at) {
      CHECK(all[at].key() == wanted[at].name);
      CHECK(bytes_of(all[at].value()) == test::content_of(wanted[at].name, wanted[at].size()));
    }
  }

  TEST_CASE("a state dict holds what was selected, cast") {
    const opened_model made({{"a", dtype::f32, {4}}, {"b", dtype::f32, {4}}});
    const auto all =
        test::run(torch::state_dict(*made.opened, {.tensors = {{"b"}}}, ::torch::kFloat16));
    REQUIRE(all.size() == 1);
    CHECK(all[0].key() == "b");
    CHECK(test::has_type(all[0].value(), ::torch::kFloat16));
  }

  TEST_CASE("a state dict that fails says which tensor it was") {
    const opened_model made({{"a", dtype::f32, {4096}}, {"six", dtype::f6_e3m2, {4}}});
    const auto failed =
        test::failure_of([&] { static_cast<void>(test::run(torch::state_dict(*made.opened))); });
    REQUIRE(failed);
    CHECK(failed->kind() == errc::unsupported);
    CHECK(failed->message().find("'six'") != std::string::npos);
  }
}

}  // namespace
}  // namespace headrace
