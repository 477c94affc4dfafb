// Every op of the CPU device gives the same bits with 1, 2 and 3 threads.
#include <cstring>
#include <functional>

#include "kernels/device/op_testing.h"
#include "kernels/numerics/scale_layout.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

using Outputs = std::vector<Owned>;

struct Op {
  const char* name;
  std::function<Outputs(Device&)> run;
};

// More rows than any op's run (64, 128), no multiple of 2 or 3; more elements than a chunk of 16384.
constexpr std::int64_t kM = 265, kC = 99;

Owned random(std::uint64_t seed, DType dtype, std::int64_t rows, std::int64_t cols) {
  return {dtype, rows, cols, normal(seed, rows * cols)};
}

Outputs elementwise(Device& device) {
  const Owned x = random(1, DType::f32, kM, kC), y = random(2, DType::bf16, kM, kC);
  Outputs out = {x,
                 y,
                 {DType::f32, 1, 1},
                 {DType::f32, 1, 1},
                 {DType::i32, 1, 2},
                 {DType::bf16, kM, kC},
                 {DType::f32, kM, kC}};
  device.add({out[0], y});
  device.convert({out[1], x});
  device.sum({out[2], x, false});
  device.sum_of_squares({out[3], x, false});
  device.fingerprint({out[4], x});
  device.fill({out[5], 0.1f});
  device.init_normal({out[6], 1.0f, 3, 0});
  return out;
}

Outputs matmul(Device& device) {
  // More rows and columns than a tile of D has (192 x 512).
  constexpr std::int64_t kN = 2100;
  const Owned a = random(1, DType::bf16, kM, kC), b = random(2, DType::f32, kN, kC);
  const Owned c = random(3, DType::bf16, kC, kM);
  Outputs out = {{DType::f32, kM, kN}, {DType::bf16, kM, kN}};
  device.matmul({out[0], {{}, a, {}, false}, {{}, b, {}, false}, {}});
  device.matmul({out[1], {{}, c, {}, true}, {{}, b, {}, false}, {}});
  return out;
}

Outputs quantize(Device& device) {
  const Owned x = random(1, DType::bf16, kM, kC);
  Outputs out;
  for (const QuantFormat& format :
       {QuantFormat{DType::e4m3, Granularity::tensor, ScaleType::f32},
        QuantFormat{DType::e5m2, Granularity::row, ScaleType::f32_pow2},
        QuantFormat{DType::e4m3, Granularity::block_1x128, ScaleType::f32},
        QuantFormat{DType::e4m3, Granularity::block_128x128, ScaleType::f32},
        QuantFormat{DType::e4m3, Granularity::block_1x32, ScaleType::ue8m0, ScaleRounding::rceil}}) {
    const DType scale = format.scale == ScaleType::ue8m0 ? DType::ue8m0 : DType::f32;
    Outputs made = {{format.dtype, kM, kC}, {scale, 1, scale_count(format.granularity, kM, kC)},
                    {format.dtype, kC, kM}, {scale, 1, scale_count(format.granularity, kC, kM)},
                    {DType::f32, 1, 1},     {DType::f32, 1, 5}};
    QuantizedTensor operand{.value = x,
                            .rowwise = {format, made[0], made[1], false},
                            .columnwise = {format, made[2], made[3], false},
                            .amax_out = made[4]};
    device.quantize({operand});
    device.quantization_error({made[5], x, operand.columnwise, true});
    out.insert(out.end(), made.begin(), made.end());
  }
  return out;
}

Outputs embedding(Device& device) {
  std::vector<std::int32_t> tokens(kM);
  for (std::int64_t m = 0; m < kM; ++m) tokens[m] = static_cast<std::int32_t>(m * m % 37);
  const Owned table = random(1, DType::bf16, 40, kC), dx = random(2, DType::bf16, kM, kC);
  Outputs out = {{DType::bf16, kM, kC}, random(3, DType::bf16, 40, kC)};
  device.embedding({out[0], Owned(tokens), table});
  device.embedding_backward({out[1], dx, Owned(tokens)});
  return out;
}

