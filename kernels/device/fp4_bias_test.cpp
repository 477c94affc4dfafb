// Bias of FP4 GEMMs with stochastic rounding or EDEN correction behind random signs. Without bias, the
// squared error of the mean of B independent draws falls as 1 / B.
#include "kernels/device/compare_testing.h"
#include "kernels/numerics/fp4.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr std::int64_t kM = 48, kN = 32, kK = 256;
constexpr int kFew = 4, kMany = 64;

/// Squared error of the mean of GEMMs of two matrices in one format, over the squared exact result, after
/// kFew and after kMany draws.
struct MeanErrors {
  double few, many;
  /// Returns 1 without bias, and kMany / kFew if the error does not fall at all.
  double rest() const { return many / few * kMany / kFew; }
};

MeanErrors errors_of_means(OpTest& b, const QuantFormat& format) {
  b.start();
  HostMemory& host = b.host();
  const Tensor x = host.random(DType::bf16, kM, kK, 1.0f), y = host.random(DType::bf16, kN, kK, 0.1f);
  std::vector<double> exact, sum(kM * kN);
  double size = 0;
  for (std::int64_t m = 0; m < kM; ++m)
    for (std::int64_t n = 0; n < kN; ++n) {
      double product = 0;
      for (std::int64_t k = 0; k < kK; ++k)
        product += static_cast<double>(HostMemory::get(x, m * kK + k)) * HostMemory::get(y, n * kK + k);
      exact.push_back(product);
      size += product * product;
    }
  const auto error = [&](int draws) {
    double squares = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) squares += std::pow(sum[i] / draws - exact[i], 2);
    return squares / size;
  };
  QuantizedTensor a = b.operand({format, {}}, kM, kK), w = b.operand({format, {}}, kN, kK);
  a.value = b.put(x), w.value = b.put(y);
  const Tensor d = b.output(DType::f32, kM, kN), word = b.put(host.tensor(DType::i32, 1, 1));
  MeanErrors errors{};
  for (std::int32_t draw = 1; draw <= kMany; ++draw) {
    b.device().upload(word, &draw);
    a.random = {.word = word, .stream = 0, .row_signs = 4};
    w.random = {.word = word, .stream = 2, .row_signs = 4};
    b.device().quantize({a});
    b.device().quantize({w});
    b.device().matmul({d, a.rowwise, w.rowwise, {}});
    const Tensor product = b.fetch(d);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += product.as<float>()[i];
    if (draw == kFew) errors.few = error(draw);
  }
  errors.many = error(kMany);
  return errors;
}

}  // namespace

PRECBENCH_OP_TEST(unbiased_on, "products of stochastic FP4 and of EDEN's have no bias") {
  for (const QuantFormat& format :
       {unbiased_mxfp4_format(), find_recipe("mxfp4_bwd").dgrad.a, eden_format(), eden128_format()}) {
    const MeanErrors errors = errors_of_means(b, format);
    INFO(describe(format) << ": squared error " << errors.few << ", " << errors.many << ", of 1 / draws "
                          << errors.rest());
    // 1536 elements with nearly independent errors: their sum of squares has a deviation of 4%.
    CHECK(errors.rest() > 0.8);
    CHECK(errors.rest() < 1.2);
  }
}

PRECBENCH_OP_TEST(biased_on,
                  "products of FP4 rounded to nearest keep their error, clipped elements more of it") {
  // Without random signs all draws are equal; with them only the bias remains.
  CHECK(std::fabs(errors_of_means(b, mxfp4_format()).rest() * kFew / kMany - 1) < 1e-6);
  CHECK(std::fabs(errors_of_means(b, four_over_six_format()).rest() * kFew / kMany - 1) < 1e-6);
  const MeanErrors clipped = errors_of_means(b, mxfp4_format({64, Signs::gemm}));
  const MeanErrors stochastic_clipped =
      errors_of_means(b, mxfp4_format({64, Signs::gemm}, ElementRounding::stochastic));  // clips above 6
  INFO("of 1 / draws: to nearest " << clipped.rest() << ", stochastic without the factor 3/4 "
                                   << stochastic_clipped.rest());
  CHECK(clipped.rest() > 1.3);
  CHECK(stochastic_clipped.rest() > 1.3);
}
