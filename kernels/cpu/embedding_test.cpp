// The token embedding on the CPU device: rows copied, and their gradients summed by token and rounded once.
#include "kernels/cpu/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

// Tokens 2 and 0 come often, 1 and 5 never.
const std::vector<std::int32_t> kTokens = {2, 0, 3, 2, 2, 6, 4, 0, 2};
constexpr std::int64_t kVocabulary = 7, kWidth = 5, kRows = 9;

}  // namespace

TEST_CASE("embedding copies a token's row", "[cpu][embedding]") {
  const auto device = make_cpu_device(2);
  const std::vector<float> values = rounded(normal(1, kVocabulary * kWidth));
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Owned x(dtype, kRows, kWidth), table(dtype, kVocabulary, kWidth, values);
    device->embedding(x, Owned(kTokens), table);
    std::vector<float> expected;
    for (std::int32_t token : kTokens)
      expected.insert(expected.end(), values.begin() + token * kWidth, values.begin() + (token + 1) * kWidth);
    CHECK(x.floats() == expected);
  }
}

TEST_CASE("embedding_backward adds the gradients of a token's occurrences", "[cpu][embedding]") {
  const auto device = make_cpu_device(2);
  const std::vector<float> gradients = rounded(normal(2, kRows * kWidth));
  const std::vector<float> before = rounded(normal(3, kVocabulary * kWidth));
  // In token order in FP32, the order that the op promises.
  std::vector<float> expected = before;
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t c = 0; c < kWidth; ++c) expected[kTokens[r] * kWidth + c] += gradients[r * kWidth + c];
  for (DType dx_type : {DType::f32, DType::bf16}) {
    const Owned dx(dx_type, kRows, kWidth, gradients);
    const Owned wide(DType::f32, kVocabulary, kWidth, before),
        narrow(DType::bf16, kVocabulary, kWidth, before);
    device->embedding_backward(wide, dx, Owned(kTokens));
    device->embedding_backward(narrow, dx, Owned(kTokens));
    CHECK(wide.floats() == expected);
    CHECK(narrow.floats() == rounded(expected));
  }
}

TEST_CASE("embedding_backward is the derivative of embedding", "[cpu][embedding]") {
  const auto device = make_cpu_device(2);
  const std::vector<float> gradients = normal(2, kRows * kWidth);
  const Owned dtable(DType::f32, kVocabulary, kWidth, std::vector<float>(kVocabulary * kWidth));
  device->embedding_backward(dtable, Owned(DType::f32, kRows, kWidth, gradients), Owned(kTokens));
  const std::vector<float> table = normal(4, kVocabulary * kWidth);
  check_gradient(
      [&](const std::vector<double>& moved) {
        double loss = 0;
        for (std::int64_t r = 0; r < kRows; ++r)
          for (std::int64_t c = 0; c < kWidth; ++c)
            loss += moved[kTokens[r] * kWidth + c] * gradients[r * kWidth + c];
        return loss;
      },
      {table.begin(), table.end()}, dtable.floats());
}
