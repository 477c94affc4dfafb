// Helpers of programs that time ops: an op's median time and rate relative to the copy ceiling, and operands.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/device/buffers.h"
#include "kernels/gpu/graph.h"

namespace precbench {

inline constexpr int kRuns = 9;
inline constexpr double kSampleMs = 0.5;
inline constexpr int kMostInner = 16;

/// Remembers the cost of the last op, which Device accounts for every device alike.
class LastCost final : public OpObserver {
 public:
  void begin(const OpCost& op) override { cost = op; }
  void end(const OpCost&) override {}
  OpCost cost;
};

/// How a sample's runs are launched: one by one, or captured once and replayed, like a step.
enum class Launch { each, captured };

class Bench {
 public:
  explicit Bench(Device& on, Launch how = Launch::each)
      : device(on), clock_(make_device_clock(on)), how_(how) {
    device.set_observer(&cost_);
  }
  ~Bench() { device.set_observer(nullptr); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  /// Returns the median milliseconds of one op, after two warm-up runs that make plans and scratch. An op
  /// shorter than kSampleMs is repeated within a sample, as ops follow each other in a step, so that event
  /// overhead is not measured.
  double median_ms(const std::function<void()>& op) {
    const double once = sample_ms(1, 2, op).back();
    const int inner = std::clamp(static_cast<int>(kSampleMs / once), 1, kMostInner);
    std::vector<double> ms = sample_ms(inner, kRuns, op);
    std::sort(ms.begin(), ms.end());
    return ms[kRuns / 2];
  }
  const OpCost& cost() const { return cost_.cost; }

  Device& device;

 private:
  /// Returns the milliseconds of one op in each of `samples` samples of `inner` runs.
  std::vector<double> sample_ms(int inner, int samples, const std::function<void()>& op) {
    const auto runs = [&] {
      for (int run = 0; run < inner; ++run) op();
    };
    std::unique_ptr<StepGraph> graph;
    if (how_ == Launch::captured && inner > 1) graph = capture_step(device, runs);
    clock_->reset();
    for (int i = 0; i < samples; ++i) {
      clock_->mark();
      graph ? graph->replay() : runs();
      clock_->mark();
    }
    device.synchronize();
    std::vector<double> ms;
    for (int i = 0; i < samples; ++i) ms.push_back(clock_->milliseconds(2 * i, 2 * i + 1) / inner);
    return ms;
  }

  std::unique_ptr<DeviceClock> clock_;
  const Launch how_;
  LastCost cost_;
};

inline Tensor random_bf16(Buffers& buffers, Device& device, std::int64_t rows, std::int64_t cols,
                          std::uint64_t seed) {
  const Tensor x = buffers.tensor(DType::bf16, rows, cols);
  device.init_normal({x, 1.0f, seed, 0});
  return x;
}

/// Prints an op's rate relative to the copy ceiling, or its error. `more_bytes`: necessary bytes beyond
/// reading or writing each operand once.
inline void report(Bench& bench, double ceiling, const std::string& name, const std::function<void()>& op,
                   double more_bytes = 0) {
  try {
    const double ms = bench.median_ms(op);
    const OpCost cost = bench.cost();
    const double rate = (cost.bytes + more_bytes) / ms / 1e6;
    fmt::print("{:>42} {:9.3f} ms {:8.0f} GB/s {:5.0f}%", name, ms, rate, 100 * rate / ceiling);
    if (cost.flops > 0) fmt::print(" {:7.0f} TFLOP/s", cost.flops / ms / 1e9);
    fmt::print("\n");
  } catch (const Unsupported& refusal) {
    fmt::print("{:>42} unsupported: {}\n", name, refusal.what());
  }
  std::fflush(stdout);
}

/// Returns the copies that a recipe requests of an activation: rowwise for fprop or dgrad, columnwise for
/// wgrad.
inline QuantizedTensor wanted(Device& device, Buffers& buffers, const Tensor& value, const QuantFormat& row,
                              const QuantFormat& col) {
  QuantizedTensor operand{.value = value};
  if (row.quantized()) operand.rowwise = buffers.form(row, value.rows, value.cols);
  if (col.quantized()) operand.columnwise = buffers.form(col, value.cols, value.rows);
  if (row.granularity == Granularity::tensor || col.granularity == Granularity::tensor)
    operand.amax_out = buffers.tensor(DType::f32, 1, 1);
  if (row.delayed() || col.delayed()) {
    operand.amax_in = buffers.tensor(DType::f32, 1, 1);
    device.fill({operand.amax_in, 4.0f});
    device.zero({operand.amax_out});
  }
  return operand;
}

/// Returns the GB/s of copying an array larger than any cache.
inline double copy_ceiling(Bench& bench) {
  Buffers buffers(bench.device);
  const Tensor from = random_bf16(buffers, bench.device, 32768, 32768, 1);
  const Tensor to = buffers.tensor(DType::bf16, 32768, 32768);
  const double ms = bench.median_ms([&] { bench.device.convert({to, from}); });
  return bench.cost().bytes / ms / 1e6;
}

}  // namespace precbench
