// A linear layer in every built-in recipe and control on the CPU device: the SQNR of its quantization (with
// random gradients) and the spread of non-finite values.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/numerics/fp4.h"
#include "kernels/numerics/scale_layout.h"
#include "models/transformer/linear/linear_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kM = 256, kN = 256,
                       kK = 384;  // tokens, out and in features; two blocks of 128 or more

struct Layer {
  std::vector<float> y, dx, dw;
};

/// Runs the layer with FP32 outputs, so that only quantization is measured.
Layer run(const Recipe& recipe, const std::vector<float>& x, const std::vector<float>& w,
          const std::vector<float>& dy) {
  Bench bench;
  const Linear linear(*bench.device, bench.arena, recipe);
  const Owned X(DType::bf16, kM, kK, x), W(DType::bf16, kN, kK, w), dY(DType::bf16, kM, kN, dy);
  const Owned y(DType::f32, kM, kN), dx(DType::f32, kM, kK), dw(DType::f32, kN, kK);
  const QuantizedTensor x_operand = bench.prepare(X, linear.x_rowwise(), linear.x_columnwise());
  const QuantizedTensor dy_operand = bench.prepare(dY, linear.dy_rowwise(), linear.dy_columnwise());
  linear.fprop(y, x_operand, {W, {}});
  linear.dgrad(dx, dy_operand, {W, {}}, X);
  linear.wgrad(dw, dy_operand, x_operand, {W, {}}, false);
  return {y.floats(), dx.floats(), dw.floats()};
}

/// Returns 20 log10(|reference| / |reference - x|), in dB.
double sqnr(const std::vector<float>& x, const std::vector<float>& reference) {
  return -20 * std::log10(relative_error(x, {reference.begin(), reference.end()}));
}

struct Data {
  std::vector<float> x = rounded(normal(1, kM* kK));
  std::vector<float> w = rounded(normal(2, kN* kK, 0.05f));
  std::vector<float> dy = rounded(normal(3, kM* kN, 1e-3f));
};

/// Returns the least SQNR of a cast in dB. A mantissa bit is worth 6 dB: three give 31.5 if few elements are
/// subnormal or clipped, one gives 19.6. Stochastic rounding has twice the noise.
double least_cast_sqnr(const QuantFormat& format) {
  if (format.element_rounding == ElementRounding::stochastic)
    return format.scale == ScaleType::e4m3 ? 16 : 14;
  if (format.scale_rounding == ScaleRounding::quest || format.element_scale < 1) return 15;
  const double bits = mantissa_bits_of(format.dtype, format.dropped_bits);
  return 13 + 6 * bits - (format.scale_rounding == ScaleRounding::floor ? 1 : 0);
}

std::vector<Recipe> builtin_and_fp4() {
  std::vector<Recipe> all = builtin_recipes();
  all.insert(all.end(), fp4_recipes().begin(), fp4_recipes().end());
  return all;
}

std::vector<Recipe> recipes_and_controls() {
  std::vector<Recipe> all = builtin_and_fp4();
  all.insert(all.end(), control_recipes().begin(), control_recipes().end());
  return all;
}

}  // namespace

TEST_CASE("quantize: every recipe format reaches its expected SQNR", "[linear][sqnr]") {
  const Data data;
  for (const Recipe& recipe : recipes_and_controls())
    for (GemmRole role : kGemmRoles)
      for (const QuantFormat& format : {recipe.gemm(role).a, recipe.gemm(role).b}) {
        if (!format.quantized()) continue;
        for (bool columns : {false, true}) {
          const double got = cast_sqnr(data.x, kM, kK, format, columns);
          INFO(recipe.name << " " << describe(format) << (columns ? " columns: " : " rows: ") << got
                           << " dB");
          CHECK(got >= least_cast_sqnr(format));
        }
      }
}

