// LayerNorm on the CPU device: values against FP64, gradients against finite differences, one rounding to BF16; and
// on any device against the CPU device.
#include <algorithm>

#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr float kLayernormEps = 1e-5f;

struct LayernormReference {
  std::vector<double> sum, mean, rstd, h;
};

LayernormReference layernorm(const Size& s, const std::vector<double>& x, const std::vector<double>& branch,
                             const std::vector<double>& weight, const std::vector<double>& bias,
                             double offset) {
  LayernormReference r{x, std::vector<double>(s.M), std::vector<double>(s.M), x};
  for (std::int64_t m = 0; m < s.M; ++m) {
    double total = 0, squares = 0;
    for (std::int64_t c = 0; c < s.C; ++c) {
      if (!branch.empty()) r.sum[m * s.C + c] += branch[m * s.C + c];
      total += r.sum[m * s.C + c];
    }
    r.mean[m] = total / static_cast<double>(s.C);
    for (std::int64_t c = 0; c < s.C; ++c) squares += std::pow(r.sum[m * s.C + c] - r.mean[m], 2);
    r.rstd[m] = 1 / std::sqrt(squares / static_cast<double>(s.C) + kLayernormEps);
    for (std::int64_t c = 0; c < s.C; ++c)
      r.h[m * s.C + c] =
          (r.sum[m * s.C + c] - r.mean[m]) * r.rstd[m] * (weight[c] + offset) + (bias.empty() ? 0 : bias[c]);
  }
  return r;
}

/// Returns rows far from 0, whose variance is much smaller than their mean square, and some dominated by eps.
std::vector<float> shifted_rows(std::uint64_t seed, const Size& s) {
  std::vector<float> x = normal(seed, s.M * s.C);
  for (std::int64_t i = 0; i < s.M * s.C; ++i) x[i] = i / s.C % 3 == 0 ? x[i] * 0x1p-9f : x[i] + 2.0f;
  return x;
}

}  // namespace

