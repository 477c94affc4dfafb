// RMSNorm on the CPU device: values against FP64, gradients against finite differences, one rounding to BF16.
#include <algorithm>
#include <limits>

#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr float kNormEps = 1e-5f;

struct NormShape {
  std::int64_t M, C;
};
// Rows below, at and above the 64 of a weight gradient's partial sum; columns that fill no vector register.
constexpr NormShape kNormShapes[] = {{1, 16}, {3, 7}, {64, 20}, {65, 33}, {130, 5}};

struct NormReference {
  std::vector<double> sum, rstd, h;
};

NormReference rmsnorm(const NormShape& s, const std::vector<double>& x, const std::vector<double>& branch,
                      const std::vector<double>& weight) {
  NormReference r{x, std::vector<double>(s.M), x};
  for (std::int64_t m = 0; m < s.M; ++m) {
    double squares = 0;
    for (std::int64_t c = 0; c < s.C; ++c) {
      if (!branch.empty()) r.sum[m * s.C + c] += branch[m * s.C + c];
      squares += r.sum[m * s.C + c] * r.sum[m * s.C + c];
    }
    r.rstd[m] = 1 / std::sqrt(squares / static_cast<double>(s.C) + kNormEps);
    for (std::int64_t c = 0; c < s.C; ++c) r.h[m * s.C + c] = r.sum[m * s.C + c] * r.rstd[m] * weight[c];
  }
  return r;
}

/// Returns rows of normal size, and some so small that eps dominates their norm.
std::vector<float> stream(std::uint64_t seed, const NormShape& s) {
  std::vector<float> x = normal(seed, s.M * s.C);
  for (std::int64_t m = 0; m < s.M; m += 3)
    for (std::int64_t c = 0; c < s.C; ++c) x[m * s.C + c] *= 0x1p-9f;
  return x;
}

struct Inputs {
  Owned x, branch, weight;
};

Inputs inputs(DType dtype, const NormShape& s, bool with_branch) {
  Inputs in{{dtype, s.M, s.C, rounded(stream(1, s))}, {}, {dtype, 1, s.C, rounded(normal(3, s.C))}};
  if (with_branch) in.branch = {dtype, s.M, s.C, rounded(stream(2, s))};
  return in;
}

}  // namespace

TEST_CASE("add_rmsnorm: sum and norm and rstd match FP64", "[cpu][rmsnorm]") {
  const auto device = make_cpu_device(2);
  for (const NormShape& s : kNormShapes)
    for (bool with_branch : {false, true}) {
      INFO("M " << s.M << " C " << s.C << " branch " << with_branch);
      const Inputs in = inputs(DType::f32, s, with_branch);
      const Owned sum(DType::f32, s.M, s.C), rstd(DType::f32, s.M, 1), h(DType::f32, s.M, s.C);
      QuantizedTensor out = operand(h);
      device->add_rmsnorm({out, sum, rstd, in.x, in.branch, in.weight, kNormEps});

      const NormReference want = rmsnorm(s, in.x.doubles(), in.branch.doubles(), in.weight.doubles());
      CHECK(relative_error(h.floats(), want.h) < kFp32Error);
      CHECK(relative_error(rstd.floats(), want.rstd) < kFp32Error);
      if (with_branch)
        CHECK(relative_error(sum.floats(), want.sum) < kFp32Error);
      else
        CHECK(sum.bytes() == Owned(DType::f32, s.M, s.C).bytes());  // not written

      const Owned again(DType::f32, s.M, s.C);
      QuantizedTensor out_again = operand(again);
      device->recompute_rmsnorm({out_again, with_branch ? sum : in.x, rstd, in.weight});
      CHECK(again.bytes() == h.bytes());
    }
}

