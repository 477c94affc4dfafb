// The token embedding on the CPU device: rows copied, and their gradients summed by token and rounded once.
#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

// Tokens 2 and 0 occur often, 1 and 5 never.
const std::vector<std::int32_t> kTokens = {2, 0, 3, 2, 2, 6, 4, 0, 2};
constexpr std::int64_t kVocabulary = 7, kWidth = 5, kTableRows = 9;

}  // namespace

TEST_CASE("embedding: copies each token's row", "[cpu][embedding]") {
  const auto device = make_cpu_device(2);
  const std::vector<float> values = rounded(normal(1, kVocabulary * kWidth));
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Owned x(dtype, kTableRows, kWidth), table(dtype, kVocabulary, kWidth, values);
    device->embedding({x, Owned(kTokens), table});
    std::vector<float> expected;
    for (std::int32_t token : kTokens)
      expected.insert(expected.end(), values.begin() + token * kWidth, values.begin() + (token + 1) * kWidth);
    CHECK(x.floats() == expected);
  }
}

TEST_CASE("embedding_backward: adds the gradients of all occurrences of a token", "[cpu][embedding]") {
  const auto device = make_cpu_device(2);
  const std::vector<float> gradients = rounded(normal(2, kTableRows * kWidth));
  const std::vector<float> before = rounded(normal(3, kVocabulary * kWidth));
  // Summed in FP32 in token order, which the op guarantees.
  std::vector<float> expected = before;
  for (std::int64_t r = 0; r < kTableRows; ++r)
    for (std::int64_t c = 0; c < kWidth; ++c) expected[kTokens[r] * kWidth + c] += gradients[r * kWidth + c];
  for (DType dx_type : {DType::f32, DType::bf16}) {
    const Owned dx(dx_type, kTableRows, kWidth, gradients);
    const Owned wide(DType::f32, kVocabulary, kWidth, before),
        narrow(DType::bf16, kVocabulary, kWidth, before);
    device->embedding_backward({wide, dx, Owned(kTokens)});
    device->embedding_backward({narrow, dx, Owned(kTokens)});
    CHECK(wide.floats() == expected);
    CHECK(narrow.floats() == rounded(expected));
  }
}

TEST_CASE("embedding: ranks that divide the table embed their own tokens alone", "[cpu][embedding]") {
  const auto device = make_cpu_device(2);
  constexpr std::int64_t kFirst = 3;
  const std::vector<float> values = rounded(normal(1, kVocabulary * kWidth));
  const std::vector<float> gradients = rounded(normal(2, kTableRows * kWidth));
  const Owned x(DType::f32, kTableRows, kWidth), whole(DType::f32, kVocabulary, kWidth, values);
  const Owned dx(DType::f32, kTableRows, kWidth, gradients), dtable(DType::f32, kVocabulary, kWidth, values);
  device->embedding({x, Owned(kTokens), whole});
  device->embedding_backward({dtable, dx, Owned(kTokens)});
  std::vector<float> sum(kTableRows * kWidth), updated;
  for (const auto& [first, count] :
       {std::pair<std::int64_t, std::int64_t>{0, kFirst}, {kFirst, kVocabulary - kFirst}}) {
    const std::vector<float> rows(values.begin() + first * kWidth, values.begin() + (first + count) * kWidth);
    const Owned part(DType::f32, kTableRows, kWidth), table(DType::f32, count, kWidth, rows);
    device->embedding({part, Owned(kTokens), table, first});
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part.floats()[i];
    device->embedding_backward({table, dx, Owned(kTokens), first});
    const std::vector<float> own = table.floats();
    updated.insert(updated.end(), own.begin(), own.end());
  }
  CHECK(sum == x.floats());
  CHECK(updated == dtable.floats());
}

TEST_CASE("embedding_backward: is the derivative of embedding", "[cpu][embedding]") {
  const auto device = make_cpu_device(2);
  const std::vector<float> gradients = normal(2, kTableRows * kWidth);
  const Owned dtable(DType::f32, kVocabulary, kWidth, std::vector<float>(kVocabulary * kWidth));
  device->embedding_backward({dtable, Owned(DType::f32, kTableRows, kWidth, gradients), Owned(kTokens)});
  const std::vector<float> table = normal(4, kVocabulary * kWidth);
  check_gradient(
      [&](const std::vector<double>& moved) {
        double loss = 0;
        for (std::int64_t r = 0; r < kTableRows; ++r)
          for (std::int64_t c = 0; c < kWidth; ++c)
            loss += moved[kTokens[r] * kWidth + c] * gradients[r * kWidth + c];
        return loss;
      },
      {table.begin(), table.end()}, dtable.floats());
}

// ---- any device against the CPU device

PRECBENCH_OP_TEST(embedding_on, "embedding copies rows, its backward adds them in token order") {
  // A table of V rows from token `first` on: of all tokens, or of some in the middle. 1,024 rows use all bits of a
  // sort's key, and tokens without a row need another.
  for (const auto& [V, first] : {std::pair<std::int64_t, std::int64_t>{3, 0}, {1000, 0}, {3, 2}, {1024, 300}})
    for (const DType grad : {DType::f32, DType::bf16}) {
      b.start();
      HostMemory& host = b.host();
      const std::int64_t M = 300, C = 264;
      INFO("V " << V << " from " << first << ", dtable " << name_of(grad));
      const Tensor table = host.random(DType::bf16, V, C, 1.0f), tokens = host.tokens(M, V + 2 * first);
      const Tensor dx = host.random(DType::bf16, M, C, 1.0f), dtable = host.random(grad, V, C, 1.0f);
      const Tensor x = host.tensor(DType::bf16, M, C), dev_x = b.output(DType::bf16, M, C);
      const Tensor dev_tokens = b.put(tokens), dev_dtable = b.put(dtable);
      b.cpu().embedding({x, tokens, table, first});
      b.device().embedding({dev_x, dev_tokens, b.put(table), first});
      CHECK(same_bits(b.fetch(dev_x), x));
      b.cpu().embedding_backward({dtable, dx, tokens, first});
      b.device().embedding_backward({dev_dtable, b.put(dx), dev_tokens, first});
      CHECK(same_bits(b.fetch(dev_dtable), dtable));
    }
}
