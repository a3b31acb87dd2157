#include <headrace/device/copy_engine.hpp>

#include "fake_machine.hpp"

#include <headrace/coro/async_scope.hpp>
#include <headrace/coro/with.hpp>
#include <headrace/device/cuda_device.hpp>
#include <headrace/device/staging_pool.hpp>

#include <doctest/doctest.h>
#include <support/checkpoint.hpp>
#include <support/test_loop.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace headrace;
using namespace std::chrono_literals;
using test::driver;
using test::fake_machine;
using test::replaced;
using test::test_loop;

namespace {

task<result<allocated_batch>> allocate(std::shared_ptr<allocator> from, device where,
                                       std::size_t size) {
  std::vector<std::size_t> sizes(1, size);
  co_return co_await from->allocate(where, std::move(sizes));
}

task<result<staging_slot>> acquire(staging_pool* pool) { co_return co_await pool->acquire(); }

/// An engine with a slot of staging memory and a block of device memory of the same size.
class copying {
 public:
  static constexpr std::size_t size = 64_KiB;

  explicit copying(std::uint32_t index = 0)
      : device(cuda_device::open(index).value()),
        staging({.slots = 4, .slot_size = size}, device, here.helpers),
        slot(here.run(acquire(&staging)).value()),
        memory(device->memory(here.helpers, nullptr, 0)),
        batch(here.run(allocate(memory, cuda(index), size)).value()),
        engine(make_cuda_copy_engine(here.loop, device).value()) {
    REQUIRE(engine->follow(batch.stream).has_value());
    fill("first");
  }

  void fill(std::string_view name) const {
    const std::string content = test::content_of(name, size);
    std::memcpy(slot.bytes().data(), content.data(), size);
  }

  [[nodiscard]] std::byte* target() const { return batch.blocks[0].data(); }

  /// The part of the whole that begins at `offset`.
  [[nodiscard]] copy_piece piece(std::size_t offset, std::size_t length) const {
    return {target() + offset, slot.bytes().data() + offset, length};
  }
  [[nodiscard]] copy_piece whole() const { return piece(0, size); }

  test_loop here;
  std::shared_ptr<cuda_device> device;
  staging_pool staging;
  staging_slot slot;
  std::shared_ptr<allocator> memory;
  allocated_batch batch;
  std::unique_ptr<copy_engine> engine;
};

using outcome = std::optional<result<void>>;

task<> copy_into(copy_engine* engine, std::vector<copy_piece> pieces, outcome* out) {
  auto copied = co_await engine->copy(pieces);
  out->emplace(std::move(copied));
}

task<result<void>> copy(copy_engine* engine, std::vector<copy_piece> pieces) {
  co_return co_await engine->copy(pieces);
}

/// Copies once, and overwrites the slot as soon as that has ended.
task<result<void>> copy_and_overwrite(copying* by, std::vector<copy_piece> pieces) {
  auto copied = co_await by->engine->copy(pieces);
  std::memset(by->slot.bytes().data(), 0x5a, copying::size);
  co_return copied;
}

task<> round() { co_await sleep_for(0ns); }

task<> rounds(unsigned count) {
  for (unsigned at = 0; at < count; ++at) co_await round();
}

/// Host functions that were launched and are called when the test says so.
class kept_back {
 public:
  kept_back() { all().clear(); }

  [[nodiscard]] static std::size_t count() {
    const std::lock_guard lock(mutex());
    return all().size();
  }

  /// Calls them in turn, on a thread that is not the loop's, once what is before them has ended.
  static void call(const fake_machine& machine) {
    machine.settle();
    std::thread([] {
      std::vector<std::pair<CUhostFn, void*>> taken;
      {
        const std::lock_guard lock(mutex());
        taken.swap(all());
      }
      for (const auto& [function, data] : taken) function(data);
    }).join();
  }

 private:
  static CUresult CUDAAPI keep(CUstream, CUhostFn function, void* data) {
    const std::lock_guard lock(mutex());
    all().emplace_back(function, data);
    return CUDA_SUCCESS;
  }
  static std::vector<std::pair<CUhostFn, void*>>& all() {
    static std::vector<std::pair<CUhostFn, void*>> kept;
    return kept;
  }
  static std::mutex& mutex() {
    static std::mutex only;
    return only;
  }