TEST_CASE("quantize: dropping a mantissa bit costs 6 dB SQNR on normal values", "[linear][sqnr]") {
  constexpr std::int64_t kRows = 256, kCols = 1024;
  const std::vector<float> x = rounded(normal(11, kRows * kCols));
  // From an independent computation, with FP32 scales per row.
  for (const auto& [dtype, dropped, want] : {std::tuple{DType::e4m3, 0, 31.6},
                                             {DType::e4m3, 1, 25.6},
                                             {DType::e4m3, 2, 19.7},
                                             {DType::e5m2, 0, 25.6},
                                             {DType::e5m2, 1, 19.7},
                                             {DType::e3m4, 0, 37.6},
                                             {DType::e3m3, 0, 31.6},
                                             {DType::e4m4, 0, 37.6},
                                             {DType::e5m3, 0, 31.6}}) {
    const QuantFormat format{dtype, Granularity::row, ScaleType::f32, ScaleRounding::none,
                             static_cast<std::uint8_t>(dropped)};
    const double got = cast_sqnr(x, kRows, kCols, format, false);
    INFO(describe(format) << ": " << got << " dB");
    CHECK(std::fabs(got - want) < 0.15);
  }
}

TEST_CASE("Linear: SQNR of each GEMM equals the combined noise of its operands", "[linear][sqnr]") {
  const Data data;
  const Layer exact = run(builtin_recipes()[0], data.x, data.w, data.dy);
  for (const Recipe& recipe : recipes_and_controls()) {
    if (!recipe.quantized()) continue;
    const Layer got = run(recipe, data.x, data.w, data.dy);
    const auto noise = [](double db) { return std::pow(10, -db / 10); };
    const auto check = [&](GemmRole role, double measured, double a_db, double b_db) {
      const GemmRecipe& gemm = recipe.gemm(role);
      if (!gemm.a.quantized()) return;
      // Independent noise adds in power.
      const double predicted = -10 * std::log10(noise(a_db) + noise(b_db));
      // Two e4m3 operands of 31 dB each give 28.
      const double least =
          std::round(-10 * std::log10(noise(least_cast_sqnr(gemm.a)) + noise(least_cast_sqnr(gemm.b))));
      INFO(recipe.name << " " << name_of(role) << ": " << measured << " dB, predicted " << predicted);
      CHECK(std::fabs(measured - predicted) < 0.3);
      CHECK(measured >= least);
    };
    const auto& [fprop, dgrad, wgrad] = std::tie(recipe.fprop, recipe.dgrad, recipe.wgrad);
    check(GemmRole::fprop, sqnr(got.y, exact.y), cast_sqnr(data.x, kM, kK, fprop.a, false),
          cast_sqnr(data.w, kN, kK, fprop.b, false));
    if (dgrad.b.from_fprop) continue;  // they also carry the noise of fprop's casts
    check(GemmRole::dgrad, sqnr(got.dx, exact.dx), cast_sqnr(data.dy, kM, kN, dgrad.a, false),
          cast_sqnr(data.w, kN, kK, dgrad.b, true));
    if (wgrad.a.quantized())
      check(GemmRole::wgrad, sqnr(got.dw, exact.dw), cast_sqnr(data.dy, kM, kN, wgrad.a, true),
            cast_sqnr(data.x, kM, kK, wgrad.b, true));
    else
      CHECK(got.dw == exact.dw);
  }
}

TEST_CASE("Linear: dX and dW exceed 30 dB SQNR if dY is exactly representable", "[linear][sqnr]") {
  // The setting of a common gate of 30 dB on dX and dW: dY = 1 has no rounding error.
  Data data;
  data.dy.assign(data.dy.size(), 1.0f);
  const Layer exact = run(builtin_recipes()[0], data.x, data.w, data.dy);
  for (const char* name : {"blockwise", "blockwise_pow2", "mxfp8", "rowwise"}) {
    const Layer got = run(find_recipe(name), data.x, data.w, data.dy);
    INFO(name << ": dX " << sqnr(got.dx, exact.dx) << " dB, dW " << sqnr(got.dw, exact.dw) << " dB");
    CHECK(sqnr(got.dx, exact.dx) >= 30);
    CHECK(sqnr(got.dw, exact.dw) >= 30);
  }
}

