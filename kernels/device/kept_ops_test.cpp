// RMSNorm and SwiGLU that keep their input in groups of 16 in the same pass, and their backward that reads it: on any
// device with the bits of separate passes.
#include <limits>

#include "kernels/device/compare_testing.h"
#include "kernels/numerics/custom_format.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Data in groups of 16 of `value`, made and read back by separate ops.
struct Separate {
  GemmOperand kept;
  Tensor value;  ///< dequantized
};

Separate separately(OpTest& b, const Tensor& value) {
  Separate made{b.quantized_copy(kGroupsOf16, value.rows, value.cols),
                b.output(DType::bf16, value.rows, value.cols)};
  b.device().quantize({{.value = value, .rowwise = made.kept}});
  b.device().dequantize({made.value, made.kept});
  return made;
}

void check_kept(OpTest& b, const GemmOperand& kept, const Separate& expected) {
  CHECK(same_bits(b.fetch(kept.data), b.fetch(expected.kept.data)));
  CHECK(same_bits(b.fetch(kept.scale), b.fetch(expected.kept.scale)));
}

/// Returns normal values whose groups differ in size; one group is 0.
Tensor groups(OpTest& b, std::int64_t rows, std::int64_t cols) {
  const Tensor x = b.host().random(DType::bf16, rows, cols, 1.0f);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const auto size = static_cast<int>(i / 16 % 37);
    HostMemory::set(x, i, size == 36 ? 0.0f : std::ldexp(HostMemory::get(x, i), size - 18));
  }
  return x;
}

}  // namespace

PRECBENCH_OP_TEST(kept_norm_on,
                  "add_rmsnorm and rmsnorm_backward with a kept input have the bits of separate passes") {
  // Whole tiles; rows and groups that fill no tile of scales; several vectors; widths of four vectors per thread.
  for (const Size& size : {Size{256, 256}, Size{37, 272}, Size{130, 2560}, Size{5, 8208}, Size{5, 12288}})
    for (const bool branched : {true, false}) {
      b.start();
      HostMemory& host = b.host();
      const std::int64_t M = size.M, C = size.C;
      INFO(M << " x " << C << (branched ? " with" : " without") << " a branch");
      const Tensor x = b.put(groups(b, M, C)), weight = b.put(host.random(DType::bf16, 1, C, 1.0f)),
                   branch = branched ? b.put(groups(b, M, C)) : Tensor{},
                   dh = b.put(host.random(DType::bf16, M, C, 1.0f)),
                   dresidual = branched ? b.put(host.random(DType::bf16, M, C, 1.0f)) : Tensor{};
      const Tensor sum = branched ? b.output(DType::bf16, M, C) : x, rstd = b.output(DType::f32, M, 1),
                   plain_sum = branched ? b.output(DType::bf16, M, C) : x,
                   plain_rstd = b.output(DType::f32, M, 1);
      const QuantizedTensor plain = b.operand({}, M, C);
      b.device().add_rmsnorm({plain, plain_sum, plain_rstd, x, branch, weight, 1e-5f});
      const Separate expected = separately(b, plain_sum);
      CHECK(b.copies_difference({.value = {}, .rowwise = expected.kept}, b.fetch(plain_sum)) == "");
      b.device().add_rmsnorm({plain, {}, plain_rstd, expected.value, {}, weight, 1e-5f});

      const GemmOperand kept = b.quantized_copy(kGroupsOf16, M, C);
      const Tensor h = b.check_operand("h", M, C, [&](QuantizedTensor& out) {
        b.device().add_rmsnorm({out, sum, rstd, x, branch, weight, 1e-5f, 0, kept});
      });
      check_kept(b, kept, expected);
      CHECK(same_bits(h, b.fetch(plain.value)));
      CHECK(same_bits(b.fetch(sum), b.fetch(plain_sum)));
      CHECK(same_bits(b.fetch(rstd), b.fetch(plain_rstd)));

      const Tensor dweight = b.output(DType::f32, 1, C), plain_dweight = b.output(DType::f32, 1, C);
      b.device().rmsnorm_backward({plain, plain_dweight, false, dresidual, dh, expected.value, rstd, weight});
      const Tensor dx = b.check_operand("dx", M, C, [&](QuantizedTensor& out) {
        b.device().rmsnorm_backward({out, dweight, false, dresidual, dh, {}, rstd, weight, 0, kept});
      });
      CHECK(same_bits(dx, b.fetch(plain.value)));
      CHECK(same_bits(b.fetch(dweight), b.fetch(plain_dweight)));
    }
}

