#include <headrace/stream/tensor.hpp>

#include "stream/dlpack.hpp"
#include "stream/runtime_state.hpp"
#include "streaming.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace headrace {
namespace {

using test::checkpoint;
using test::temporary_directory;
using test::wanted_tensor;

task<tensor> first_of(async_generator<tensor>* tensors) {
  auto* const t = co_await tensors->next();
  REQUIRE(t != nullptr);
  tensor taken = std::move(*t);
  co_await tensors->close();
  co_return taken;
}

/// A model of one tensor, and that tensor taken out.
struct taken {
  temporary_directory place;
  wanted_tensor wanted;
  std::unique_ptr<runtime> engine = std::make_unique<runtime>(runtime_options{.threads = 1});
  std::optional<model> opened;
  tensor out;

  explicit taken(wanted_tensor one, std::vector<slice_extent> slice = {}) : wanted(std::move(one)) {
    place.write("model.safetensors", test::safetensors_file({wanted}));
    opened = test::run(open(*engine, place.path()));
    auto tensors = opened->stream({.tensors = {{wanted.name, std::move(slice)}}});
    out = test::run(first_of(&tensors));
  }

  [[nodiscard]] memory_usage usage() const { return engine->state()->memory().usage(); }
};

TEST_SUITE("unit") {
  TEST_CASE("a tensor owns its memory and outlives model and runtime") {
    taken one({"weight", dtype::f32, {300, 400}});
    CHECK(test::is(one.out, one.wanted));
    CHECK(reinterpret_cast<std::uintptr_t>(one.out.bytes().data()) % 64 == 0);
    CHECK(one.usage().held >= one.wanted.size());
    tensor moved = std::move(one.out);
    CHECK(one.out.bytes().empty());
    CHECK(one.out.name().empty());
    CHECK(one.out.shape().empty());
    one.opened.reset();
    one.engine.reset();
    CHECK(test::is(moved, one.wanted));
    moved.bytes()[0] = std::byte{1};
    std::thread([t = std::move(moved)]() mutable { t = tensor(); }).join();
  }

  TEST_CASE("an empty tensor is one without anything") {
    const tensor none;
    CHECK(none.name().empty());
    CHECK(none.bytes().empty());
    CHECK(none.shape().empty());
  }

  TEST_CASE("a slice has the slice's shape") {
    const taken one({"weight", dtype::f32, {30, 40}}, {{10, 20}, {0, 5}});
    CHECK(std::vector<std::uint64_t>(one.out.shape().begin(), one.out.shape().end()) ==
          std::vector<std::uint64_t>{10, 5});
    CHECK(one.out.bytes().size() == 200);
    const auto whole = test::content_of("weight", 4800);
    CHECK(test::text_of(one.out).substr(0, 20) == whole.substr(1600, 20));
    CHECK(test::text_of(one.out).substr(20, 20) == whole.substr(1760, 20));
  }

  TEST_CASE("what next() exposes is the stream's; what is moved out is the user's own") {
    const temporary_directory place;
    const checkpoint expected{
        {{"model.safetensors", {{"a", dtype::u8, {200'000}}, {"b", dtype::u8, {200'000}}}}}};
    place.write(expected);
    runtime engine({.threads = 1});
    const model opened = test::run(open(engine, place.path()));
    auto& pool = engine.state()->memory();
    auto tensors = opened.stream({.order = delivery::requested});
    tensor* exposed = test::run(tensors.next());
    REQUIRE(exposed != nullptr);
    CHECK(pool.usage().live >= 200'000);
    CHECK(pool.usage().held == 0);
    tensor kept = std::move(*exposed);
    CHECK(pool.usage().held == host_arena::footprint(200'000));
    exposed = test::run(tensors.next());
    REQUIRE(exposed != nullptr);
    CHECK(test::is(*exposed, *expected.find("b")));
    std::swap(kept, *exposed);
    CHECK(test::is(kept, *expected.find("b")));
    CHECK(test::run(tensors.next()) == nullptr);
    CHECK(pool.usage().live == 0);
    CHECK(pool.usage().held == host_arena::footprint(200'000));
    kept = tensor();
    CHECK(pool.usage().held == 0);
  }

  TEST_CASE("DLPack hands over memory, shape and type, and gives them back once") {
    taken one({"weight", dtype::bf16, {30, 40, 5}});
    const auto* const data = one.out.bytes().data();
    const auto held = one.usage().held;
    DLManagedTensorVersioned* const exported = std::move(one.out).to_dlpack();
    REQUIRE(exported != nullptr);
    CHECK(one.out.bytes().empty());
    CHECK(exported->version.major == 1);
    CHECK(exported->flags == 0);
    const DLTensor& is = exported->dl_tensor;
    CHECK(is.data == data);
    CHECK(is.device.device_type == dlpack::device_cpu);
    CHECK(is.byte_offset == 0);
    CHECK(is.ndim == 3);
    CHECK(std::vector<std::int64_t>(is.shape, is.shape + 3) ==
          std::vector<std::int64_t>{30, 40, 5});
    CHECK(std::vector<std::int64_t>(is.strides, is.strides + 3) ==
          std::vector<std::int64_t>{200, 5, 1});
    CHECK(is.dtype.code == dlpack::type_bfloat);
    CHECK(is.dtype.bits == 16);
    CHECK(is.dtype.lanes == 1);
    CHECK(one.usage().held == held);
    // Beyond the engine's end, on another thread: as a framework may do.
    one.opened.reset();
    const auto state = one.engine->state();
    one.engine.reset();
    CHECK(std::string(static_cast<const char*>(is.data), 12000) ==
          test::content_of("weight", 12000));
    std::thread([exported] { exported->deleter(exported); }).join();
    CHECK(state->memory().usage().held == 0);
  }

  TEST_CASE("the older structure says the same") {
    taken one({"weight", dtype::i64, {}});
    DLManagedTensor* const exported = std::move(one.out).to_dlpack_legacy();
    CHECK(exported->dl_tensor.ndim == 0);
    CHECK(exported->dl_tensor.dtype.code == dlpack::type_int);
    CHECK(exported->dl_tensor.dtype.bits == 64);
    CHECK(std::string(static_cast<const char*>(exported->dl_tensor.data), 8) ==
          test::content_of("weight", 8));
    exported->deleter(exported);
  }

  TEST_CASE("every dtype that DLPack knows has its code, the packed ones none") {
    for (std::size_t number = 0; number < dtype_count; ++number) {
      const auto type = static_cast<dtype>(number);
      CAPTURE(to_string(type));
      taken one({"weight", type, {8, 4}});
      const bool packed = type == dtype::f4 || type == dtype::f6_e2m3 || type == dtype::f6_e3m2;
      if (packed) {
        const auto failed =
            test::failure_of([&] { static_cast<void>(std::move(one.out).to_dlpack()); });
        REQUIRE(failed);
        CHECK(failed->kind() == errc::unsupported);
        CHECK(test::is(one.out, one.wanted));
        continue;
      }
      auto* const exported = std::move(one.out).to_dlpack();
      CHECK(exported->dl_tensor.dtype.bits == bits(type));
      const std::string_view name = to_string(type);
      const auto code = exported->dl_tensor.dtype.code;
      if (name.starts_with("I")) CHECK(code == 0);
      if (name.starts_with("U")) CHECK(code == 1);
      if (name == "F16" || name == "F32" || name == "F64") CHECK(code == 2);
      if (name == "BOOL") CHECK(code == 6);
      if (name.starts_with("F8")) CHECK(code >= 10);
      exported->deleter(exported);
    }
  }

  TEST_CASE("a tensor of nothing can be exported") {
    taken one({"none", dtype::f32, {3, 0, 2}});
    CHECK(one.out.bytes().empty());
    auto* const exported = std::move(one.out).to_dlpack();
    CHECK(exported->dl_tensor.ndim == 3);
    CHECK(exported->dl_tensor.shape[1] == 0);
    exported->deleter(exported);
  }
}

}  // namespace
}  // namespace headrace
