// kernel_bench attention: TFLOP/s of attention on GPU 0, cuDNN's and ours, at the shapes of Llama and Gemma models.
//
//   kernel_bench attention [own|cudnn|deterministic|all|softcap|wide]      default: all
//
// softcap: Gemma 2 9B and 27B. Plain scores with our kernels and cuDNN's, soft-capped scores with ours, with and without its
// window. wide: every variant at head width 256.
//
// Causal FLOPs: 2 T^2 heads head_dim per sequence forward (two GEMMs, half of them masked). Backward counts
// 2.5 times that: five GEMMs, including the recomputed one, as in papers on attention. A record's FLOPs and
// kernel_bench count four. Random data. Each kernel runs for half a second without a pause, in two rounds,
// the second in reverse order; a figure is the mean of the medians of both.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/bench_program.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/gpu/graph.h"

namespace precbench {
namespace {

constexpr int kWarmUp = 5, kSamples = 50;
constexpr double kSampleMs = 10;

double median_milliseconds(CudaDevice& device, const std::function<void()>& op) {
  const auto clock = make_device_clock(device);
  for (int i = 0; i < kWarmUp; ++i) op();
  const std::size_t begin = clock->mark();
  op();
  const std::size_t end = clock->mark();
  device.synchronize();
  const int inner = std::max(1, static_cast<int>(kSampleMs / clock->milliseconds(begin, end)));
  std::vector<std::size_t> marks = {clock->mark()};
  for (int i = 0; i < kSamples; ++i) {
    for (int k = 0; k < inner; ++k) op();
    marks.push_back(clock->mark());
  }
  device.synchronize();
  std::vector<double> times;
  for (int i = 0; i < kSamples; ++i) times.push_back(clock->milliseconds(marks[i], marks[i + 1]) / inner);
  std::nth_element(times.begin(), times.begin() + kSamples / 2, times.end());
  return times[kSamples / 2];
}

struct Buffer {
  DeviceBlock block;
  Tensor tensor;
  Buffer(CudaDevice& device, DType dtype, std::int64_t rows, std::int64_t cols)
      : block(device, bytes_of(dtype, rows * cols)), tensor{block.data(), dtype, rows, cols} {}
};

/// Kernels to run, bitwise reproducible or not, and the times of its rounds.
struct Variant {
  std::string which;
  bool deterministic;
  double forward = 0, backward = 0;  // ms, of all rounds
  int turns = 0;
  std::size_t scratch_mib = 0;
  std::string by = {}, refusal = {};
};

void take_turn(CudaDevice& device, const AttentionShape& s, Variant& variant) {
  Buffer qkv(device, DType::bf16, s.tokens(), s.qkv_width()),
      dqkv(device, DType::bf16, s.tokens(), s.qkv_width());
  Buffer out(device, DType::bf16, s.tokens(), s.q_width()),
      dout(device, DType::bf16, s.tokens(), s.q_width());
  Buffer lse(device, DType::f32, s.heads, s.tokens());
  device.init_normal({qkv.tensor, 1.0f, 1, 0});
  device.init_normal({dout.tensor, 1.0f, 2, 0});
  try {
    device.set_attention(variant.which);
    device.set_deterministic(variant.deterministic);
    QuantizedTensor operand;
    operand.value = out.tensor;
    variant.forward += median_milliseconds(device, [&] {
      device.attention({operand, lse.tensor, qkv.tensor, s});
    });
    variant.backward += median_milliseconds(device, [&] {
      device.attention_backward({dqkv.tensor, dout.tensor, out.tensor, lse.tensor, qkv.tensor, s});
    });
    ++variant.turns;
    variant.scratch_mib = device.workspace_bytes() >> 20;
    variant.by = device.attention_name();
  } catch (const Unsupported& refusal) {
    variant.refusal = refusal.what();
  }
}

void print(const AttentionShape& s, const Variant& variant) {
  fmt::print("{:<14} B{} T{:<5} H{} KV{} D{:<4} ", variant.which + (variant.deterministic ? " det." : ""),
             s.B, s.T, s.heads, s.kv_heads, s.head_dim);
  if (s.softcap != 0 || s.window != 0) fmt::print("cap {} window {:<4} ", s.softcap, s.window);
  if (variant.turns == 0) return fmt::print("{}\n", variant.refusal);
  const auto outside = static_cast<double>(s.window > 0 ? s.T - s.window : 0);  // of the window: a triangle
  const double flops =
      2.0 * s.B * (static_cast<double>(s.T * s.T) - outside * outside) * s.heads * s.head_dim;
  const double forward = variant.forward / variant.turns, backward = variant.backward / variant.turns;
  fmt::print(
      "forward {:8.3f} ms {:6.1f} TFLOP/s   backward {:8.3f} ms {:6.1f} TFLOP/s   scratch {} MiB   by {}\n",
      forward, flops / forward * 1e-9, backward, 2.5 * flops / backward * 1e-9, variant.scratch_mib,
      variant.by);
}

}  // namespace

void bench_attention(const std::vector<std::string>& words) {
  const std::string which = words.empty() ? "all" : words.front();
  const bool softcap = which == "softcap", wide = which == "wide";
  const auto wanted = [&](const char* name) {
    return which == "all" || wide || which == name || (softcap && name != std::string("deterministic"));
  };
  std::vector<AttentionShape> shapes = {
      {1, 2048, 32, 8, 128}, {1, 4096, 32, 8, 128}, {1, 8192, 32, 8, 128},  // Llama-3.1-8B
      {1, 4096, 24, 8, 128},                                                // Llama-3.2-3B
      {1, 2048, 32, 8, 64},  {1, 8192, 32, 8, 64},  {8, 2048, 32, 8, 64},   // Llama-3.2-1B
      {1, 2048, 16, 8, 256}, {1, 8192, 16, 8, 256}, {8, 2048, 8, 4, 256},   // Gemma 3 12B, 4B
  };
  if (softcap) {
    shapes.clear();
    for (const AttentionShape& gemma :
         {AttentionShape{1, 8192, 16, 8, 256}, AttentionShape{1, 8192, 32, 16, 128}})
      for (const auto& [cap, window] : {std::pair(0.0f, 0), std::pair(50.0f, 0), std::pair(50.0f, 4096)}) {
        shapes.push_back(gemma);
        shapes.back().softcap = cap;
        shapes.back().window = window;
      }
  }
  if (wide) std::erase_if(shapes, [](const AttentionShape& s) { return s.head_dim != 256; });
  CudaDevice device(0);
  for (const AttentionShape& s : shapes) {
    std::vector<Variant> variants;
    for (const bool deterministic : {false, true})
      for (const char* whose : {"own", "cudnn"})
        if (wanted(deterministic ? "deterministic" : whose) &&
            (s.softcap == 0 || whose == std::string("own")))
          variants.push_back({whose, deterministic});
    for (Variant& variant : variants) take_turn(device, s, variant);
    std::for_each(variants.rbegin(), variants.rend(),
                  [&](Variant& variant) { take_turn(device, s, variant); });
    for (const Variant& variant : variants) print(s, variant);
  }
}

}  // namespace precbench