TEST_CASE("Linear: tokens of very different magnitude keep 25 dB SQNR with per-token scales",
          "[linear][sqnr]") {
  Data data;
  for (std::int64_t m = 0; m < kM; ++m)
    for (std::int64_t k = 0; k < kK; ++k) data.x[m * kK + k] = std::ldexp(data.x[m * kK + k], m % 31 - 15);
  const Layer exact = run(builtin_recipes()[0], data.x, data.w, data.dy);
  for (const char* name :
       {"rowwise", "rowwise_gw_hp", "blockwise", "blockwise_pow2", "mxfp8", "mxfp8_floor"}) {
    const Layer got = run(find_recipe(name), data.x, data.w, data.dy);
    double least = 100;
    for (std::int64_t m = 0; m < kM; ++m)
      least = std::min(least, sqnr({got.y.begin() + m * kN, got.y.begin() + (m + 1) * kN},
                                   {exact.y.begin() + m * kN, exact.y.begin() + (m + 1) * kN}));
    INFO(name << ": " << least << " dB");
    CHECK(least >= 25);
  }
}

TEST_CASE("Linear: a feed-forward layer keeps more than 20 dB SQNR in output and gradients",
          "[linear][sqnr]") {
  constexpr std::int64_t kF = 256;
  const std::vector<float> x = rounded(normal(1, kM * kK)), dy = rounded(normal(4, kM * kK));
  const float std = 1 / std::sqrt(static_cast<float>(kK));
  const std::vector<float> gate_up = rounded(normal(2, 2 * kF * kK, std)),
                           down = rounded(normal(3, kK * kF, std));
  // y = swiglu(x Wgu^T) Wd^T and its backward, with FP32 activations.
  const auto feed_forward = [&](const Recipe& recipe) {
    Bench bench;
    Device& device = *bench.device;
    const Linear linear(device, bench.arena, recipe);
    const auto make = [&](std::int64_t rows, std::int64_t cols) { return Owned(DType::f32, rows, cols); };
    const Owned X(DType::f32, kM, kK, x), dY(DType::f32, kM, kK, dy), Wgu(DType::f32, 2 * kF, kK, gate_up);
    const Owned Wd(DType::f32, kK, kF, down);
    const Owned pre = make(kM, 2 * kF), s = make(kM, kF), y = make(kM, kK), ds = make(kM, kF),
                dpre = make(kM, 2 * kF);
    const Owned dx = make(kM, kK), dWgu = make(2 * kF, kK), dWd = make(kK, kF);
    const QuantizedTensor x_op = bench.prepare(X, linear.x_rowwise(), linear.x_columnwise());
    const QuantizedTensor dy_op = bench.prepare(dY, linear.dy_rowwise(), linear.dy_columnwise());
    linear.fprop(pre, x_op, {Wgu, {}});
    QuantizedTensor s_plain = operand(s), dpre_plain = operand(dpre);
    device.swiglu({s_plain, pre});
    const QuantizedTensor s_op = bench.prepare(s, linear.x_rowwise(), linear.x_columnwise());
    linear.fprop(y, s_op, {Wd, {}});
    linear.dgrad(ds, dy_op, {Wd, {}}, s);
    linear.wgrad(dWd, dy_op, s_op, {Wd, {}}, false);
    device.swiglu_backward({dpre_plain, s_plain, ds, pre});
    const QuantizedTensor dpre_op = bench.prepare(dpre, linear.dy_rowwise(), linear.dy_columnwise());
    linear.dgrad(dx, dpre_op, {Wgu, {}}, X);
    linear.wgrad(dWgu, dpre_op, x_op, {Wgu, {}}, false);
    return std::vector<std::vector<float>>{y.floats(), dx.floats(), dWgu.floats(), dWd.floats()};
  };
  const auto exact = feed_forward(builtin_recipes()[0]);
  for (const Recipe& recipe : builtin_recipes()) {
    if (!recipe.quantized()) continue;
    const auto got = feed_forward(recipe);
    // Three GEMMs lie between the input and dX: 28.5 dB each give 23.7, and SwiGLU's slope costs a little.
    // Scales that are rounded down clip elements: "floor" by up to half a binade, "even" by a sixteenth.
    const double least = recipe.dgrad.a.dtype == DType::e5m2                     ? 20
                         : recipe.dgrad.a.scale_rounding == ScaleRounding::floor ? 21.5
                         : recipe.dgrad.a.scale_rounding == ScaleRounding::even  ? 22.5
                                                                                 : 23;
    const char* names[] = {"y", "dx", "dW gate|up", "dW down"};
    for (int i = 0; i < 4; ++i) {
      INFO(recipe.name << " " << names[i] << ": " << sqnr(got[i], exact[i]) << " dB");
      CHECK(sqnr(got[i], exact[i]) > least);
    }
  }
}

