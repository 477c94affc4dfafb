// attention_bench: TFLOP/s of attention on GPU 0, cuDNN's and ours, at the shapes of Llama models.
//
//   attention_bench [own|cudnn|deterministic|all]      default: all
//
// Causal FLOPs, 2 T^2 heads head_dim per sequence forward (two products, half of them masked), 2.5 times that
// backward. Each figure is the median of runs timed one by one by the device, on random data, after a
// warm-up.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/gpu/graph.h"

namespace precbench {
namespace {

constexpr int kWarmUp = 5, kRuns = 25;

double median_milliseconds(CudaDevice& device, const std::function<void()>& op) {
  const auto clock = make_device_clock(device);
  for (int i = 0; i < kWarmUp; ++i) op();
  std::vector<std::size_t> marks = {clock->mark()};
  for (int i = 0; i < kRuns; ++i) {
    op();
    marks.push_back(clock->mark());
  }
  device.synchronize();
  std::vector<double> times;
  for (int i = 0; i < kRuns; ++i) times.push_back(clock->milliseconds(marks[i], marks[i + 1]));
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

struct Buffer {
  DeviceBlock block;
  Tensor tensor;
  Buffer(CudaDevice& device, DType dtype, std::int64_t rows, std::int64_t cols)
      : block(device, bytes_of(dtype, rows * cols)), tensor{block.data(), dtype, rows, cols} {}
};

void run(CudaDevice& device, const AttentionShape& s, const std::string& which, bool deterministic) {
  Buffer qkv(device, DType::bf16, s.tokens(), s.qkv_width()),
      dqkv(device, DType::bf16, s.tokens(), s.qkv_width());
  Buffer out(device, DType::bf16, s.tokens(), s.q_width()),
      dout(device, DType::bf16, s.tokens(), s.q_width());
  Buffer lse(device, DType::f32, s.heads, s.tokens());
  device.init_normal({qkv.tensor, 1.0f, 1, 0});
  device.init_normal({dout.tensor, 1.0f, 2, 0});
  std::string line = fmt::format("{:<14} B{} T{:<5} H{} KV{} D{:<4}", which + (deterministic ? " det." : ""),
                                 s.B, s.T, s.heads, s.kv_heads, s.head_dim);
  try {
    device.set_attention(which);
    device.set_deterministic(deterministic);
    QuantizedTensor operand;
    operand.value = out.tensor;
    const double forward = median_milliseconds(device, [&] {
      device.attention({operand, lse.tensor, qkv.tensor, s});
    });
    const double backward = median_milliseconds(device, [&] {
      device.attention_backward({dqkv.tensor, dout.tensor, out.tensor, lse.tensor, qkv.tensor, s});
    });
    const double flops = 2.0 * s.B * s.T * s.T * s.heads * s.head_dim;
    fmt::print(
        "{} forward {:8.3f} ms {:6.1f} TFLOP/s   backward {:8.3f} ms {:6.1f} TFLOP/s   scratch {} MiB   by {}\n",
        line, forward, flops / forward * 1e-9, backward, 2.5 * flops / backward * 1e-9,
        device.workspace_bytes() >> 20, device.attention_name());
  } catch (const Unsupported& refusal) {
    fmt::print("{} {}\n", line, refusal.what());
  }
}

}  // namespace
}  // namespace precbench

int main(int argc, char** argv) {
  using namespace precbench;
  const std::string which = argc > 1 ? argv[1] : "all";
  const auto wanted = [&](const char* name) { return which == "all" || which == name; };
  const AttentionShape shapes[] = {
      {1, 2048, 32, 8, 128}, {1, 4096, 32, 8, 128}, {1, 8192, 32, 8, 128},  // Llama-3.1-8B
      {1, 4096, 24, 8, 128},                                                // Llama-3.2-3B
      {1, 2048, 32, 8, 64},  {1, 8192, 32, 8, 64},  {8, 2048, 32, 8, 64},   // Llama-3.2-1B
  };
  try {
    CudaDevice device(0);
    for (const AttentionShape& s : shapes) {
      if (wanted("own")) run(device, s, "own", false);
      if (wanted("cudnn")) run(device, s, "cudnn", false);
      if (wanted("deterministic")) {
        run(device, s, "own", true);
        run(device, s, "cudnn", true);
      }
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "attention_bench: {}\n", error.what());
    return 1;
  }
}