TEST_CASE("rmsnorm_backward: is the derivative of add_rmsnorm", "[cpu][rmsnorm]") {
  const auto device = make_cpu_device(2);
  for (const NormShape& s : kNormShapes)
    for (bool with_residual : {false, true}) {
      INFO("M " << s.M << " C " << s.C << " residual " << with_residual);
      const Inputs in = inputs(DType::f32, s, false);
      const Owned rstd(DType::f32, s.M, 1), h(DType::f32, s.M, s.C);
      QuantizedTensor out = operand(h);
      device->add_rmsnorm({out, {}, rstd, in.x, {}, in.weight, kNormEps});

      const Owned dh(DType::f32, s.M, s.C, normal(4, s.M * s.C));
      const Owned dresidual(DType::f32, s.M, s.C, normal(5, s.M * s.C));
      const Owned dx(DType::f32, s.M, s.C), dweight(DType::f32, 1, s.C);
      QuantizedTensor gradient = operand(dx);
      const Tensor residual = with_residual ? dresidual.tensor() : Tensor{};
      device->rmsnorm_backward({gradient, dweight, false, residual, dh, in.x, rstd, in.weight});

      const auto loss = [&](const std::vector<double>& x, const std::vector<double>& weight) {
        const NormReference r = rmsnorm(s, x, {}, weight);
        return dot(r.h, dh.floats()) + (with_residual ? dot(r.sum, dresidual.floats()) : 0);
      };
      const std::vector<double> x = in.x.doubles(), weight = in.weight.doubles();
      // The gradients of a row dominated by eps differ in size from its neighbours': each row is measured by
      // its own scale.
      for (std::int64_t m = 0; m < s.M; m += 13) {
        const std::vector<double> row(x.begin() + m * s.C, x.begin() + (m + 1) * s.C);
        const std::vector<float> all = dx.floats();
        check_gradient(
            [&](const std::vector<double>& moved) {
              std::vector<double> other = x;
              std::copy(moved.begin(), moved.end(), other.begin() + m * s.C);
              return loss(other, weight);
            },
            row, {all.begin() + m * s.C, all.begin() + (m + 1) * s.C});
      }
      check_gradient([&](const std::vector<double>& moved) { return loss(x, moved); }, weight,
                     dweight.floats());

      // Accumulation adds exactly the same gradient, in FP32 and in BF16.
      for (DType dtype : {DType::f32, DType::bf16}) {
        const Owned before(dtype, 1, s.C, rounded(normal(6, s.C)));
        const Owned total = before;
        device->rmsnorm_backward({gradient, total, true, residual, dh, in.x, rstd, in.weight});
        std::vector<double> expected = before.doubles();
        for (std::int64_t c = 0; c < s.C; ++c) expected[c] += dweight.floats()[c];
        CHECK(relative_error(total.floats(), expected) < (dtype == DType::f32 ? kFp32Error : 0x1p-8));
      }
    }
}

TEST_CASE("add_rmsnorm: BF16 equals FP32 rounded once", "[cpu][rmsnorm]") {
  const auto device = make_cpu_device(2);
  const NormShape s{65, 33};
  const Inputs wide = inputs(DType::f32, s, true), narrow = inputs(DType::bf16, s, true);
  const Owned sum32(DType::f32, s.M, s.C), sum16(DType::bf16, s.M, s.C);
  const Owned rstd32(DType::f32, s.M, 1), rstd16(DType::f32, s.M, 1);
  const Owned h32(DType::f32, s.M, s.C), h16(DType::bf16, s.M, s.C);
  QuantizedTensor out32 = operand(h32), out16 = operand(h16);
  device->add_rmsnorm({out16, sum16, rstd16, narrow.x, narrow.branch, narrow.weight, kNormEps});
  device->add_rmsnorm({out32, sum32, rstd32, wide.x, wide.branch, wide.weight, kNormEps});
  CHECK(sum16.floats() == rounded(sum32.floats()));

  // The norm reads the stored sum, which is rounded.
  const Owned kept(DType::f32, s.M, s.C, sum16.floats());
  device->add_rmsnorm({out32, {}, rstd32, kept, {}, wide.weight, kNormEps});
  CHECK(rstd16.bytes() == rstd32.bytes());
  CHECK(h16.floats() == rounded(h32.floats()));

  const std::vector<float> gradients = rounded(normal(4, s.M * s.C)),
                           residuals = rounded(normal(5, s.M * s.C));
  const Owned dh32(DType::f32, s.M, s.C, gradients), dh16(DType::bf16, s.M, s.C, gradients);
  const Owned dres32(DType::f32, s.M, s.C, residuals), dres16(DType::bf16, s.M, s.C, residuals);
  const Owned dx32(DType::f32, s.M, s.C), dx16(DType::bf16, s.M, s.C);
  const Owned dw32(DType::f32, 1, s.C), dw16(DType::bf16, 1, s.C);
  QuantizedTensor back32 = operand(dx32), back16 = operand(dx16);
  device->rmsnorm_backward({back32, dw32, false, dres32, dh32, kept, rstd32, wide.weight});
  device->rmsnorm_backward({back16, dw16, false, dres16, dh16, sum16, rstd16, narrow.weight});
  CHECK(dx16.floats() == rounded(dx32.floats()));
  CHECK(dw16.floats() == rounded(dw32.floats()));
}