TEST_CASE("Linear: a GEMM that a recipe keeps in BF16 equals BF16 bit for bit", "[linear]") {
  const Data data;
  const Layer exact = run(builtin_recipes()[0], data.x, data.w, data.dy);
  for (const char* name : {"mxfp8_wgrad_hp", "rowwise_gw_hp"}) {
    const Layer got = run(find_recipe(name), data.x, data.w, data.dy);
    CHECK(got.dw == exact.dw);
    CHECK((got.y != exact.y && got.dx != exact.dx));
  }
}

TEST_CASE("quantize: FP4 mean squared errors match an independent computation", "[linear][sqnr]") {
  constexpr std::int64_t kRows = 512, kCols = 1024;
  const std::vector<float> x = rounded(normal(12, kRows * kCols));
  const Recipe recipe = find_recipe("nvfp4");
  // Mean squared errors for N(0, 1): 9.0e-3 in rows, 12.4e-3 in squares, 18.8e-3 with stochastic rounding,
  // 7.6e-3 with four-over-six, 9.31e-3 with MS-EDEN. Quartet's published scales give 26.9e-3 for normal
  // values. They give 27.4e-3 for sums of eight uniform values, as here: the standard deviations of their
  // blocks are nearer to 1, where powers of two are worst.
  const Recipe quartet = find_recipe("quartet"), quartet2 = find_recipe("quartet2");
  for (const auto& [format, mse] : {std::pair{recipe.fprop.a, 9.0e-3},
                                    {recipe.fprop.b, 12.4e-3},
                                    {recipe.dgrad.a, 18.8e-3},
                                    {quartet2.fprop.a, 7.6e-3},
                                    {quartet2.dgrad.a, 9.31e-3},
                                    {quartet.fprop.a, 27.4e-3}})
    for (const bool columns : {false, true}) {
      const double got = std::pow(10, -cast_sqnr(x, kRows, kCols, format, columns) / 10);
      INFO(describe(format) << ": " << got);
      CHECK(std::fabs(got / mse - 1) < 0.02);
    }
}

TEST_CASE("Linear: weights in square blocks are equal in fprop and dgrad", "[linear]") {
  // Rows of the identity are exact in every format, so Y and dX are the weights as the GEMMs see them.
  Data data;  // weights of many magnitudes, so that row and column scales flush different ones to 0
  for (std::int64_t i = 0; i < kN * kK; ++i)
    data.w[i] = std::ldexp(data.w[i], -static_cast<int>(i % kK % 20));
  std::vector<float> x(kM * kK), dy(kM * kN);
  for (std::int64_t i = 0; i < kM; ++i) x[i * kK + i] = dy[i * kN + i] = 1;
  const auto differences = [&](const char* recipe) {
    const Layer got = run(find_recipe(recipe), x, data.w, dy);
    std::int64_t count = 0;
    for (std::int64_t n = 0; n < kN; ++n)
      for (std::int64_t k = 0; k < kM; ++k) count += got.dx[n * kK + k] != got.y[k * kN + n];
    return count;
  };
  CHECK(differences("mxfp8_w2d") == 0);
  CHECK(differences("nvfp4_rne") == 0);
  CHECK(differences("nvfp4_w1d") > 0);
  CHECK(differences("mxfp8") > 0);
}

