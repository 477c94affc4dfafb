// Gradients of a linear layer with Hadamard transforms, against central differences of its forward pass.
// Operands are chosen such that every cast is exact before and after the transforms. Forward is then linear
// except where it clips, and its differences equal its slope.
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/numerics/fp4.h"
#include "models/transformer/linear/linear_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kRows = 128, kOutputs = 256, kInputs = 128;  // tokens, out and in features

/// A matrix, and the step of each element in both directions for which forward's casts stay exact.
struct Points {
  std::vector<float> values, steps;
};

float sign_of(std::uint64_t seed, std::int64_t i) { return random_bits(seed, i) & 1 ? -1.0f : 1.0f; }

/// Returns a matrix in which every row and column of every `length` x `length` square holds 2, 1 and 1 with
/// random signs, and zeros. Any transform of that length along either dimension yields 0, 2 and 4 over
/// sqrt(length), which fit a block of FP4, as 0, 1, 2 and 4 do. Squares differ in magnitude; `unit`
/// compensates an irrational sqrt(length).
Points sparse(std::uint64_t seed, std::int64_t rows, std::int64_t cols, std::int64_t length, float unit) {
  Points p{std::vector<float>(rows * cols), std::vector<float>(rows * cols)};
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int64_t square = r / length * 3 + c / length, at = r * cols + c;
      const std::int64_t place = (c + 5 * r + 7 * square) % length;
      const float size = std::ldexp(unit, static_cast<int>(square % 2));
      const float magnitude = place == 0 ? 2.0f : place == 3 || place == 13 ? 1.0f : 0.0f;
      p.values[at] = sign_of(seed, at) * magnitude * size;
      p.steps[at] = magnitude == 0 ? size : magnitude * size;
    }
  return p;
}

/// Returns an operand for Quartet, whose fprop transforms rows by 32 without signs and whose backward
/// transforms the columns of the dequantized data with `signs`. After the first transform every element is
/// +-1; after the second one in 32 is nonzero. Every other square has a column of +-8, which clips at 3; its
/// position depends on the operand (`which`).
Points quartet_operand(int which, std::int64_t rows, const SignBits& signs) {
  constexpr int kLength = 32;
  constexpr float kStep = 0.5f;  // of each transformed element: 1 becomes 0.5 and 1.5
  Points p{std::vector<float>(rows * kInputs), std::vector<float>(rows * kInputs)};
  for (std::int64_t c = 0; c < kInputs; ++c)
    for (std::int64_t first = 0; first < rows; first += kLength) {
      const std::int64_t square = first / kLength * (kInputs / kLength) + c / kLength;
      const bool clips = square % 2 == 0 && c % kLength == (5 * square + 3 * which) % kLength;
      float column[kLength] = {};
      column[(5 * c + 7 * square) % kLength] =
          sign_of(static_cast<std::uint64_t>(which), square * kInputs + c) * (clips ? 8.0f : 1.0f);
      hadamard_sums<kLength>(column);
      signs.apply_to<kLength>(column, kLength);
      for (std::int64_t i = 0; i < kLength; ++i) {
        const float size = static_cast<float>(1 << first / kLength % 2);
        p.values[(first + i) * kInputs + c] = column[i] * size;
        p.steps[(first + i) * kInputs + c] = kStep * size / hadamard_factor(kLength);
      }
    }
  hadamard_sums<kLength>(p.values.data(), rows * kInputs);
  for (float& value : p.values) value *= hadamard_factor(kLength);
  return p;
}

/// The layer with the random numbers that the transformer would assign: one set of signs for dgrad and one
/// for wgrad.
class GradientLayer {
 public:
  explicit GradientLayer(const Recipe& recipe) : recipe_(recipe) {
    slots_.x.random = {word_, 0, 0, kDgrad, kWgrad};
    slots_.dy.random = {word_, 2, 0, kDgrad, kWgrad};
    slots_.w.random = {word_, 4, 0, kDgrad, kDgrad};
  }

  /// Returns the random signs of a transform in dgrad or wgrad.
  SignBits signs(GemmRole role) const {
    const Signs signs = recipe_.gemm(role).b.transform.signs;
    const bool wgrad = role == GemmRole::wgrad;
    return sign_bits(signs, *word_.tensor().as<std::uint32_t>(), slots_.dy.random.sign_stream(signs, wgrad));
  }
  std::vector<float> forward(const std::vector<float>& x, const std::vector<float>& w) const {
    Bench bench;
    const Linear linear(*bench.device, bench.arena, recipe_, OpClass::gemm, slots_);
    const Owned X(DType::f32, kRows, kInputs, x), W(DType::f32, kOutputs, kInputs, w),
        y(DType::f32, kRows, kOutputs);
    linear.fprop(y, bench.prepare(X, linear.x_rowwise(), {}, slots_.x.random), {W, {}});
    return y.floats();
  }
  struct Gradients {
    std::vector<float> dx, dw;
  };
  Gradients backward(const std::vector<float>& x, const std::vector<float>& w,
                     const std::vector<float>& dy) const {
    Bench bench;
    const Linear linear(*bench.device, bench.arena, recipe_, OpClass::gemm, slots_);
    const Owned X(DType::f32, kRows, kInputs, x), W(DType::f32, kOutputs, kInputs, w),
        dY(DType::f32, kRows, kOutputs, dy);
    const Owned dx(DType::f32, kRows, kInputs), dw(DType::f32, kOutputs, kInputs);
    const QuantizedTensor gradient =
        bench.prepare(dY, linear.dy_rowwise(), linear.dy_columnwise(), slots_.dy.random);
    linear.dgrad(dx, gradient, {W, {}}, X);
    linear.wgrad(dw, gradient, bench.prepare(X, {}, linear.x_columnwise(), slots_.x.random), {W, {}}, false);
    return {dx.floats(), dw.floats()};
  }