// ---- any device against the CPU device

/// Returns 1 / sqrt(mean of squares + eps) of each row, in FP64.
std::vector<double> exact_rstd(const Tensor& x, float eps) {
  std::vector<double> rstd(static_cast<std::size_t>(x.rows));
  for (std::int64_t r = 0; r < x.rows; ++r) {
    double squares = 0;
    for (std::int64_t c = 0; c < x.cols; ++c) squares += std::pow(HostMemory::get(x, r * x.cols + c), 2.0);
    rstd[static_cast<std::size_t>(r)] = 1.0 / std::sqrt(squares / static_cast<double>(x.cols) + eps);
  }
  return rstd;
}

/// Returns the weight's gradient in FP64, added to `before`.
std::vector<double> exact_dweight(std::vector<double> before, const Tensor& dh, const Tensor& x,
                                  const Tensor& rstd) {
  for (std::int64_t c = 0; c < x.cols; ++c)
    for (std::int64_t r = 0; r < x.rows; ++r)
      before[static_cast<std::size_t>(c)] += static_cast<double>(HostMemory::get(dh, r * x.cols + c)) *
                                             HostMemory::get(x, r * x.cols + c) * rstd.as<float>()[r];
  return before;
}

PRECBENCH_OP_TEST(rmsnorm_on, "add_rmsnorm, recompute_rmsnorm and rmsnorm_backward") {
  // Whole tiles; one vector per thread missing; several vectors; a width of four vectors per thread; one for
  // which rmsnorm_backward needs exactly the shared memory that a block has by default.
  for (const Size& size : {Size{256, 256}, Size{37, 264}, Size{130, 2560}, Size{5, 8200}, Size{5, 12288}})
    for (const bool branched : {true, false}) {
      b.start();
      HostMemory& host = b.host();
      const std::int64_t M = size.M, C = size.C;
      INFO(M << " x " << C << (branched ? " with" : " without") << " a branch");
      const Tensor x = host.random(DType::bf16, M, C, 2.0f), weight = host.random(DType::bf16, 1, C, 1.0f);
      const Tensor branch = branched ? host.random(DType::bf16, M, C, 1.0f) : Tensor{};
      for (std::int64_t c = 0; c < C; ++c) HostMemory::set(x, 3 % M * C + c, 0.0f);  // a row dominated by eps

      const auto forward = [&](DType dtype, Tensor& sum, Tensor& rstd) {
        QuantizedTensor h;
        h.value = host.tensor(dtype, M, C);
        sum = branched ? host.tensor(dtype, M, C) : host.converted(x, dtype);
        rstd = host.tensor(DType::f32, M, 1);
        b.cpu().add_rmsnorm({h, sum, rstd, host.converted(x, dtype), host.converted(branch, dtype),
                             host.converted(weight, dtype), kNormEps});
        return h.value;
      };
      Tensor cpu_sum, cpu_rstd, true_sum, true_rstd;
      const Tensor naive = forward(DType::bf16, cpu_sum, cpu_rstd);
      const Tensor truth = forward(DType::f32, true_sum, true_rstd);

      const Tensor dev_x = b.put(x), dev_branch = b.put(branch), dev_weight = b.put(weight);
      const Tensor sum = branched ? b.output(DType::bf16, M, C) : dev_x;
      const Tensor rstd = b.output(DType::f32, M, 1);
      const Tensor h = b.check_operand("h", M, C, [&](QuantizedTensor& out) {
        b.device().add_rmsnorm({out, sum, rstd, dev_x, dev_branch, dev_weight, kNormEps});
      });
      CHECK(same_bits(b.fetch(sum), cpu_sum));
      check_twice("h", h, naive, HostMemory::values(truth));
      check_twice("rstd", b.fetch(rstd), cpu_rstd, exact_rstd(cpu_sum, kNormEps));  // of the stored BF16 sum

      const Tensor again = b.check_operand("h again", M, C, [&](QuantizedTensor& out) {
        b.device().recompute_rmsnorm({out, sum, rstd, dev_weight});
      });
      CHECK(same_bits(again, h));

      const Tensor dh = host.random(DType::bf16, M, C, 1.0f);
      const Tensor dresidual = branched ? host.random(DType::bf16, M, C, 1.0f) : Tensor{};
      for (const DType grad : {DType::f32, DType::bf16})
        for (const bool accumulate : {true, false}) {
          INFO("dweight " << name_of(grad) << (accumulate ? " +=" : " ="));
          const Tensor before = host.random(grad, 1, C, 1.0f);
          const auto backward = [&](DType dtype, DType gradient, Tensor& dweight) {
            QuantizedTensor dx;
            dx.value = host.tensor(dtype, M, C);
            dweight = host.converted(before, gradient);
            b.cpu().rmsnorm_backward({dx, dweight, accumulate, host.converted(dresidual, dtype),
                                      host.converted(dh, dtype), host.converted(cpu_sum, dtype), cpu_rstd,
                                      host.converted(weight, dtype)});
            return dx.value;
          };
          Tensor cpu_dweight, unused;
          const Tensor naive_dx = backward(DType::bf16, grad, cpu_dweight);
          const Tensor true_dx = backward(DType::f32, DType::f32, unused);
          const std::vector<double> none(static_cast<std::size_t>(C));
          const std::vector<double> true_dweight =
              exact_dweight(accumulate ? HostMemory::values(before) : none, dh, cpu_sum, cpu_rstd);
          const Tensor dev_dh = b.put(dh), dev_sum = b.put(cpu_sum), dev_rstd = b.put(cpu_rstd);
          const Tensor dev_residual = b.put(dresidual), dev_before = b.put(before);
          const Tensor dweight = b.output(grad, 1, C);
          const Tensor dx = b.check_operand("dx", M, C, [&](QuantizedTensor& out) {
            b.device().convert({dweight, dev_before});
            b.device().rmsnorm_backward(
                {out, dweight, accumulate, dev_residual, dev_dh, dev_sum, dev_rstd, dev_weight});
          });
          check_twice("dx", dx, naive_dx, HostMemory::values(true_dx));
          check_twice("dweight", b.fetch(dweight), cpu_dweight, true_dweight);
        }
    }
}