TEST_CASE("add_layernorm and layernorm_backward: values and derivatives match FP64", "[cpu][layernorm]") {
  const auto device = make_cpu_device(2);
  for (const Size& s : {Size{1, 16}, Size{3, 7}, Size{64, 20}, Size{65, 33}, Size{130, 5}})
    for (const bool full : {false, true}) {
      INFO("M " << s.M << " C " << s.C << (full ? " with" : " without") << " branch and bias and residual");
      const float offset = full ? 1.0f : 0.0f;
      const Owned x(DType::f32, s.M, s.C, shifted_rows(1, s)), weight(DType::f32, 1, s.C, normal(3, s.C));
      Owned branch, bias;
      if (full) {
        branch = {DType::f32, s.M, s.C, normal(2, s.M * s.C)};
        bias = {DType::f32, 1, s.C, normal(4, s.C)};
      }
      const Owned sum(DType::f32, s.M, s.C), mean(DType::f32, s.M, 1), rstd(DType::f32, s.M, 1),
          h(DType::f32, s.M, s.C), again(DType::f32, s.M, s.C);
      QuantizedTensor out = operand(h), out_again = operand(again);
      device->add_layernorm({out, sum, mean, rstd, x, branch, weight, bias, kLayernormEps, offset});
      const LayernormReference want =
          layernorm(s, x.doubles(), branch.doubles(), weight.doubles(), bias.doubles(), offset);
      CHECK(relative_error(h.floats(), want.h) < 4 * kFp32Error);         // x - mean cancels
      CHECK(relative_error(mean.floats(), want.mean) < 16 * kFp32Error);  // so do its terms
      CHECK(relative_error(rstd.floats(), want.rstd) < kFp32Error);
      if (!full) CHECK(sum.bytes() == Owned(DType::f32, s.M, s.C).bytes());  // not written
      const Tensor stream = full ? sum : x;
      device->recompute_layernorm({out_again, stream, mean, rstd, weight, bias, offset});
      CHECK(again.bytes() == h.bytes());

      const Owned dh(DType::f32, s.M, s.C, normal(5, s.M * s.C)),
          dresidual(DType::f32, s.M, s.C, normal(6, s.M * s.C));
      const Owned dx(DType::f32, s.M, s.C), dweight(DType::f32, 1, s.C), dbias(DType::f32, 1, s.C);
      QuantizedTensor gradient = operand(dx);
      const Tensor residual = full ? dresidual.tensor() : Tensor{},
                   of_bias = full ? dbias.tensor() : Tensor{};
      device->layernorm_backward(
          {gradient, dweight, of_bias, false, residual, dh, stream, mean, rstd, weight, offset});
      const std::vector<double> at = want.sum, w = weight.doubles(), b = bias.doubles();
      const auto loss = [&](const std::vector<double>& x_, const std::vector<double>& w_,
                            const std::vector<double>& b_) {
        const LayernormReference r = layernorm(s, x_, {}, w_, b_, offset);
        return dot(r.h, dh.floats()) + (full ? dot(r.sum, dresidual.floats()) : 0);
      };
      for (std::int64_t m = 0; m < s.M; m += 13) {
        const std::vector<float> all = dx.floats();
        check_gradient(
            [&](const std::vector<double>& moved) {
              std::vector<double> other = at;
              std::copy(moved.begin(), moved.end(), other.begin() + m * s.C);
              return loss(other, w, b);
            },
            {at.begin() + m * s.C, at.begin() + (m + 1) * s.C},
            {all.begin() + m * s.C, all.begin() + (m + 1) * s.C});
      }
      check_gradient([&](const std::vector<double>& moved) { return loss(at, moved, b); }, w,
                     dweight.floats());
      if (full)
        check_gradient([&](const std::vector<double>& moved) { return loss(at, w, moved); }, b,
                       dbias.floats());

      const Owned before(DType::f32, 1, s.C, normal(7, s.C)), total = before, total_bias = before;
      device->layernorm_backward({gradient, total, full ? total_bias.tensor() : Tensor{}, true, residual, dh,
                                  stream, mean, rstd, weight, offset});
      std::vector<double> sums = before.doubles(), bias_sums = before.doubles();
      for (std::int64_t c = 0; c < s.C; ++c) sums[c] += dweight.floats()[c];
      CHECK(relative_error(total.floats(), sums) < kFp32Error);
      for (std::int64_t c = 0; c < s.C && full; ++c) bias_sums[c] += dbias.floats()[c];
      if (full) CHECK(relative_error(total_bias.floats(), bias_sums) < kFp32Error);
    }
}

TEST_CASE("add_layernorm: BF16 equals FP32 rounded once", "[cpu][layernorm]") {
  const auto device = make_cpu_device(2);
  const Size s{65, 33};
  const std::vector<float> x = rounded(shifted_rows(1, s)), w = rounded(normal(2, s.C)),
                           b = rounded(normal(3, s.C)), g = rounded(normal(4, s.M * s.C));
  struct Results {
    Owned h, dx, dweight, dbias;
  };
  const auto run = [&](DType dtype) {
    Results r{{dtype, s.M, s.C}, {dtype, s.M, s.C}, {dtype, 1, s.C}, {dtype, 1, s.C}};
    const Owned in(dtype, s.M, s.C, x), weight(dtype, 1, s.C, w), bias(dtype, 1, s.C, b),
        dh(dtype, s.M, s.C, g);
    const Owned mean(DType::f32, s.M, 1), rstd(DType::f32, s.M, 1);
    QuantizedTensor h = operand(r.h), dx = operand(r.dx);
    device->add_layernorm({h, {}, mean, rstd, in, {}, weight, bias, kLayernormEps});
    device->layernorm_backward({dx, r.dweight, r.dbias, false, dh, dh, in, mean, rstd, weight});
    return r;
  };
  const Results wide = run(DType::f32), narrow = run(DType::bf16);
  CHECK(narrow.h.floats() == rounded(wide.h.floats()));
  CHECK(narrow.dx.floats() == rounded(wide.dx.floats()));
  CHECK(narrow.dweight.floats() == rounded(wide.dweight.floats()));
  CHECK(narrow.dbias.floats() == rounded(wide.dbias.floats()));
}

// ---- any device against the CPU device

