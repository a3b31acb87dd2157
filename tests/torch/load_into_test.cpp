#include <headrace/torch/load_into.hpp>

#include "loading.hpp"

#include <doctest/doctest.h>
#include <torch/torch.h>

namespace headrace {
namespace {

using test::bytes_of;
using test::opened_model;
using test::wanted_tensor;

/// A linear layer and a batch norm: parameters and buffers, one of them an integer.
struct small_net_impl : ::torch::nn::Module {
  ::torch::nn::Linear linear{nullptr};
  ::torch::nn::BatchNorm1d norm{nullptr};

  small_net_impl() {
    linear = register_module("linear", ::torch::nn::Linear(4, 3));
    norm = register_module("norm", ::torch::nn::BatchNorm1d(3));
  }
};

std::vector<wanted_tensor> small_net_weights(dtype type = dtype::f32) {
  return {{"linear.weight", type, {3, 4}},
          {"linear.bias", type, {3}},
          {"norm.weight", type, {3}},
          {"norm.bias", type, {3}},
          {"norm.running_mean", type, {3}},
          {"norm.running_var", type, {3}},
          {"norm.num_batches_tracked", dtype::i64, {}}};
}

std::optional<error> failure_of_load(::torch::nn::Module& module, const opened_model& made,
                                     torch::load_options options = {}) {
  return test::failure_of([&] {
    static_cast<void>(test::run(torch::load_into(module, *made.opened, std::move(options))));
  });
}

bool says(const std::optional<error>& failed, std::string_view what) {
  return failed && failed->message().find(what) != std::string::npos;
}

TEST_SUITE("unit") {
  TEST_CASE("each tensor takes the place of the parameter or buffer of its name") {
    const opened_model made(small_net_weights());
    small_net_impl net;
    const auto found = test::run(torch::load_into(net, *made.opened));
    CHECK(found.missing_keys.empty());
    CHECK(found.unexpected_keys.empty());
    // What the layers themselves hold, not only what the module lists.
    CHECK(bytes_of(net.linear->weight) == test::content_of("linear.weight", 48));
    CHECK(bytes_of(net.norm->running_var) == test::content_of("norm.running_var", 12));
    CHECK(bytes_of(net.norm->num_batches_tracked) ==
          test::content_of("norm.num_batches_tracked", 8));
    for (const auto& wanted : small_net_weights()) {
      const auto* const parameter = net.named_parameters().find(wanted.name);
      if (parameter != nullptr) {
        CHECK(bytes_of(*parameter) == test::content_of(wanted.name, wanted.size()));
      }
    }
    CHECK(net.linear->weight.requires_grad());
    CHECK_FALSE(net.norm->running_var.requires_grad());
  }

  TEST_CASE("a loaded module computes and learns") {
    const opened_model made({{"weight", dtype::i8, {3, 4}}, {"bias", dtype::i8, {3}}});
    const opened_model floats({{"weight", dtype::f8_e5m2, {3, 4}}, {"bias", dtype::f8_e5m2, {3}}});
    ::torch::nn::Linear layer(4, 3);
    test::run(torch::load_into(*layer, *floats.opened, {.dtype = ::torch::kFloat32}));
    CHECK(test::has_type(layer->weight, ::torch::kFloat32));
    const auto input = ::torch::ones({2, 4});
    layer->weight.detach().nan_to_num_(0, 1, -1).clamp_(-1, 1);
    const auto output = layer->forward(input);
    const auto expected = ::torch::matmul(input, layer->weight.t()) + layer->bias;
    CHECK(::torch::allclose(output, expected, 1e-5, 1e-8, true));
    output.sum().backward();
    CHECK(layer->weight.grad().sizes() == ::torch::IntArrayRef({3, 4}));
  }

  TEST_CASE("the dtype is the checkpoint's, or the one that is asked for") {
    const opened_model made({{"weight", dtype::bf16, {3, 4}}, {"bias", dtype::bf16, {3}}});
    ::torch::nn::Linear layer(4, 3);
    test::run(torch::load_into(*layer, *made.opened));
    CHECK(test::has_type(layer->weight, ::torch::kBFloat16));
    test::run(torch::load_into(*layer, *made.opened, {.dtype = ::torch::kFloat64}));
    CHECK(test::has_type(layer->weight, ::torch::kFloat64));
    CHECK(layer->weight.requires_grad());
  }

  TEST_CASE("a frozen parameter stays frozen") {
    const opened_model made({{"weight", dtype::f32, {3, 4}}, {"bias", dtype::f32, {3}}});
    ::torch::nn::Linear layer(4, 3);
    layer->weight.requires_grad_(false);
    test::run(torch::load_into(*layer, *made.opened));
    CHECK_FALSE(layer->weight.requires_grad());
    CHECK(layer->bias.requires_grad());
  }

  TEST_CASE("strict counts and names what is missing and unexpected, and touches nothing") {
    std::vector<wanted_tensor> wanted = {{"linear.weight", dtype::f32, {3, 4}}};
    for (unsigned number = 0; number < 12; ++number) {
      wanted.push_back({"extra." + std::to_string(number + 10), dtype::f32, {2}});
    }
    const opened_model made(wanted);
    small_net_impl net;
    const auto before = net.linear->weight.detach().clone();
    const auto failed = failure_of_load(net, made);
    REQUIRE(failed);
    CHECK(failed->kind() == errc::not_found);
    CHECK(says(failed, "6 missing"));
    CHECK(says(failed, "linear.bias"));
    CHECK(says(failed, "12 unexpected"));
    CHECK(says(failed, "extra.19"));
    CHECK_FALSE(says(failed, "extra.20"));
    CHECK(says(failed, "strict"));
    CHECK(::torch::equal(net.linear->weight, before));
    CHECK(made.opened->statistics().bytes < 4096 + 200);  // no more than opening took
  }

  TEST_CASE("without strict the rest is loaded and the differences are given back") {
    const opened_model made({{"linear.weight", dtype::f32, {3, 4}}, {"other", dtype::f32, {2}}});
    small_net_impl net;
    const auto found = test::run(torch::load_into(net, *made.opened, {.strict = false}));
    CHECK(found.unexpected_keys == std::vector<std::string>{"other"});
    CHECK(found.missing_keys.size() == 6);
    CHECK(bytes_of(net.linear->weight) == test::content_of("linear.weight", 48));
  }

  TEST_CASE("a checkpoint of which nothing is wanted loads nothing") {
    const opened_model made({{"other", dtype::f32, {2}}});
    ::torch::nn::Linear layer(4, 3);
    const auto found = test::run(torch::load_into(*layer, *made.opened, {.strict = false}));
    CHECK(found.unexpected_keys == std::vector<std::string>{"other"});
    CHECK(found.missing_keys.size() == 2);
  }

  TEST_CASE("a shape that differs is refused, both shapes named") {
    const opened_model made({{"weight", dtype::f32, {4, 3}}, {"bias", dtype::f32, {3}}});
    ::torch::nn::Linear layer(4, 3);
    const auto failed = failure_of_load(*layer, made);
    REQUIRE(failed);
    CHECK(failed->kind() == errc::invalid_request);
    CHECK(says(failed, "'weight'"));
    CHECK(says(failed, "[4, 3]"));
    CHECK(says(failed, "[3, 4]"));
  }

  TEST_CASE("names are mapped, and tensors without a mapping are skipped") {
    const opened_model made({{"model.w", dtype::f32, {3, 4}},
                             {"model.b", dtype::f32, {3}},
                             {"optimizer", dtype::f32, {7}}});
    ::torch::nn::Linear layer(4, 3);
    torch::load_options options;
    options.key_mapping = [](std::string_view name) -> std::optional<std::string> {
      if (name == "optimizer") return std::nullopt;
      return name == "model.w" ? "weight" : "bias";
    };
    const auto found = test::run(torch::load_into(*layer, *made.opened, std::move(options)));
    CHECK(found.missing_keys.empty());
    CHECK(bytes_of(layer->weight) == test::content_of("model.w", 48));
  }

  TEST_CASE("two tensors for one entry are refused, both named") {
    const opened_model made({{"one", dtype::f32, {3}}, {"two", dtype::f32, {3}}});
    ::torch::nn::Linear layer(4, 3);
    torch::load_options options;
    options.key_mapping = [](std::string_view) -> std::optional<std::string> { return "bias"; };
    const auto failed = failure_of_load(*layer, made, std::move(options));
    REQUIRE(failed);
    CHECK(failed->kind() == errc::invalid_request);
    CHECK(says(failed, "'one'"));
    CHECK(says(failed, "'two'"));
  }

  TEST_CASE("an entry on the meta device needs a device, and gets real memory there") {
    struct promised : ::torch::nn::Module {
      ::torch::Tensor weight = register_parameter(
          "weight", ::torch::empty({3, 4}, ::torch::TensorOptions().device(::torch::kMeta)));
      ::torch::Tensor table = register_buffer(
          "table", ::torch::empty({2}, ::torch::TensorOptions().device(::torch::kMeta)));
    };
    const opened_model made({{"weight", dtype::f16, {3, 4}}, {"table", dtype::f32, {2}}});
    promised net;
    const auto failed = failure_of_load(net, made);
    REQUIRE(failed);
    CHECK(failed->kind() == errc::invalid_request);
    CHECK(says(failed, "meta"));
    CHECK(net.weight.is_meta());

    test::run(torch::load_into(
        net, *made.opened, {.device = ::torch::Device(::torch::kCPU), .dtype = ::torch::kFloat32}));
    CHECK(net.weight.device().is_cpu());
    CHECK(net.weight.requires_grad());
    CHECK(test::has_type(net.weight, ::torch::kFloat32));
    CHECK(net.parameters()[0].is_same(net.weight));
    CHECK(bytes_of(net.table) == test::content_of("table", 8));
    (net.weight.nan_to_num() * 2).sum().backward();
    CHECK(net.weight.grad().sizes() == ::torch::IntArrayRef({3, 4}));
    CHECK(net.weight.grad().device().is_cpu());
  }

  TEST_CASE("entries that share a tensor are loaded by a tensor for one of them") {
    struct tied : ::torch::nn::Module {
      ::torch::Tensor in = register_parameter("in", ::torch::zeros({3}));
      ::torch::Tensor out = register_parameter("out", in);
    };
    const opened_model made({{"out", dtype::f32, {3}}});
    tied net;
    const auto found = test::run(torch::load_into(net, *made.opened));
    CHECK(found.missing_keys.empty());
    CHECK(bytes_of(net.in) == test::content_of("out", 12));
  }

  TEST_CASE("a dtype that torch lacks is refused before anything moves, unless it is skipped") {
    const opened_model made({{"bias", dtype::f32, {3}}, {"weight", dtype::f6_e2m3, {3, 4}}});
    ::torch::nn::Linear layer(4, 3);
    const auto failed = failure_of_load(*layer, made);
    REQUIRE(failed);
    CHECK(failed->kind() == errc::unsupported);
    torch::load_options options{.strict = false};
    options.key_mapping = [](std::string_view name) -> std::optional<std::string> {
      if (name == "weight") return std::nullopt;
      return std::string(name);
    };
    const auto found = test::run(torch::load_into(*layer, *made.opened, std::move(options)));
    CHECK(found.missing_keys == std::vector<std::string>{"weight"});
  }

  TEST_CASE("progress is told to the end") {
    const opened_model made({{"weight", dtype::f32, {3, 4}}, {"bias", dtype::f32, {3}}});
    ::torch::nn::Linear layer(4, 3);
    std::atomic<std::uint64_t> tensors{0};
    torch::load_options options;
    options.on_progress = [&tensors](const progress& now) { tensors = now.tensors; };
    test::run(torch::load_into(*layer, *made.opened, std::move(options)));
    CHECK(tensors == 2);
  }
}

}  // namespace
}  // namespace headrace
