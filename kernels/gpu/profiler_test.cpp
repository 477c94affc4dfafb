// The step profiler's accounts and names of throttle reasons; on the CPU device, so no GPU is needed.
#include "kernels/gpu/profiler.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device/devices.h"
#include "kernels/gpu/telemetry.h"
#include "kernels/testing/catch.h"

namespace precbench {
namespace {

TEST_CASE("StepProfiler: counts every op by class and name and the rest is idle", "[profiler]") {
  const auto device = make_cpu_device(1);
  std::vector<float> x(1000), y(1000), total(1);
  const Tensor tx{x.data(), DType::f32, 10, 100}, ty{y.data(), DType::f32, 10, 100};
  const Tensor out{total.data(), DType::f32, 1, 1};
  struct Counter final : OpObserver {
    void begin(const OpCost&) override { ++begun; }
    void end(const OpCost&) override { ++ended; }
    int begun = 0, ended = 0;
  } counter;
  device->set_observer(&counter);

  StepProfiler profiler(*device);
  profiler.start();
  device->fill({tx, 2.0f});
  device->add({ty, tx});
  device->add({ty, tx});
  device->sum_of_squares({out, ty, false});
  profiler.stop();
  device->fill({tx, 1.0f});  // after stop(): counted by the previous observer only

  const StepProfiler::Result result = profiler.result();
  CHECK(device->observer() == &counter);
  CHECK(counter.begun == 5);
  CHECK(counter.ended == 5);
  REQUIRE(result.ops.size() == 3);
  const auto add = std::find_if(result.ops.begin(), result.ops.end(),
                                [](const auto& op) { return std::string(op.cost.name) == "add"; });
  REQUIRE(add != result.ops.end());
  CHECK(add->calls == 2);
  CHECK(add->cost.bytes == 3 * 4000.0);
  CHECK(std::is_sorted(result.ops.begin(), result.ops.end(),
                       [](const auto& a, const auto& b) { return a.ms > b.ms; }));
  const double busy = std::accumulate(result.class_ms.begin(), result.class_ms.end(), 0.0);
  CHECK(result.class_ms[static_cast<int>(OpClass::optimizer)] > 0);
  CHECK(result.class_ms[static_cast<int>(OpClass::gemm)] == 0);
  CHECK(result.idle_ms >= 0);
  CHECK(std::fabs(busy + result.idle_ms - result.total_ms) < 1e-9 * result.total_ms);

  profiler.start();  // a second step starts from zero
  profiler.stop();
  CHECK(profiler.result().ops.empty());
}

TEST_CASE("StepProfiler: calls of one op are apart by shape and by formats", "[profiler]") {
  const auto device = make_cpu_device(1);
  std::vector<float> values(4096);
  const auto at = [&](DType dtype, std::int64_t rows, std::int64_t cols) {
    return Tensor{values.data(), dtype, rows, cols};
  };
  const auto product = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    device->matmul({at(DType::bf16, m, n), {{}, at(DType::bf16, m, k), {}}, {{}, at(DType::bf16, n, k), {}}});
  };
  StepProfiler profiler(*device);
  profiler.start();
  product(16, 32, 16);
  product(32, 16, 16);  // as many FLOPs and bytes
  product(16, 32, 16);
  profiler.stop();
  const StepProfiler::Result result = profiler.result();
  REQUIRE(result.ops.size() == 2);
  for (const StepProfiler::OpTime& op : result.ops) {
    const bool wide = op.cost.shape[1] == 32;
    CHECK(op.calls == (wide ? 2 : 1));
    CHECK(used_entries(op.cost.shape) ==
          (wide ? std::vector<std::int64_t>{16, 32, 16} : std::vector<std::int64_t>{32, 16, 16}));
    CHECK(formats_text(op.cost).empty());
  }
}

TEST_CASE("StepProfiler: ops that round to more than the step leave an idle time of 0", "[profiler]") {
  /// Spans between marks are 1 ms, but their total is slightly less, due to the ticks of CUDA events.
  struct CoarseClock final : DeviceClock {
    std::size_t mark() override { return marks++; }
    void reset() override { marks = 0; }
    double milliseconds(std::size_t from, std::size_t to) override { return to - from == 1 ? 1.0 : 0.999; }
    std::size_t marks = 0;
  };
  const auto device = make_cpu_device(1);
  std::vector<float> x(10);
  StepProfiler profiler(*device, std::make_unique<CoarseClock>());
  profiler.start();
  device->fill({{x.data(), DType::f32, 1, 10}, 2.0f});
  profiler.stop();
  const StepProfiler::Result result = profiler.result();
  CHECK(result.total_ms == 0.999);
  REQUIRE(result.ops.size() == 1);
  CHECK(result.ops[0].ms == 1);
  CHECK(result.idle_ms == 0);
}

TEST_CASE("gain_between: null for a counter that was reset or is unknown", "[telemetry]") {
  using Energy = std::optional<double>;
  using Errors = std::optional<std::int64_t>;
  CHECK(gain_between(Energy(2), Energy(5)) == 3.0);
  CHECK(gain_between(Errors(2), Errors(2)) == std::int64_t{0});
  CHECK(!gain_between(Energy(5), Energy(2)));
  CHECK(!gain_between(Errors(1), Errors(0)));
  CHECK(!gain_between(Errors(), Errors(1)));
  CHECK(!gain_between(Errors(1), Errors()));
}

TEST_CASE("StepProfiler: restores the observer when it goes out of scope during a step", "[profiler]") {
  const auto device = make_cpu_device(1);
  {
    StepProfiler profiler(*device);
    profiler.start();
    CHECK(device->observer() == &profiler);
  }
  CHECK(device->observer() == nullptr);
}

TEST_CASE("throttle_reason_names: reasons have names and idle is not throttling", "[telemetry]") {
  CHECK(throttle_reason_names(0).empty());
  CHECK(throttle_reason_names(0x1).empty());
  CHECK(throttle_reason_names(0x44) == std::vector<std::string>{"sw_power_cap", "hw_thermal_slowdown"});
}

TEST_CASE("NvmlGpu: null for a GPU that does not exist", "[telemetry]") {
  CHECK(NvmlGpu::open("ffffffff:ff:1f.0") == nullptr);
}

}  // namespace
}  // namespace precbench