PRECBENCH_OP_TEST(rmsnorm_poison_on,
                  "add_rmsnorm and rmsnorm_backward: what is not finite reaches its own row alone") {
  for (const Size& size : {Size{37, 264}, Size{130, 2560}}) {
    b.start();
    HostMemory& host = b.host();
    const std::int64_t M = size.M, C = size.C, bad_row = M / 2, bad_column = C - 3;
    INFO(M << " x " << C);
    const Tensor x = host.random(DType::bf16, M, C, 1.0f), branch = host.random(DType::bf16, M, C, 1.0f),
                 dh = host.random(DType::bf16, M, C, 1.0f),
                 weight = b.put(host.random(DType::bf16, 1, C, 1.0f));
    struct Out {
      Tensor h, sum, dx, dweight;
    };
    const auto run = [&] {
      QuantizedTensor h{.value = b.output(DType::bf16, M, C)}, dx{.value = b.output(DType::bf16, M, C)};
      const Tensor sum = b.output(DType::bf16, M, C), rstd = b.output(DType::f32, M, 1),
                   dweight = b.output(DType::f32, 1, C);
      b.device().add_rmsnorm({h, sum, rstd, b.put(x), b.put(branch), weight, kNormEps});
      b.device().rmsnorm_backward({dx, dweight, false, {}, b.put(dh), sum, rstd, weight});
      return Out{b.fetch(h.value), b.fetch(sum), b.fetch(dx.value), b.fetch(dweight)};
    };
    const Out clean = run();
    const auto never = [](auto, auto) { return false; };
    const auto in_row = [&](std::int64_t row, auto) { return row == bad_row; };
    const auto here = [&](std::int64_t row, std::int64_t column) {
      return row == bad_row && column == bad_column;
    };
    const auto poisoned = [&](const Tensor& t, float poison) {
      const std::int64_t at = bad_row * C + bad_column;
      const float was = HostMemory::get(t, at);
      HostMemory::set(t, at, poison);
      const Out got = run();
      HostMemory::set(t, at, was);
      return got;
    };
    for (const Tensor& t : {x, branch}) {
      const Out got = poisoned(t, std::numeric_limits<float>::quiet_NaN());
      check_reached("sum", got.sum, clean.sum, here);
      check_reached("h", got.h, clean.h, in_row);
      check_reached("dx", got.dx, clean.dx, in_row);
      check_reached("dweight", got.dweight, clean.dweight, [](auto, auto) { return true; });
      // With an infinite element the rstd is 0, and only that element becomes non-finite; other rows are
      // unchanged.
      const Out infinite = poisoned(t, std::numeric_limits<float>::infinity());
      CHECK_FALSE(std::isfinite(HostMemory::get(infinite.h, bad_row * C + bad_column)));
      for (std::int64_t c = 0; c < C; ++c) HostMemory::set(infinite.h, bad_row * C + c, NAN);
      check_reached("h of infinity", infinite.h, clean.h, in_row);
    }
    for (const float poison :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      INFO("gradient of " << poison);
      const Out got = poisoned(dh, poison);
      check_reached("h", got.h, clean.h, never);
      check_reached("dx", got.dx, clean.dx, in_row);
      check_reached("dweight", got.dweight, clean.dweight,
                    [&](auto, std::int64_t column) { return column == bad_column; });
    }
  }
}

