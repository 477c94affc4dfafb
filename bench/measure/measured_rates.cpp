// Times a GEMM and a copy, the two bounds of every step. See measured_rates.h.
#include "bench/measure/measured_rates.h"

#include <algorithm>
#include <functional>

#include "kernels/device/memory.h"
#include "kernels/gpu/graph.h"
#include "kernels/numerics/without_draws.h"
#include "models/transformer/linear/linear.h"

namespace precbench {
namespace {

constexpr std::int64_t kSide = 8192;
constexpr std::int64_t kCopyElements = std::int64_t{1} << 29;  // 1 GiB of BF16

/// Returns the seconds of the fastest call, after warm-up (which lets a device autotune its GEMMs).
double shortest_seconds(Device& device, DeviceClock& clock, const std::function<void()>& call) {
  for (int i = 0; i < 3; ++i) call();
  return shortest_sample([&] {
    clock.reset();
    const std::size_t start = clock.mark();
    call();
    const std::size_t stop = clock.mark();
    device.synchronize();
    return clock.milliseconds(start, stop) / 1e3;
  });
}

}  // namespace

double shortest_sample(const std::function<double()>& sample) {
  constexpr int kFewest = 10, kSettled = 50, kMost = 10'000;
  constexpr double kLeast_s = 0.5, kMost_s = 2, kShorter = 0.001;
  double shortest = sample(), sum = shortest;
  const auto enough = [&](int calls, int since) {
    return calls >= kFewest && (sum >= kMost_s || calls >= kMost || (since >= kSettled && sum >= kLeast_s));
  };
  for (int calls = 1, since = 0; !enough(calls, since); ++calls) {
    const double seconds = sample();
    sum += seconds;
    since = seconds < shortest * (1 - kShorter) ? 0 : since + 1;
    shortest = std::min(shortest, seconds);
  }
  return shortest;
}

OpRates measure_rates(Device& device, const Recipe& recipe) {
  constexpr std::int64_t kBytes = 2 * bytes_of(DType::bf16, kCopyElements);
  const DeviceBlock block(device, kBytes);
  const std::unique_ptr<DeviceClock> clock = make_device_clock(device);
  OpRates peaks;
  {
    Arena arena(block.data(), kBytes);
    const Tensor from = arena.push(Segment::other, DType::bf16, kSide, kCopyElements / kSide);
    const Tensor to = arena.push(Segment::other, DType::bf16, kSide, kCopyElements / kSide);
    device.init_normal({from, 1.0f, 1, 0});
    peaks.bytes = static_cast<double>(from.bytes() + to.bytes()) / shortest_seconds(device, *clock, [&] {
                    device.convert({to, from});
                  });
  }
  Arena arena(block.data(), kBytes);
  const Tensor d = arena.push(Segment::other, DType::bf16, kSide, kSide);
  const Tensor values[2] = {arena.push(Segment::other, DType::bf16, kSide, kSide),
                            arena.push(Segment::other, DType::bf16, kSide, kSide)};
  for (int i = 0; i < 2; ++i) device.init_normal({values[i], 1.0f, static_cast<std::uint64_t>(i + 1), 0});
  const double flops = 2.0 * kSide * kSide * kSide;
  const auto rate = [&](const GemmRecipe& gemm) {
    QuantizedTensor operands[2];
    const QuantFormat* formats[2] = {&gemm.a, &gemm.b};
    for (int i = 0; i < 2; ++i) {
      operands[i] = make_quantized_tensor(values[i], *formats[i], {});
      if (!formats[i]->quantized()) continue;
      operands[i].rowwise = push_gemm_operand(arena, Segment::other, *formats[i], kSide, kSide);
      if (formats[i]->granularity == Granularity::tensor)
        operands[i].amax_out = arena.push(Segment::other, DType::f32, 1, 1);
      device.quantize({operands[i]});
    }
    MatmulOptions options;
    options.fast_accum = gemm.fast_accum;
    return flops / shortest_seconds(device, *clock, [&] {
             device.matmul({d, operands[0].rowwise, operands[1].rowwise, options});
           });
  };
  peaks.bf16_flops = rate({});
  // Measures the first GEMM of each width: a recipe may have both widths, or quantize only backward GEMMs.
  for (const GemmRole role : kGemmRoles) {
    const GemmRecipe gemm = without_draws(recipe.gemm(role));
    if (!gemm.a.quantized() || !gemm.b.quantized()) continue;
    double& flops_of_width = gemm.a.dtype == DType::e2m1 ? peaks.fp4_flops : peaks.fp8_flops;
    if (flops_of_width == 0) flops_of_width = rate(gemm);
  }
  return peaks;
}

}  // namespace precbench