  replaced<decltype(&::cuLaunchHostFunc)> entry_{&detail::cuda_driver::cuLaunchHostFunc, &keep};
};

task<> in_one_turn(copying* by, std::vector<outcome>* all) {
  async_scope scope;
  for (std::size_t at = 0; at < all->size(); ++at) {
    const std::size_t part = copying::size / all->size();
    std::vector<copy_piece> pieces(1, by->piece(at * part, part));
    scope.spawn(by->here.loop, copy_into(by->engine.get(), std::move(pieces), &(*all)[at]));
  }
  co_await scope.join();
}

task<> in_turns(copying* by, unsigned count) {
  for (unsigned at = 0; at < count; ++at) {
    std::vector<copy_piece> pieces(1, by->piece(at * 4096, 4096));
    auto copied = co_await by->engine->copy(pieces);
    CHECK(copied.has_value());
  }
}

/// Two batches land while the loop is busy.
task<> landed_meanwhile(copying* by, const fake_machine* machine, outcome* first, outcome* second) {
  async_scope scope;
  std::vector<copy_piece> one(1, by->piece(0, 4096));
  scope.spawn(by->here.loop, copy_into(by->engine.get(), std::move(one), first));
  while (kept_back::count() < 1) co_await round();
  std::vector<copy_piece> other(1, by->piece(4096, 4096));
  scope.spawn(by->here.loop, copy_into(by->engine.get(), std::move(other), second));
  while (kept_back::count() < 2) co_await round();
  kept_back::call(*machine);
  CHECK_FALSE(first->has_value());
  co_await scope.join();
}

task<> lost_while_out(copying* by, const fake_machine* machine, CUresult code,
                      std::vector<outcome>* all) {
  async_scope scope;
  for (outcome& one : *all) {
    std::vector<copy_piece> pieces(1, by->piece(0, 4096));
    scope.spawn(by->here.loop, copy_into(by->engine.get(), std::move(pieces), &one));
    co_await rounds(3);
  }
  machine->lose(0, code);
  co_await scope.join();
}

/// The host function is called once the watchdog has ended the batch and a new one is out.
task<> called_late(copying* by, const fake_machine* machine) {
  std::vector<copy_piece> pieces(1, by->whole());
  auto given_up = co_await by->engine->copy(pieces);
  CHECK(given_up.has_value());
  REQUIRE(kept_back::count() == 1);
  kept_back::call(*machine);
  co_await rounds(3);
  outcome next;
  async_scope scope;
  scope.spawn(by->here.loop, copy_into(by->engine.get(), pieces, &next));
  while (kept_back::count() < 1) co_await round();
  co_await rounds(3);
  CHECK_FALSE(next.has_value());
  kept_back::call(*machine);
  co_await scope.join();
  CHECK(next->has_value());
}

/// The streams of an engine that is made meanwhile, in the order of their making.
class noted_streams {
 public:
  noted_streams() { all().clear(); }

  static std::vector<CUstream>& all() {
    static std::vector<CUstream> made;
    return made;
  }

 private:
  static CUresult CUDAAPI make(CUstream* out, unsigned flags) {
    const CUresult code = original()(out, flags);
    if (code == CUDA_SUCCESS) all().push_back(*out);
    return code;
  }
  static decltype(&::cuStreamCreate)& original() {
    static decltype(&::cuStreamCreate) entry = driver().cuStreamCreate;
    return entry;
  }