PRECBENCH_OP_TEST(kept_swiglu_on,
                  "swiglu and swiglu_backward with a kept input have the bits of separate passes") {
  // Tiles of gate and up that line up with blocks, and widths where they do not.
  for (const Activation activation : {Activation::silu, Activation::gelu_tanh})
    for (const Size& size : {Size{256, 256}, Size{100, 128}, Size{133, 208}, Size{5, 48}}) {
      b.start();
      const std::int64_t M = size.M, F = size.C;
      INFO(M << " x " << F);
      const Tensor gate_up = b.put(groups(b, M, 2 * F)), ds = b.put(b.host().random(DType::bf16, M, F, 1.0f));
      const Separate expected = separately(b, gate_up);
      const QuantizedTensor plain = b.operand({}, M, F), plain_d = b.operand({}, M, 2 * F);
      b.device().swiglu({plain, expected.value, activation});

      const GemmOperand kept = b.quantized_copy(kGroupsOf16, M, 2 * F);
      const Tensor s = b.check_operand("s", M, F, [&](QuantizedTensor& out) {
        b.device().swiglu({out, gate_up, activation, kept});
      });
      check_kept(b, kept, expected);
      CHECK(same_bits(s, b.fetch(plain.value)));

      b.device().swiglu_backward({plain_d, plain, ds, expected.value, activation});
      CHECK(same_bits(s, b.fetch(plain.value)));
      for (const OutputFormats& again : {OutputFormats{}, {{}, kTensorE4m3}, {kBlock, kRow}, {{}, kMx}}) {
        QuantizedTensor dev_s;
        const Tensor d = b.check_operand("dgate_up", M, 2 * F, [&](QuantizedTensor& out) {
          dev_s = b.operand(again, M, F);
          dev_s.keep_value = out.keep_value;
          b.device().swiglu_backward({out, dev_s, ds, {}, activation, kept});
        });
        CHECK(same_bits(d, b.fetch(plain_d.value)));
        b.check_copies("s again", dev_s, s);
      }
    }
}

PRECBENCH_OP_TEST(kept_poison_on,
                  "a kept input that is not finite reaches what it reaches with separate passes") {
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    b.start();
    constexpr std::int64_t M = 37, F = 272;
    const Tensor gate_up = groups(b, M, 2 * F);
    HostMemory::set(gate_up, 2 * F + 20, poison);
    const Tensor x = b.put(gate_up), weight = b.put(b.host().random(DType::bf16, 1, 2 * F, 1.0f)),
                 rstd = b.output(DType::f32, M, 1);
    const Separate expected = separately(b, x);
    const auto same = [&](const Tensor& result, const Tensor& reference) {
      const Tensor is = b.fetch(result), was = b.fetch(reference);
      std::int64_t wrong = 0, lost = 0;
      for (std::int64_t i = 0; i < is.size(); ++i) {
        const float a = HostMemory::get(is, i), c = HostMemory::get(was, i);
        wrong += a != c && !(std::isnan(a) && std::isnan(c)), lost += !std::isfinite(c);
      }
      CHECK(wrong == 0);
      CHECK(lost > 0);
    };
    const GemmOperand kept = b.quantized_copy(kGroupsOf16, M, 2 * F);
    const QuantizedTensor s = b.operand({}, M, F), plain_s = b.operand({}, M, F), h = b.operand({}, M, 2 * F),
                          plain_h = b.operand({}, M, 2 * F);
    b.device().swiglu({s, x, Activation::silu, kept});
    b.device().swiglu({plain_s, expected.value});
    same(s.value, plain_s.value);
    CHECK(same_bits(b.fetch(kept.scale), b.fetch(expected.kept.scale)));
    b.device().add_rmsnorm({h, {}, rstd, x, {}, weight, 1e-5f, 0, kept});
    b.device().add_rmsnorm({plain_h, {}, rstd, expected.value, {}, weight, 1e-5f});
    same(h.value, plain_h.value);
  }
}

TEST_CASE("kept: the ops' bytes count what is kept in place of what it replaces", "[cpu][op]") {
  const auto device = make_cpu_device(1);
  OpTest b(*device);
  const GemmOperand kept = b.quantized_copy(kGroupsOf16, 128, 256);
  const QuantizedTensor s = b.operand({}, 128, 128), x = b.operand({}, 128, 256);
  const Tensor &wide = x.value, &narrow = s.value, rstd = b.output(DType::f32, 128, 1),
               weight = b.output(DType::bf16, 1, 256);
  const double bytes = 128 * 256 * (1 + 1.0 / 16), value = 128 * 256 * 2.0;
  const auto added = [](const auto& with, const auto& without) {
    return with.cost().bytes - without.cost().bytes;
  };
  using enum Activation;
  CHECK(added(ops::Swiglu{s, wide, silu, kept}, ops::Swiglu{s, wide, silu}) == bytes);
  CHECK(added(ops::SwigluBackward{x, s, narrow, {}, silu, kept},
              ops::SwigluBackward{x, s, narrow, wide, silu}) == bytes - value);
  CHECK(added(ops::AddRmsnorm{x, wide, rstd, wide, wide, weight, 0, 0, kept},
              ops::AddRmsnorm{x, wide, rstd, wide, wide, weight, 0, 0}) == bytes);
  CHECK(added(ops::RmsnormBackward{x, weight, false, {}, wide, {}, rstd, weight, 0, kept},
              ops::RmsnormBackward{x, weight, false, {}, wide, wide, rstd, weight, 0}) == bytes - value);
}
