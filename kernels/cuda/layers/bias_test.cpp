// Biases and scaled RoPE on a GPU against the CPU device: the sum over the rows, and the turn of q, k and v with it.
#include "kernels/cuda/op_testing.h"

namespace precbench {
namespace {

using namespace op_testing;

}  // namespace

TEST_CASE("bias_backward on a GPU", "[gpu]") {
  Bench b;
  if (!b) return;
  struct Size {
    std::int64_t M, N;
  };
  // One row; fewer rows than a run has; many runs; a last block of columns that is not full.
  for (const Size& size : {Size{1, 8}, Size{50, 96}, Size{4099, 768}, Size{8192, 4608}})
    for (const DType grad : {DType::f32, DType::bf16})
      for (const bool accumulate : {false, true}) {
        b.start();
        INFO(size.M << " x " << size.N << ", dbias " << name_of(grad) << (accumulate ? ", added" : ""));
        HostMemory& host = *b.host;
        const Tensor dy = host.random(DType::bf16, size.M, size.N, 1.0f),
                     before = host.random(grad, 1, size.N, 1.0f);
        std::vector<double> truth(static_cast<std::size_t>(size.N));
        for (std::int64_t i = 0; i < size.N; ++i) {
          if (accumulate) truth[i] = HostMemory::get(before, i);
          for (std::int64_t row = 0; row < size.M; ++row) truth[i] += HostMemory::get(dy, row * size.N + i);
        }
        const Tensor naive = host.converted(before, grad);
        b.cpu->bias_backward(naive, accumulate, dy);
        const Tensor gpu_dy = b.on_gpu(dy), dbias = b.on_gpu(before), again = b.on_gpu(before);
        b.gpu().bias_backward(dbias, accumulate, gpu_dy);
        b.gpu().bias_backward(again, accumulate, gpu_dy);
        check_twice("dbias", b.fetch(dbias), naive, truth);
        CHECK(same_bits(b.fetch(dbias), b.fetch(again)));
      }
}

TEST_CASE("rope with a bias and a stretched context on a GPU", "[gpu]") {
  Bench b;
  if (!b) return;
  const RopeScaling scalings[] = {
      {},
      {.kind = RopeScaling::Kind::linear, .factor = 4},
      {.kind = RopeScaling::Kind::llama3, .factor = 8, .original_context = 16},
      {.kind = RopeScaling::Kind::yarn, .factor = 4, .original_context = 16, .attention_factor = 1.14}};
  for (const AttentionShape& shape : {AttentionShape{2, 64, 4, 2, 64}, AttentionShape{1, 40, 3, 1, 16}})
    for (const RopeScaling& scaling : scalings) {
      b.start();
      HostMemory& host = *b.host;
      const std::int64_t M = shape.tokens(), W = shape.qkv_width();
      INFO("D " << shape.head_dim << ", scaling " << static_cast<int>(scaling.kind));
      const Tensor qkv = host.random(DType::bf16, M, W, 1.0f), bias = host.random(DType::bf16, 1, W, 4.0f);
      const Tensor dout = host.random(DType::bf16, M, W, 1.0f);
      const auto on_cpu = [&](DType dtype, bool backward) {
        const RopeOptions o{.shape = shape, .bias = host.converted(bias, dtype), .scaling = scaling};
        QuantizedTensor result;
        result.value = host.tensor(dtype, M, W);
        if (backward)
          b.cpu->rope_backward(result, {}, {}, false, host.converted(dout, dtype), {}, o);
        else
          b.cpu->rope(result.value, host.converted(qkv, dtype), o);
        return result.value;
      };
      const RopeOptions options{.shape = shape, .bias = b.on_gpu(bias), .scaling = scaling};
      const Tensor out = b.gpu_output(DType::bf16, M, W), in_place = b.on_gpu(qkv);
      b.gpu().rope(out, b.on_gpu(qkv), options);
      b.gpu().rope(in_place, in_place, options);
      b.check("out", out, on_cpu(DType::bf16, false), on_cpu(DType::f32, false));
      CHECK(same_bits(b.fetch(in_place), b.fetch(out)));
      QuantizedTensor gradient;
      gradient.value = b.gpu_output(DType::bf16, M, W);
      b.gpu().rope_backward(gradient, {}, {}, false, b.on_gpu(dout), {}, options);
      b.check("dqkv", gradient.value, on_cpu(DType::bf16, true), on_cpu(DType::f32, true));
    }
}

}  // namespace precbench
