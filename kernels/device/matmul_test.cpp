// The CPU device's GEMM on BF16 and FP32 operands: exact on small integers for every layout and accumulation
// mode, within the 2x rule on random values. Non-finite values reach only the rows that depend on them.
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

struct MatmulProblem {
  std::int64_t M, N, K;
};
// Vectors, odd sizes, and more rows and columns than a tile of D has (192 x 512).
constexpr MatmulProblem kProblems[] = {{1, 1, 1},     {1, 9, 5},     {7, 1, 33},
                                       {129, 40, 17}, {1100, 31, 6}, {130, 2100, 3}};

/// Returns a [rows, k] matrix as an operand, stored transposed on request, in the memory of `storage`.
GemmOperand operand_of(Owned& storage, DType dtype, const std::vector<float>& values, std::int64_t rows,
                       std::int64_t k, bool transposed) {
  if (!transposed) {
    storage = Owned(dtype, rows, k, values);
    return {{}, storage, {}, false};
  }
  std::vector<float> turned(values.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < k; ++i) turned[i * rows + r] = values[r * k + i];
  storage = Owned(dtype, k, rows, turned);
  return {{}, storage, {}, true};
}

template <class Real>
std::vector<Real> naive(const MatmulProblem& p, const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<Real> d(p.M * p.N);
  for (std::int64_t m = 0; m < p.M; ++m)
    for (std::int64_t n = 0; n < p.N; ++n) {
      Real total = 0;
      for (std::int64_t k = 0; k < p.K; ++k) total += static_cast<Real>(a[m * p.K + k]) * b[n * p.K + k];
      d[m * p.N + n] = total;
    }
  return d;
}

std::vector<float> small_integers(std::uint64_t seed, std::int64_t n) {
  std::vector<float> values = normal(seed, n, 2.0f);
  for (float& v : values) v = std::nearbyint(v);
  return values;
}

}  // namespace

TEST_CASE("matmul: exact on integers for every operand layout", "[cpu][matmul]") {
  const auto device = make_cpu_device(2);
  for (const MatmulProblem& p : kProblems) {
    const std::vector<float> a = small_integers(1, p.M * p.K), b = small_integers(2, p.N * p.K);
    const std::vector<float> before = small_integers(3, p.M * p.N);
    const std::vector<double> product = naive<double>(p, a, b);
    for (DType in : {DType::f32, DType::bf16})
      for (DType out : {DType::f32, DType::bf16})
        for (int variant = 0; variant < 8; ++variant) {
          const bool turn_a = variant & 1, turn_b = variant & 2, accumulate = variant & 4;
          INFO("M " << p.M << " N " << p.N << " K " << p.K << " " << name_of(in) << " to " << name_of(out)
                    << " variant " << variant);
          Owned a_storage, b_storage;
          const GemmOperand A = operand_of(a_storage, in, a, p.M, p.K, turn_a);
          const GemmOperand B = operand_of(b_storage, in, b, p.N, p.K, turn_b);
          // Without accumulation D starts as NaN, which must not remain.
          const Owned d = accumulate ? Owned(out, p.M, p.N, before) : Owned(out, p.M, p.N);
          device->matmul({d, A, B, {.accumulate = accumulate}});
          std::vector<float> expected(product.begin(), product.end());
          for (std::size_t i = 0; accumulate && i < expected.size(); ++i) expected[i] += before[i];
          CHECK(d.floats() == (out == DType::f32 ? expected : rounded(expected)));
        }
  }
}

TEST_CASE("matmul: error against FP64 is at most twice that of a naive FP32 GEMM", "[cpu][matmul]") {
  const auto device = make_cpu_device(2);
  for (const MatmulProblem& p : {MatmulProblem{65, 40, 96}, {40, 65, 1000}, {140, 20, 333}})
    for (int variant = 0; variant < 4; ++variant) {
      INFO("M " << p.M << " N " << p.N << " K " << p.K << " variant " << variant);
      const std::vector<float> a = normal(1, p.M * p.K), b = normal(2, p.N * p.K);
      const std::vector<double> reference = naive<double>(p, a, b);
      Owned a_storage, b_storage;
      const GemmOperand A = operand_of(a_storage, DType::f32, a, p.M, p.K, variant & 1);
      const GemmOperand B = operand_of(b_storage, DType::f32, b, p.N, p.K, variant & 2);
      const Owned wide(DType::f32, p.M, p.N), narrow(DType::bf16, p.M, p.N);
      device->matmul({wide, A, B, {}});
      device->matmul({narrow, A, B, {}});
      CHECK(relative_error(wide.floats(), reference) <= 2 * relative_error(naive<float>(p, a, b), reference));
      CHECK(narrow.floats() == rounded(wide.floats()));

      const std::vector<float> before = rounded(normal(3, p.M * p.N));
      const Owned sum32(DType::f32, p.M, p.N, before), sum16(DType::bf16, p.M, p.N, before);
      device->matmul({sum32, A, B, {.accumulate = true}});
      device->matmul({sum16, A, B, {.accumulate = true}});
      CHECK(sum16.floats() == rounded(sum32.floats()));
    }
}

TEST_CASE("matmul: a NaN or Inf in a row of A reaches only that row of D", "[cpu][matmul]") {
  const auto device = make_cpu_device(2);
  const MatmulProblem p{600, 9, 37};
  for (float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF})
    for (int variant = 0; variant < 4; ++variant) {
      std::vector<float> a = normal(1, p.M * p.K);
      a[531 * p.K + 30] = bad;
      Owned a_storage, b_storage;
      const GemmOperand A = operand_of(a_storage, DType::bf16, a, p.M, p.K, variant & 1);
      const GemmOperand B = operand_of(b_storage, DType::bf16, normal(2, p.N * p.K), p.N, p.K, variant & 2);
      const Owned d(DType::f32, p.M, p.N);
      device->matmul({d, A, B, {}});
      const std::vector<float> values = d.floats();
      for (std::int64_t m = 0; m < p.M; ++m)
        for (std::int64_t n = 0; n < p.N; ++n) REQUIRE(std::isfinite(values[m * p.N + n]) == (m != 531));
    }
}