TEST_CASE("Linear: gradients of dequantized fprop operands have the noise of dY and of the second cast",
          "[linear][sqnr]") {
  const Data data;
  for (const char* name : {"quartet", "quartet_sr", "quartet2"}) {
    const Recipe recipe = find_recipe(name);
    const QuantFormat& format = recipe.fprop.a;
    const int length = format.transform.length;
    // The values that fprop multiplied, and which of them it clipped.
    struct Seen {
      std::vector<float> values;
      std::vector<bool> clipped;
    };
    const auto seen = [&](const std::vector<float>& values, std::int64_t rows) {
      Bench bench;
      const Owned value(DType::bf16, rows, kK, values), codes(DType::bf16, rows, kK);
      const QuantizedTensor x = bench.prepare(value, format, {});
      bench.device->dequantize({codes, x.rowwise});
      Seen result{codes.floats(), std::vector<bool>(values.size())};
      std::vector<float> turned = values;
      for (std::size_t i = 0; recipe.mask_clipped && i < turned.size(); ++i) {
        if (i % static_cast<std::size_t>(length) == 0)
          with_length(length, [&](auto n) { hadamard_transform<n()>(&turned[i], {}); });
        const auto at = static_cast<std::int64_t>(i);
        const std::int64_t scale = scale_index(format.granularity, rows, kK, at / kK, at % kK / 32);
        result.clipped[i] = fp4_clips(turned[i], x.rowwise.scale.as<std::uint8_t>()[scale]);
      }
      return result;
    };
    const Seen x = seen(data.x, kM), w = seen(data.w, kN);
    const auto turned_back = [&](std::vector<double> gradient, const Seen& operand) {
      std::vector<float> row(gradient.begin(), gradient.end());
      for (std::size_t i = 0; i < row.size(); ++i)
        if (operand.clipped[i]) row[i] = 0;
      for (std::size_t i = 0; length > 0 && i < row.size(); i += static_cast<std::size_t>(length))
        with_length(length, [&](auto n) { hadamard_sums<n()>(&row[i]); });
      for (float& value : row) value *= length > 0 ? hadamard_factor(length) : 1.0f;
      return std::vector<double>(row.begin(), row.end());
    };
    std::vector<double> dx(kM * kK), dw(kN * kK);
    for (std::int64_t m = 0; m < kM; ++m)
      for (std::int64_t n = 0; n < kN; ++n)
        for (std::int64_t k = 0; k < kK; ++k) {
          dx[m * kK + k] += static_cast<double>(data.dy[m * kN + n]) * w.values[n * kK + k];
          dw[n * kK + k] += static_cast<double>(data.dy[m * kN + n]) * x.values[m * kK + k];
        }
    const std::vector<double> want_dx = turned_back(dx, x), want_dw = turned_back(dw, w);
    const Layer got = run(recipe, data.x, data.w, data.dy);
    const auto check = [&](const char* what, const std::vector<float>& gradient,
                           const std::vector<double>& want, double a_db, double b_db) {
      const double measured = -20 * std::log10(relative_error(gradient, want));
      const double predicted = -10 * std::log10(std::pow(10, -a_db / 10) + std::pow(10, -b_db / 10));
      INFO(name << " " << what << ": " << measured << " dB, predicted " << predicted);
      CHECK(std::fabs(measured - predicted) < 0.3);
    };
    check("dX", got.dx, want_dx, cast_sqnr(data.dy, kM, kN, recipe.dgrad.a, false),
          cast_sqnr(w.values, kN, kK, recipe.dgrad.b, true));
    check("dW", got.dw, want_dw, cast_sqnr(data.dy, kM, kN, recipe.wgrad.a, true),
          cast_sqnr(x.values, kM, kK, recipe.wgrad.b, true));
  }
}