namespace {

/// Random inputs of the rmsnorms on a device, and their results without quantized copies.
struct RmsnormRun {
  OpTest& b;
  std::int64_t M, C;
  Tensor x = random(M), branch = random(M), dh = random(M), dresidual = random(M), weight = random(1);
  Tensor sum = b.output(DType::bf16, M, C), rstd = b.output(DType::f32, M, 1);
  Tensor dweight = b.output(DType::f32, 1, C);
  Tensor h, dx, plain_dweight;  ///< fetched

  RmsnormRun(OpTest& test, std::int64_t rows, std::int64_t cols) : b(test), M(rows), C(cols) {
    const QuantizedTensor plain = b.operand({}, M, C);
    forward(plain);
    h = b.fetch(plain.value);
    backward(plain);
    dx = b.fetch(plain.value), plain_dweight = b.fetch(dweight);
  }
  Tensor random(std::int64_t rows) const { return b.put(b.host().random(DType::bf16, rows, C, 1.0f)); }
  void forward(const QuantizedTensor& out) const {
    b.device().add_rmsnorm({out, sum, rstd, x, branch, weight, kNormEps});
  }
  void backward(const QuantizedTensor& out) const {
    b.device().rmsnorm_backward({out, dweight, false, dresidual, dh, sum, rstd, weight});
  }
};

}  // namespace