  const decltype(&::cuStreamCreate) before_ = original();
  replaced<decltype(&::cuStreamCreate)> entry_{&detail::cuda_driver::cuStreamCreate, &make};
};

task<> held_up(copying* by, const fake_machine* machine, CUstream signals) {
  machine->hold(signals);
  std::vector<copy_piece> pieces(1, by->whole());
  auto given_up = co_await by->engine->copy(pieces);
  CHECK(given_up.has_value());
  CHECK(machine->count("host_functions") == 0);
  // The late word and that of the next copy come one after the other.
  machine->let_go(signals);
  auto next = co_await by->engine->copy(pieces);
  CHECK(next.has_value());
  CHECK(machine->count("host_functions") == 2);
}

task<> stopped_meanwhile(copying* by, const fake_machine* machine, outcome* copied) {
  std::stop_source stopped;
  async_scope scope;
  std::vector<copy_piece> pieces(1, by->whole());
  machine->hold();
  scope.spawn(by->here.loop,
              with_stop(stopped.get_token(), copy_into(by->engine.get(), pieces, copied)));
  co_await rounds(3);
  stopped.request_stop();
  co_await rounds(3);
  CHECK_FALSE(copied->has_value());
  machine->let_go();
  co_await scope.join();
}

/// Owns its engine, which goes the moment that the copy has ended.
task<result<void>> last_copy(std::unique_ptr<copy_engine> engine, std::vector<copy_piece> pieces) {
  auto copied = co_await engine->copy(pieces);
  engine.reset();
  co_return copied;
}

/// Copies as workers do, all with one engine.
task<> work(copying* by, std::size_t number, unsigned times) {
  auto slot = co_await by->staging.acquire();
  REQUIRE(slot.has_value());
  for (unsigned time = 0; time < times; ++time) {
    constexpr std::size_t part = 1024;
    const std::string content = test::content_of("worker", part, number * 1000 + time);
    std::memcpy(slot->bytes().data(), content.data(), part);
    std::vector<copy_piece> pieces;
    pieces.push_back({by->target() + number * part, slot->bytes().data(), part / 2});
    pieces.push_back({by->target() + number * part + part / 2, slot->bytes().data() + part / 2, 0});
    pieces.push_back(
        {by->target() + number * part + part / 2, slot->bytes().data() + part / 2, part / 2});
    auto copied = co_await by->engine->copy(pieces);
    REQUIRE(copied.has_value());
  }
}

task<> many_work(copying* by, unsigned workers, unsigned times) {
  async_scope scope;
  for (unsigned number = 0; number < workers; ++number)
    scope.spawn(by->here.loop, work(by, number, times));
  co_await scope.join();
}

/// The copies of one engine wait for a stream, those of another do not.
task<> behind_a_stream(copying* by, copy_engine* other, std::atomic<bool>* open,
                       const fake_machine* machine) {
  outcome behind;
  async_scope scope;
  std::vector<copy_piece> first(1, by->piece(0, 4096));
  scope.spawn(by->here.loop, copy_into(by->engine.get(), std::move(first), &behind));
  co_await rounds(2);
  std::vector<copy_piece> second(1, by->piece(4096, 4096));
  auto copied = co_await other->copy(second);
  CHECK(copied.has_value());
  CHECK(machine->count("copies") == 1);
  CHECK_FALSE(behind.has_value());
  open->store(true);
  co_await scope.join();
  CHECK(behind->has_value());
  CHECK(machine->count("copies") == 2);
}

void wait_here(void* open) {
  while (!static_cast<std::atomic<bool>*>(open)->load()) std::this_thread::yield();
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("the host's engine copies pieces within host memory") {
    test_loop here;
    const auto engine = make_host_copy_engine();
    const std::string from = test::content_of("host", 100);
    std::string to(100, '\0');
    const auto* const source = reinterpret_cast<const std::byte*>(from.data());
    auto* const target = reinterpret_cast<std::byte*>(to.data());
    std::vector<copy_piece> pieces;
    pieces.push_back({target + 60, source + 60, 40});
    pieces.push_back({nullptr, nullptr, 0});
    pieces.push_back({target, source, 60});
    CHECK(here.run(copy(engine.get(), pieces)).has_value());
    CHECK(to == from);
    CHECK(engine->statistics().pieces == 3);
    CHECK(engine->statistics().bytes == 100);
    CHECK(engine->statistics().batches == 1);
    CHECK(engine->statistics().wake_ups == 0);
    CHECK(engine->follow(nullptr).has_value());
  }

  TEST_CASE("what has landed is what the slot held, and the slot may be used again") {
    const fake_machine machine("delay_us=300");
    copying by;
    CHECK(
        by.here.run(copy_and_overwrite(&by, {by.piece(0, 100), by.piece(100, copying::size - 100)}))
            .has_value());
    CHECK(machine.bytes(by.target(), copying::size) == test::content_of("first", copying::size));
    CHECK(by.engine->statistics().bytes == copying::size);
    CHECK(by.engine->statistics().pieces == 2);
  }

  TEST_CASE("copies of one turn of the loop are one batch, one host function, one wake-up") {
    const fake_machine machine("delay_us=100");
    copying by;
    std::vector<outcome> all(16);
    by.here.run(in_one_turn(&by, &all));
    for (const outcome& one : all) CHECK(one->has_value());
    CHECK(machine.bytes(by.target(), copying::size) == test::content_of("first", copying::size));
    const auto done = by.engine->statistics();
    CHECK(done.pieces == 16);
    CHECK(done.batches == 1);
    CHECK(done.wake_ups == 1);
    CHECK(machine.count("cuLaunchHostFunc") == 1);
    CHECK(machine.count("host_functions") == 1);
  }

  TEST_CASE("events and batches are used again") {
    const fake_machine machine;
    copying by;
    const auto before = machine.count("cuEventCreate");
    by.here.run(in_turns(&by, 10));
    CHECK(machine.count("cuEventCreate") == before + 1);
    CHECK(by.engine->statistics().batches == 10);
    CHECK(by.engine->statistics().wake_ups == 10);
  }

  TEST_CASE("batches that land while the loop is busy wake it once") {
    const fake_machine machine;
    copying by;
    const kept_back functions;
    outcome first;
    outcome second;
    by.here.run(landed_meanwhile(&by, &machine, &first, &second));
    CHECK(first->has_value());
    CHECK(second->has_value());
    CHECK(by.engine->statistics().batches == 2);
    CHECK(by.engine->statistics().wake_ups == 1);
  }

  TEST_CASE("many workers share an engine, and every byte lands where it belongs") {
    for (unsigned seed = 1; seed <= 5; ++seed) {
      const fake_machine machine("delay_us=100 seed=" + std::to_string(seed));
      copying by;
      by.slot.reset();
      constexpr unsigned workers = 4;
      constexpr unsigned times = 25;
      by.here.run(many_work(&by, workers, times));
      for (unsigned number = 0; number < workers; ++number) {
        CHECK(machine.bytes(by.target() + number * 1024, 1024) ==
              test::content_of("worker", 1024, number * 1000 + times - 1));
      }
      const auto done = by.engine->statistics();
      CHECK(done.bytes == workers * times * 1024);
      CHECK(done.wake_ups <= done.batches);
      CHECK(machine.count("host_functions") == done.batches);
    }
  }

  TEST_CASE("a copy of nothing is over at once") {
    const fake_machine machine;
    copying by;
    CHECK(by.here.run(copy(by.engine.get(), {})).has_value());
    CHECK(
        by.here.run(copy(by.engine.get(), {{by.target(), by.slot.bytes().data(), 0}})).has_value());
    CHECK(by.engine->statistics().batches == 0);
  }

  TEST_CASE("engines of several devices copy side by side") {
    const fake_machine machine("devices=2 delay_us=100");
    copying first(0);
    copying second(1);
    second.fill("second");
    CHECK(first.here.run(copy(first.engine.get(), {first.whole()})).has_value());
    CHECK(second.here.run(copy(second.engine.get(), {second.whole()})).has_value());
    CHECK(machine.bytes(first.target(), copying::size) == test::content_of("first", copying::size));
    CHECK(machine.bytes(second.target(), copying::size) ==
          test::content_of("second", copying::size));
  }

  TEST_CASE("an engine leaves no context current, and breaks no capture that is under way") {
    const fake_machine machine;
    copying by;
    machine.capture(nullptr, true);
    CHECK(machine.depth() == 0);
    CHECK(by.here.run(copy(by.engine.get(), {by.whole()})).has_value());
    CHECK(machine.depth() == 0);
    CHECK(by.engine->follow(by.batch.stream).has_value());
    by.engine.reset();
    CHECK(machine.depth() == 0);
    machine.capture(nullptr, false);
  }

  TEST_CASE("copies run after what is queued on a stream that they follow") {
    const fake_machine machine;
    copying by;
    const auto other = make_cuda_copy_engine(by.here.loop, by.device).value();
    REQUIRE(other->follow(by.batch.stream).has_value());
    std::atomic<bool> open = false;
    CUcontext context = nullptr;
    REQUIRE(driver().cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(driver().cuCtxPushCurrent(context) == CUDA_SUCCESS);
    CUstream stream = nullptr;
    REQUIRE(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(driver().cuLaunchHostFunc(stream, &wait_here, &open) == CUDA_SUCCESS);
    std::thread([&] { CHECK(by.engine->follow(stream).has_value()); }).join();
    by.here.run(behind_a_stream(&by, other.get(), &open, &machine));
    CHECK(driver().cuStreamDestroy(stream) == CUDA_SUCCESS);
    CHECK(driver().cuCtxPopCurrent(&context) == CUDA_SUCCESS);
    CHECK(driver().cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
  }

  TEST_CASE("following what cannot be followed is an invalid request, and harms nothing") {
    const fake_machine machine("devices=2");
    copying by;
    CUcontext context = nullptr;
    REQUIRE(driver().cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(driver().cuCtxPushCurrent(context) == CUDA_SUCCESS);
    CUstream stream = nullptr;
    REQUIRE(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    const auto refused = [&](CUstream one) {
      const auto followed = by.engine->follow(one);
      return !followed && followed.error().kind() == errc::invalid_request;
    };
    CHECK_FALSE(refused(stream));
    machine.capture(stream, true);
    CHECK(refused(stream));
    machine.capture(stream, false);
    CHECK(refused(CU_STREAM_PER_THREAD));
    CHECK(driver().cuStreamDestroy(stream) == CUDA_SUCCESS);
    CHECK(refused(stream));
    CHECK(by.here.run(copy(by.engine.get(), {by.whole()})).has_value());
    CHECK(driver().cuCtxPopCurrent(&context) == CUDA_SUCCESS);
    CHECK(driver().cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
  }

  TEST_CASE("a stop does not cut a copy short") {
    const fake_machine machine;
    copying by;
    outcome copied;
    by.here.run(stopped_meanwhile(&by, &machine, &copied));
    CHECK(copied->has_value());
  }

  TEST_CASE("an engine may go as soon as its last copy has ended") {
    const fake_machine machine;
    copying by;
    for (unsigned time = 0; time < 20; ++time) {
      CHECK(by.here.run(last_copy(std::move(by.engine), {by.whole()})).has_value());
      by.engine = make_cuda_copy_engine(by.here.loop, by.device).value();
    }
  }

  // The watchdog

  TEST_CASE("a context that is dead before a copy is queued fails it at once") {
    const fake_machine machine;
    copying by;
    machine.lose(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    const auto copied = by.here.run(copy_and_overwrite(&by, {by.whole()}));
    REQUIRE_FALSE(copied);
    CHECK(copied.error().kind() == errc::unavailable);
    CHECK(copied.error().message().find("cannot copy to cuda:0") != std::string::npos);
    CHECK(copied.error().message().find("start the process anew") != std::string::npos);
  }

  TEST_CASE("a context that dies while copies are out fails all of them") {
    for (const CUresult code : {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_ECC_UNCORRECTABLE,
                                CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_UNKNOWN}) {
      const fake_machine machine;
      copying by;
      std::vector<outcome> all(3);
      machine.hold();
      by.here.run(lost_while_out(&by, &machine, code, &all));
      for (const outcome& one : all) {
        REQUIRE(one.has_value());
        REQUIRE_FALSE(one->has_value());
        CHECK(one->error().kind() == errc::unavailable);
      }
      CHECK(by.engine->statistics().wake_ups == 0);
      machine.let_go();
    }
  }

  TEST_CASE("a copy that kills its own context fails") {
    const fake_machine machine("fail_copy=2=700");
    copying by;
    const auto copied =
        by.here.run(copy(by.engine.get(), {by.piece(0, 4096), by.piece(4096, 4096)}));
    REQUIRE_FALSE(copied);
    CHECK(copied.error().kind() == errc::unavailable);
  }

  TEST_CASE("a batch of which the driver never says a word ends all the same") {
    const fake_machine machine;
    const kept_back functions;
    {
      copying by;
      CHECK(by.here.run(copy_and_overwrite(&by, {by.whole()})).has_value());
      CHECK(machine.bytes(by.target(), copying::size) == test::content_of("first", copying::size));
      CHECK(by.engine->statistics().wake_ups == 0);
    }
    // And when it does speak, the engine and the loop are gone.
    CHECK(kept_back::count() == 1);
    kept_back::call(machine);
  }

  TEST_CASE("a word that comes late touches nothing of the copies that are out then") {
    const fake_machine machine;
    const kept_back functions;
    copying by;
    by.here.run(called_late(&by, &machine));
    CHECK(by.engine->statistics().wake_ups == 1);
  }

  TEST_CASE("host functions of somebody else's that hold up the driver do not hold up copies") {
    const fake_machine machine;
    copying by;
    std::vector<CUstream> streams;
    {
      const noted_streams noted;
      by.engine = make_cuda_copy_engine(by.here.loop, by.device).value();
      streams = noted_streams::all();
    }
    REQUIRE(streams.size() == 2);
    machine.settle();
    by.here.run(held_up(&by, &machine, streams[1]));
    CHECK(by.engine->statistics().wake_ups == 1);
  }

  TEST_CASE("a word that comes after the context has died touches nothing") {
    const fake_machine machine;
    const kept_back functions;
    {
      copying by;
      std::vector<outcome> all(2);
      machine.hold();
      by.here.run(lost_while_out(&by, &machine, CUDA_ERROR_LAUNCH_FAILED, &all));
      machine.let_go();
      for (const outcome& one : all) CHECK_FALSE(one->has_value());
    }
    kept_back::call(machine);
  }

  TEST_CASE("each call of a copy may fail, which ends it with what was queued before") {
    // The number says which call of it, from the first of the engine's copying on.
    for (const auto& [call, which] :
         std::vector<std::pair<std::string, unsigned>>{{"cuCtxPushCurrent_v2", 1},
                                                       {"cuCtxPushCurrent_v2", 2},
                                                       {"cuMemcpyHtoDAsync_v2", 1},
                                                       {"cuMemcpyHtoDAsync_v2", 2},
                                                       {"cuMemcpyHtoDAsync_v2", 3},
                                                       {"cuEventCreate", 1},
                                                       {"cuEventRecord", 1},
                                                       {"cuStreamWaitEvent", 1},
                                                       {"cuLaunchHostFunc", 1}}) {
      CAPTURE(call);
      CAPTURE(which);
      // Slow enough that what was queued is still under way when the call fails.
      const fake_machine machine("delay_us=20000");
      copying by;
      machine.settle();
      machine.configure("fail=" + call + ":" + std::to_string(machine.count(call.c_str()) + which) +
                        "=802");
      const auto failed = by.here.run(
          copy_and_overwrite(&by, {by.piece(0, 4096), by.piece(4096, 4096), by.piece(8192, 4096)}));
      REQUIRE_FALSE(failed);
      CHECK(failed.error().kind() == errc::unavailable);
      CHECK(failed.error().message().find(" 802)") != std::string::npos);
      // Nothing was lost over it.
      by.fill("again");
      CHECK(by.here.run(copy_and_overwrite(&by, {by.whole()})).has_value());
      CHECK(machine.bytes(by.target(), copying::size) == test::content_of("again", copying::size));
    }
  }

  TEST_CASE("a batch whose event cannot be asked ends with the stream, and with that error") {
    const fake_machine machine("delay_us=20000");
    const kept_back functions;
    copying by;
    machine.settle();
    machine.configure("fail=cuEventQuery:1+=802");
    const auto failed = by.here.run(copy_and_overwrite(&by, {by.whole()}));
    REQUIRE_FALSE(failed);
    CHECK(failed.error().kind() == errc::unavailable);
    machine.configure("fail=");
    kept_back::call(machine);
  }

  TEST_CASE("making an engine fails with what the driver says, at each call, and leaves nothing") {
    const fake_machine machine;
    test_loop here;
    const auto device = cuda_device::open(0).value();
    for (const auto& [call, which] :
         std::vector<std::pair<std::string, unsigned>>{{"cuCtxPushCurrent_v2", 1},
                                                       {"cuStreamCreate", 1},
                                                       {"cuStreamCreate", 2},
                                                       {"cuEventCreate", 1}}) {
      CAPTURE(call);
      machine.configure("fail=" + call + ":" + std::to_string(machine.count(call.c_str()) + which) +
                        "=2");
      const auto made = make_cuda_copy_engine(here.loop, device);
      REQUIRE_FALSE(made);
      CHECK(made.error().kind() == errc::out_of_memory);
      CHECK(machine.count("streams") == 0);
      CHECK(machine.count("events") == 0);
    }
  }
}