Outputs rmsnorm(Device& device) {
  const Owned x = random(1, DType::bf16, kM, kC), branch = random(2, DType::bf16, kM, kC);
  const Owned weight = random(3, DType::bf16, 1, kC), dh = random(4, DType::bf16, kM, kC);
  Outputs out = {{DType::bf16, kM, kC},
                 {DType::bf16, kM, kC},
                 {DType::f32, kM, 1},
                 {DType::bf16, kM, kC},
                 {DType::f32, 1, kC}};
  QuantizedTensor h = operand(out[0]), dx = operand(out[3]);
  device.add_rmsnorm({h, out[1], out[2], x, branch, weight, 1e-5f});
  device.rmsnorm_backward({dx, out[4], false, branch, dh, out[1], out[2], weight});
  return out;
}

Outputs attention(Device& device) {
  const AttentionShape s{3, 65, 4, 2, 8};
  const std::int64_t M = s.tokens(), W = s.qkv_width(), D = s.head_dim;
  const Owned raw = random(1, DType::bf16, M, W), dout = random(2, DType::bf16, M, s.q_width());
  const Owned q_norm = random(3, DType::bf16, 1, D), k_norm = random(4, DType::bf16, 1, D);
  const RopeOptions rope{.shape = s, .q_norm = q_norm, .k_norm = k_norm};
  Outputs out = {{DType::bf16, M, W}, {DType::bf16, M, s.q_width()}, {DType::f32, s.heads, M},
                 {DType::bf16, M, W}, {DType::bf16, M, W},           {DType::f32, 1, D},
                 {DType::f32, 1, D}};
  QuantizedTensor attended = operand(out[1]), draw = operand(out[4]);
  device.rope({out[0], raw, rope});
  device.attention({attended, out[2], out[0], s});
  device.attention_backward({out[3], dout, out[1], out[2], out[0], s});
  device.rope_backward({draw, out[5], out[6], false, out[3], raw, rope});
  return out;
}

Outputs feed_forward_and_loss(Device& device) {
  const Owned gate_up = random(1, DType::bf16, kM, 2 * kC), ds = random(2, DType::bf16, kM, kC);
  Outputs out = {{DType::bf16, kM, kC},
                 {DType::bf16, kM, 2 * kC},
                 {DType::bf16, kM, kC},
                 {DType::f32, kM, 1},
                 random(3, DType::bf16, kM, kC)};
  QuantizedTensor s = operand(out[0]), dgate_up = operand(out[1]), again = operand(out[2]);
  device.swiglu({s, gate_up});
  device.swiglu_backward({dgate_up, again, ds, gate_up});
  device.cross_entropy({out[3], out[4], Owned(std::vector<std::int32_t>(kM, 5)), 0.01f});
  return out;
}

Outputs adamw(Device& device) {
  Outputs out = {random(1, DType::bf16, kM, kC),
                 random(2, DType::f32, kM, kC),
                 {DType::bf16, kM, kC, std::vector<float>(kM * kC, 0.5f)}};
  const Owned gradient = random(4, DType::bf16, kM, kC), squared(DType::f32, 1, 1, {4.0f});
  Owned words(DType::f32, 1, 4);
  const StepScalars scalars{.lr = 0.01f, .seed = 5};
  std::memcpy(words.tensor().data, &scalars, sizeof scalars);
  device.adamw({out[0], {}, out[1], out[2], gradient, words, squared, {.stochastic_rounding = true}});
  return out;
}

}  // namespace

TEST_CASE("CPU device: results of every op do not depend on the thread count", "[cpu][threads]") {
  const Op ops[] = {{"elementwise", elementwise},
                    {"matmul", matmul},
                    {"quantize", quantize},
                    {"embedding", embedding},
                    {"rmsnorm", rmsnorm},
                    {"attention and rope", attention},
                    {"swiglu and cross-entropy", feed_forward_and_loss},
                    {"adamw", adamw}};
  for (const Op& op : ops) {
    const Outputs one = op.run(*make_cpu_device(1));
    for (int threads : {2, 3}) {
      const Outputs many = op.run(*make_cpu_device(threads));
      REQUIRE(one.size() == many.size());
      for (std::size_t i = 0; i < one.size(); ++i) {
        INFO(op.name << " output " << i << " with " << threads << " threads");
        CHECK(one[i].bytes() == many[i].bytes());
        // Memory starts as all ones; an unchanged output was never written.
        CHECK(one[i].bytes() !=
              Owned(one[i].tensor().dtype, one[i].tensor().rows, one[i].tensor().cols).bytes());
      }
    }
  }
}