 private:
  static constexpr std::uint32_t kDgrad = 6, kWgrad = 7;

  const Recipe& recipe_;
  Owned word_{std::vector<std::int32_t>{0x2545F491}};
  LinearSlots slots_;
};

/// Returns the slope of L along each element of p, a matrix with rows of kK. parts(values) returns L split by
/// the rows of p. A row only affects its own part, so one element of every row is moved at a time.
std::vector<double> central_differences(
    const Points& p, const std::function<std::vector<double>(const std::vector<float>&)>& parts) {
  std::vector<double> slopes(p.values.size());
  for (std::int64_t k = 0; k < kInputs; ++k) {
    std::vector<float> above = p.values, below = p.values;
    for (std::size_t i = k; i < above.size(); i += kInputs) {
      above[i] += p.steps[i];
      below[i] -= p.steps[i];
    }
    const std::vector<double> high = parts(above), low = parts(below);
    for (std::size_t row = 0; row < high.size(); ++row) {
      const std::size_t i = row * kInputs + k;
      slopes[i] = (high[row] - low[row]) / (2.0 * static_cast<double>(p.steps[i]));
    }
  }
  return slopes;
}

/// Number of elements whose gradient differs from the slope, and number of nonzero slopes.
struct Compared {
  std::int64_t wrong = 0, not_zero = 0;
  double farthest = 0;  ///< relative to the largest slope
};
Compared compare(const std::vector<float>& gradient, const std::vector<double>& slopes) {
  double largest = 0;
  for (const double slope : slopes) largest = std::max(largest, std::fabs(slope));
  Compared result;
  for (std::size_t i = 0; i < slopes.size(); ++i) {
    const double distance = std::fabs(static_cast<double>(gradient[i]) - slopes[i]) / largest;
    result.farthest = std::max(result.farthest, distance);
    result.wrong += !(distance <= kFp32Error);
    result.not_zero += std::fabs(slopes[i]) > 1e-3 * largest;
  }
  return result;
}

/// Checks dX and dW of L = sum(Y o dY).
void check_slopes(const Recipe& recipe, const Points& x, const Points& w, const std::vector<float>& dy) {
  const GradientLayer layer(recipe);
  /// Returns L by rows of X (tokens) or of W (out features).
  const auto parts = [&](const std::vector<float>& y, bool by_token) {
    std::vector<double> sums(by_token ? kRows : kOutputs);
    for (std::int64_t m = 0; m < kRows; ++m)
      for (std::int64_t n = 0; n < kOutputs; ++n)
        sums[by_token ? m : n] +=
            static_cast<double>(y[m * kOutputs + n]) * static_cast<double>(dy[m * kOutputs + n]);
    return sums;
  };
  const GradientLayer::Gradients got = layer.backward(x.values, w.values, dy);
  const auto of_x = [&](const std::vector<float>& moved) {
    return parts(layer.forward(moved, w.values), true);
  };
  const auto of_w = [&](const std::vector<float>& moved) {
    return parts(layer.forward(x.values, moved), false);
  };
  const Compared dx = compare(got.dx, central_differences(x, of_x));
  const Compared dw = compare(got.dw, central_differences(w, of_w));
  INFO(recipe.name << ": dX " << dx.wrong << " wrong, the farthest " << dx.farthest << ", " << dx.not_zero
                   << " not 0; dW " << dw.wrong << ", " << dw.farthest << ", " << dw.not_zero);
  CHECK(dx.wrong == 0);
  CHECK(dw.wrong == 0);
  CHECK(dx.not_zero > kRows * kInputs / 32);
  CHECK(dw.not_zero > kOutputs * kInputs / 32);
}

}  // namespace

TEST_CASE("Linear: gradients through Hadamard transforms equal central differences of forward", "[linear]") {
  const auto check_sparse = [](const Recipe& recipe, std::int64_t length, float unit) {
    REQUIRE(recipe.wgrad.b.transform.length == length);
    check_slopes(recipe, sparse(1, kRows, kInputs, length, unit), sparse(2, kOutputs, kInputs, length, unit),
                 sparse(3, kRows, kOutputs, length, unit).values);
  };
  for (const char* name : {"nvfp4", "nvfp4_rne"}) check_sparse(find_recipe(name), 16, 1);
  for (const char* name : {"mxfp4_bwd", "mxfp4_bwd_rne"}) check_sparse(find_recipe(name), 64, 1);

  // MS-EDEN rounds its scales stochastically and clips a block's largest element slightly, so it is switched
  // off.
  Recipe quartet2 = find_recipe("quartet2");
  for (QuantFormat* format : {&quartet2.dgrad.a, &quartet2.dgrad.b, &quartet2.wgrad.a, &quartet2.wgrad.b}) {
    format->eden = 0;
    format->element_scale = 1;
    format->global_scale = 256;
  }
  check_sparse(quartet2, 128, std::sqrt(2.0f));
}

TEST_CASE("Linear: Quartet's gradients equal central differences and are 0 where fprop clips", "[linear]") {
  // fprop's data is rational and a transform of 32 is not: sqrt(1/2) instead of 3/4 makes it exact again.
  Recipe quartet = find_recipe("quartet");
  quartet.dgrad.b.element_scale = quartet.wgrad.b.element_scale = std::sqrt(0.5f);
  const GradientLayer layer(quartet);
  check_slopes(quartet, quartet_operand(1, kRows, layer.signs(GemmRole::wgrad)),
               quartet_operand(2, kOutputs, layer.signs(GemmRole::dgrad)),
               sparse(3, kRows, kOutputs, 32, std::sqrt(2.0f)).values);
}