PRECBENCH_OP_TEST(layernorm_on, "add_layernorm, recompute_layernorm and layernorm_backward") {
  // Whole tiles; one vector per thread missing; several vectors; a width of four vectors per thread.
  for (const Size& size : {Size{256, 256}, Size{37, 264}, Size{130, 2560}, Size{5, 8200}})
    for (const bool full : {true, false}) {
      b.start();
      HostMemory& host = b.host();
      const std::int64_t M = size.M, C = size.C;
      const float offset = full ? 0.0f : 1.0f;
      INFO(M << " x " << C << (full ? " with" : " without") << " branch and bias and residual");
      const Tensor x = host.random(DType::bf16, M, C, 2.0f), weight = host.random(DType::bf16, 1, C, 1.0f),
                   dh = host.random(DType::bf16, M, C, 1.0f);
      for (std::int64_t i = 0; i < M * C; ++i) HostMemory::set(x, i, HostMemory::get(x, i) + 1.0f);
      for (std::int64_t c = 0; c < C; ++c) HostMemory::set(x, 3 % M * C + c, 1.0f);  // a row without variance
      const auto maybe = [&](std::int64_t rows) {
        return full ? host.random(DType::bf16, rows, C, 1.0f) : Tensor{};
      };
      const Tensor branch = maybe(M), bias = maybe(1), dresidual = maybe(M);
      struct Results {
        Tensor sum, mean, rstd, h, dx, dweight, dbias;
      };
      const auto cpu_run = [&](DType dtype, DType gradient) {
        Results r{full ? host.tensor(dtype, M, C) : host.converted(x, dtype),
                  host.tensor(DType::f32, M, 1),
                  host.tensor(DType::f32, M, 1),
                  host.tensor(dtype, M, C),
                  host.tensor(dtype, M, C),
                  host.tensor(gradient, 1, C),
                  full ? host.tensor(gradient, 1, C) : Tensor{}};
        QuantizedTensor h, dx;
        h.value = r.h, dx.value = r.dx;
        const Tensor w = host.converted(weight, dtype);
        b.cpu().add_layernorm({h, r.sum, r.mean, r.rstd, host.converted(x, dtype),
                               host.converted(branch, dtype), w, host.converted(bias, dtype), kLayernormEps,
                               offset});
        b.cpu().layernorm_backward({dx, r.dweight, r.dbias, false, host.converted(dresidual, dtype),
                                    host.converted(dh, dtype), r.sum, r.mean, r.rstd, w, offset});
        return r;
      };
      const Results naive = cpu_run(DType::bf16, DType::bf16), truth = cpu_run(DType::f32, DType::f32);
      const Tensor dev_x = b.put(x), dev_branch = b.put(branch), dev_weight = b.put(weight),
                   dev_bias = b.put(bias), dev_dh = b.put(dh), dev_residual = b.put(dresidual);
      const Tensor sum = full ? b.output(DType::bf16, M, C) : dev_x, mean = b.output(DType::f32, M, 1),
                   rstd = b.output(DType::f32, M, 1), dweight = b.output(DType::bf16, 1, C),
                   dbias = full ? b.output(DType::bf16, 1, C) : Tensor{};
      const Tensor h = b.check_operand("h", M, C, [&](QuantizedTensor& out) {
        b.device().add_layernorm(
            {out, sum, mean, rstd, dev_x, dev_branch, dev_weight, dev_bias, kLayernormEps, offset});
      });
      CHECK(same_bits(b.fetch(sum), naive.sum));
      const Tensor again = b.check_operand("h again", M, C, [&](QuantizedTensor& out) {
        b.device().recompute_layernorm({out, sum, mean, rstd, dev_weight, dev_bias, offset});
      });
      CHECK(same_bits(again, h));
      check_twice("h", h, naive.h, HostMemory::values(truth.h));
      const Tensor dx = b.check_operand("dx", M, C, [&](QuantizedTensor& out) {
        b.device().layernorm_backward(
            {out, dweight, dbias, false, dev_residual, dev_dh, sum, mean, rstd, dev_weight, offset});
      });
      check_twice("dx", dx, naive.dx, HostMemory::values(truth.dx));
      check_twice("dweight", b.fetch(dweight), naive.dweight, HostMemory::values(truth.dweight));
      if (full) check_twice("dbias", b.fetch(dbias), naive.dbias, HostMemory::values(truth.dbias));
    }
}