TEST_CASE("Linear: a non-finite value reaches exactly the outputs that share its scale", "[linear]") {
  constexpr std::int64_t kRow = 131, kCol = 200;
  // Returns the outputs [first, last) that share a scale with index i of n, along a non-contracted dimension.
  const auto scope = [](const QuantFormat& format, std::int64_t i, std::int64_t n) {
    if (format.granularity == Granularity::tensor || format.scale == ScaleType::e4m3)
      return std::pair<std::int64_t, std::int64_t>{0, n};
    const std::int64_t tall = block_rows(format.granularity), first = i / tall * tall;
    return std::pair<std::int64_t, std::int64_t>{first, std::min(n, first + tall)};
  };
  const Data clean;
  for (const Recipe& recipe : builtin_and_fp4()) {
    if (recipe.dgrad.b.from_fprop) continue;  // fprop's transform spreads the value over its whole length
    const Layer before = run(recipe, clean.x, clean.w, clean.dy);
    const auto check = [&](const char* what, const std::vector<float>& got, const std::vector<float>& was,
                           std::int64_t cols, std::pair<std::int64_t, std::int64_t> rows_hit,
                           std::pair<std::int64_t, std::int64_t> cols_hit) {
      std::int64_t finite_inside = 0, changed_outside = 0;
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(got.size()); ++i) {
        const std::int64_t r = i / cols, c = i % cols;
        const bool inside =
            r >= rows_hit.first && r < rows_hit.second && c >= cols_hit.first && c < cols_hit.second;
        finite_inside += inside && std::isfinite(got[i]);
        changed_outside += !inside && got[i] != was[i];
      }
      INFO(what);
      CHECK(finite_inside == 0);
      CHECK(changed_outside == 0);
    };
    for (float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      INFO(recipe.name << " with " << bad);
      Data in_x, in_w, in_dy;
      in_x.x[kRow * kK + kCol] = bad;
      in_w.w[kRow * kK + kCol] = bad;
      in_dy.dy[kRow * kN + kCol] = bad;
      const Layer x = run(recipe, in_x.x, in_x.w, in_x.dy), w = run(recipe, in_w.x, in_w.w, in_w.dy);
      const Layer dy = run(recipe, in_dy.x, in_dy.w, in_dy.dy);
      const std::pair<std::int64_t, std::int64_t> none{0, 0}, all{0, 1 << 20};
      check("X in Y", x.y, before.y, kN, scope(recipe.fprop.a, kRow, kM), all);
      check("X in dX", x.dx, before.dx, kK, none, none);
      check("X in dW", x.dw, before.dw, kK, all, scope(recipe.wgrad.b, kCol, kK));
      check("W in Y", w.y, before.y, kN, all, scope(recipe.fprop.b, kRow, kN));
      check("W in dX", w.dx, before.dx, kK, all, scope(recipe.dgrad.b, kCol, kK));
      check("W in dW", w.dw, before.dw, kK, none, none);
      check("dY in dX", dy.dx, before.dx, kK, scope(recipe.dgrad.a, kRow, kM), all);
      check("dY in dW", dy.dw, before.dw, kK, scope(recipe.wgrad.a, kCol, kN), all);
    }
  }
}

TEST_CASE("Linear: values at BF16's limits stay finite and zeros stay zero", "[linear]") {
  Data data;
  for (std::int64_t k = 0; k < kK; ++k) {
    data.x[0 * kK + k] = 0;
    data.x[1 * kK + k] = k % 2 ? 1e-40f : 1e-38f;
    data.x[2 * kK + k] = k % 128 == 5 ? 3e38f : 0;  // sums of three of these with weights below 1/4 fit
    data.x[3 * kK + k] = k == 7 ? 1e4f : 1e-4f;
  }
  data.x = rounded(data.x);
  for (const Recipe& recipe : builtin_and_fp4()) {
    const Layer got = run(recipe, data.x, data.w, data.dy);
    INFO(recipe.name);
    for (std::int64_t n = 0; n < kN; ++n) REQUIRE(got.y[n] == 0);
    for (std::int64_t i = 0; i < 4 * kN; ++i) REQUIRE(std::isfinite(got.y[i]));
  }
}
