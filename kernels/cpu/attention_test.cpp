// Causal grouped-query attention on the CPU device against a naive FP64 softmax, and its gradient against
// finite differences of that. Sequence lengths lie around the 64 queries that the device takes at a time.
#include <algorithm>
#include <limits>

#include "kernels/cpu/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

struct Reference {
  std::vector<double> out, lse;
};

Reference attention(const AttentionShape& s, const std::vector<double>& qkv) {
  const std::int64_t D = s.head_dim, W = s.qkv_width(), group = s.heads / s.kv_heads;
  Reference r{std::vector<double>(s.tokens() * s.q_width()), std::vector<double>(s.heads * s.tokens())};
  std::vector<double> p(s.T);
  for (std::int64_t b = 0; b < s.B; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t t = 0; t < s.T; ++t) {
        const double* q = qkv.data() + (b * s.T + t) * W + h * D;
        const double* k = qkv.data() + b * s.T * W + (s.heads + h / group) * D;
        const double* v = k + s.kv_heads * D;
        double largest = -std::numeric_limits<double>::infinity(), total = 0;
        for (std::int64_t j = 0; j <= t; ++j) {
          p[j] = 0;
          for (std::int64_t c = 0; c < D; ++c) p[j] += q[c] * k[j * W + c];
          p[j] /= std::sqrt(static_cast<double>(D));
          largest = std::max(largest, p[j]);
        }
        for (std::int64_t j = 0; j <= t; ++j) total += p[j] = std::exp(p[j] - largest);
        r.lse[(b * s.heads + h) * s.T + t] = largest + std::log(total);
        double* out = r.out.data() + (b * s.T + t) * s.q_width() + h * D;
        for (std::int64_t j = 0; j <= t; ++j)
          for (std::int64_t c = 0; c < D; ++c) out[c] += p[j] / total * v[j * W + c];
      }
  return r;
}

std::vector<AttentionShape> shapes() {
  std::vector<AttentionShape> all;
  for (std::int64_t T : {1, 63, 65, 130}) {
    all.push_back({2, T, 2, 2, 6});  // groups of 1, 2 and 4
    all.push_back({2, T, 4, 2, 4});
    all.push_back({2, T, 4, 1, 4});
  }
  return all;
}

struct Run {
  Owned out, lse, dqkv;
};

/// Forward and backward; the backward's `out` may be given, so that both dtypes see the same one.
Run run(Device& device, const AttentionShape& s, const Tensor& qkv, const Tensor& dout,
        const Tensor& saved_out = {}) {
  Run r{{qkv.dtype, s.tokens(), s.q_width()},
        {DType::f32, s.heads, s.tokens()},
        {qkv.dtype, s.tokens(), s.qkv_width()}};
  QuantizedTensor out = operand(r.out);
  device.attention(out, r.lse, qkv, s);
  device.attention_backward(r.dqkv, dout, saved_out.empty() ? r.out.tensor() : saved_out, r.lse, qkv, s);
  return r;
}

}  // namespace

TEST_CASE("attention is the causal softmax over the keys of the head's group", "[cpu][attention]") {
  const auto device = make_cpu_device(2);
  for (const AttentionShape& s : shapes()) {
    INFO("T " << s.T << " heads " << s.heads << "/" << s.kv_heads);
    const Owned qkv(DType::f32, s.tokens(), s.qkv_width(), normal(1, s.tokens() * s.qkv_width()));
    const Owned dout(DType::f32, s.tokens(), s.q_width(), normal(2, s.tokens() * s.q_width()));
    const Run got = run(*device, s, qkv, dout);
    const Reference want = attention(s, qkv.doubles());
    CHECK(relative_error(got.out.floats(), want.out) < kFp32Error);
    CHECK(relative_error(got.lse.floats(), want.lse) < kFp32Error);

    const std::size_t size = got.dqkv.floats().size();
    const std::size_t stride = size < 100 ? 1 : size / 40 | 1;  // odd: visits q, k and v of every head
    check_gradient(
        [&](const std::vector<double>& moved) { return dot(attention(s, moved).out, dout.floats()); },
        qkv.doubles(), got.dqkv.floats(), stride);
  }
}

TEST_CASE("attention does not see the future", "[cpu][attention]") {
  const auto device = make_cpu_device(2);
  const AttentionShape s{1, 130, 4, 2, 8};
  std::vector<float> values = normal(1, s.tokens() * s.qkv_width());
  const Owned dout(DType::f32, s.tokens(), s.q_width(), normal(2, s.tokens() * s.q_width()));
  const Run before = run(*device, s, Owned(DType::f32, s.tokens(), s.qkv_width(), values), dout);
  const std::int64_t changed = 100;
  for (std::size_t i = changed * s.qkv_width(); i < values.size(); ++i) values[i] += 3.0f;
  const Run after = run(*device, s, Owned(DType::f32, s.tokens(), s.qkv_width(), values), dout);
  const std::vector<float> a = before.out.floats(), b = after.out.floats();
  const auto first = changed * s.q_width();
  CHECK(std::equal(a.begin(), a.begin() + first, b.begin()));
  CHECK_FALSE(std::equal(a.begin() + first, a.end(), b.begin() + first));
}

TEST_CASE("attention is stable at scores far beyond exp's range", "[cpu][attention]") {
  const auto device = make_cpu_device(2);
  const AttentionShape s{1, 70, 2, 1, 8};
  const Owned qkv(DType::f32, s.tokens(), s.qkv_width(), normal(1, s.tokens() * s.qkv_width(), 100.0f));
  const Owned dout(DType::f32, s.tokens(), s.q_width(), normal(2, s.tokens() * s.q_width()));
  const Run got = run(*device, s, qkv, dout);
  const Reference want = attention(s, qkv.doubles());
  CHECK(*std::max_element(want.lse.begin(), want.lse.end()) > 1e4);
  // A score of 1e4 has an absolute error of 1e4 roundoffs, which is the relative error of its exponential.
  CHECK(relative_error(got.out.floats(), want.out) < 1e4 * kFp32Error);
  CHECK(relative_error(got.lse.floats(), want.lse) < kFp32Error);
  for (float g : got.dqkv.floats()) REQUIRE(std::isfinite(g));
}

TEST_CASE("attention in BF16 is FP32 rounded once", "[cpu][attention]") {
  const auto device = make_cpu_device(2);
  const AttentionShape s{2, 65, 4, 2, 8};
  const std::vector<float> values = rounded(normal(1, s.tokens() * s.qkv_width()));
  const std::vector<float> grads = rounded(normal(2, s.tokens() * s.q_width()));
  const Owned qkv16(DType::bf16, s.tokens(), s.qkv_width(), values),
      dout16(DType::bf16, s.tokens(), s.q_width(), grads);
  const Owned qkv32(DType::f32, s.tokens(), s.qkv_width(), values),
      dout32(DType::f32, s.tokens(), s.q_width(), grads);
  const Run narrow = run(*device, s, qkv16, dout16);
  const Owned kept(DType::f32, s.tokens(), s.q_width(), narrow.out.floats());
  const Run wide = run(*device, s, qkv32, dout32, kept);
  CHECK(narrow.out.floats() == rounded(wide.out.floats()));
  CHECK(narrow.lse.bytes() == wide.lse.bytes());
  CHECK(narrow.dqkv.floats() == rounded(wide.dqkv.floats()));
}