PRECBENCH_OP_TEST(rmsnorm_many_rows_on, "the rmsnorms of more rows than a GPU has blocks") {
  const std::int64_t M = b.on_cpu() ? 48 : 1216, C = b.on_cpu() ? 64 : 4096;
  const RmsnormRun run(b, M, C);
  for (const OutputFormats& formats : {OutputFormats{kTensorE4m3, kTensorE4m3},
                                       {kRow, kRow},
                                       {{}, kRow},
                                       {kTensorE4m3, kRow},
                                       {kBlock, kBlockPow2}}) {
    const std::string what = ", row " + describe(formats.rowwise) + ", col " + describe(formats.columnwise);
    QuantizedTensor out = b.operand(formats, M, C);
    for (const bool keep : {true, false}) {
      out.keep_value = keep;
      run.forward(out);
      b.check_copies("h" + what, out, run.h);
      run.backward(out);
      b.check_copies("dx" + what, out, run.dx);
    }
    CHECK(same_bits(b.fetch(run.dweight), run.plain_dweight));
  }
}

PRECBENCH_OP_TEST(rmsnorm_known_on, "the rmsnorms of many rows with scales that are known") {
  QuantFormat x = kTensorE4m3, dy = kTensorE5m2;
  x.history = {.length = 16, .margin = 1};
  dy.history = {.length = 16};
  HostMemory& host = b.host();
  // More than 16 rows for each half of a GPU's multiprocessors; a width with a partial last vector.
  const std::int64_t M = b.on_cpu() ? 48 : 4112;
  for (const std::int64_t C : {264, b.on_cpu() ? 64 : 4096}) {
    const RmsnormRun run(b, M, C);
    const Tensor known = host.tensor(DType::f32, 1, 1), staged = host.tensor(DType::f32, 1, 1);
    const Tensor dev_known = b.put(known), dev_staged = b.put(staged);
    for (const OutputFormats& formats : {OutputFormats{x, x}, {x, dy}, {dy, {}}, {{}, x}})
      for (const bool keep : {true, false})
        for (const float before : {0.0f, 1000.0f}) {
          QuantizedTensor out = b.operand(formats, M, C);
          out.keep_value = keep;
          out.amax_in = dev_known, out.amax_out = dev_staged;
          const auto check = [&](const char* what, const Tensor& value, auto&& op) {
            INFO(what << " " << C << " row " << describe(formats.rowwise) << " col "
                      << describe(formats.columnwise) << (keep ? " kept" : "") << " staged " << before);
            known.as<float>()[0] = 2.5f, staged.as<float>()[0] = before;
            b.device().upload(dev_known, known.data);
            b.device().upload(dev_staged, staged.data);
            op();
            QuantizedTensor expected = b.host_operand(formats, value);
            expected.amax_in = known, expected.amax_out = staged;
            b.cpu().quantize({expected});
            for (const auto operand : {&QuantizedTensor::rowwise, &QuantizedTensor::columnwise}) {
              if ((out.*operand).empty()) continue;
              CHECK(same_bits(b.fetch((out.*operand).data), (expected.*operand).data));
              CHECK(same_bits(b.fetch((out.*operand).scale), (expected.*operand).scale));
            }
            CHECK(same_bits(b.fetch(dev_staged), staged));
            if (keep) CHECK(same_bits(b.fetch(out.value), value));
          };
          check("h", run.h, [&] { run.forward(out); });
          check("dx", run.dx, [&] { run.backward(out); });
          // With quantized copies, blocks handle other rows, so sums over rows have another order.
          const Tensor sums = b.fetch(run.dweight);
          for (std::int64_t c = 0; c < C; ++c)
            CHECK(std::fabs(sums.as<float>()[c] - run.plain_dweight.as<float>()[c]) < 1e-4);
        }
  }
}
