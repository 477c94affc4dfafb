// Heads of latent attention: on the CPU device against FP64 and its own transpose, on other devices against the CPU
// device; and attention of their widths.
#include <cmath>

#include "kernels/base/errors.h"
#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Shapes of DeepSeek's heads, and ones with few rope elements and values wider than keys.
std::vector<LatentHeadsOptions> latent_cases(std::int64_t multiple) {
  const std::int64_t m = multiple;
  const auto shape = [](std::int64_t B, std::int64_t T, std::int64_t heads, std::int64_t dim,
                        std::int64_t values) {
    return AttentionShape{
        .B = B, .T = T, .heads = heads, .kv_heads = heads, .head_dim = dim, .value_dim = values};
  };
  std::vector<LatentHeadsOptions> all;
  for (const bool interleaved : {true, false}) {
    all.push_back(
        {.shape = shape(2, 5, 3, 3 * m, m), .rope_dim = m, .theta = 1e4f, .interleaved = interleaved});
    all.push_back({.shape = shape(1, 70, 2, 4 * m, 5 * m),
                   .rope_dim = 3 * m,
                   .theta = 1e4f,
                   .scaling = {.kind = RopeScaling::Kind::yarn,
                               .factor = 4,
                               .original_context = 8,
                               .attention_factor = 1.25},
                   .interleaved = interleaved,
                   .q_scale = 1.5f});
    // Two halves of the rows at positions of their own.
    all.push_back({.shape = shape(4, 6, 17, 12 * m, 8 * m),
                   .rope_dim = 4 * m,
                   .theta = 1e4f,
                   .interleaved = interleaved,
                   .offset = 12,
                   .late_offset = 36});
  }
  return all;
}

struct LatentWidths {
  std::int64_t M, qkv, q, kv_up, latent;

  /// `direct`: queries are the first columns of the latent.
  LatentWidths(const LatentHeadsOptions& o, bool direct)
      : M(o.shape.tokens()),
        qkv(o.shape.qkv_width()),
        q(o.shape.q_width()),
        kv_up(o.kv_up_width()),
        latent((direct ? q : 16) + 16 + o.rope_dim) {}
};

}  // namespace

TEST_CASE("latent_heads: rotates the last elements of queries and one key for all heads", "[cpu][rope]") {
  const auto device = make_cpu_device(2);
  for (const LatentHeadsOptions& o : latent_cases(2)) {
    const LatentWidths w(o, false);
    const AttentionShape& s = o.shape;
    const std::int64_t D = s.head_dim, V = s.v_dim(), rope = o.rope_dim, nope = o.nope_dim();
    INFO("heads " << s.heads << " D " << D << " rope " << rope << " interleaved " << o.interleaved);
    const Owned q(DType::f32, w.M, w.q, normal(1, w.M * w.q)),
        kv(DType::f32, w.M, w.kv_up, normal(2, w.M * w.kv_up)),
        latent(DType::f32, w.M, w.latent, normal(3, w.M * w.latent)), qkv(DType::f32, w.M, w.qkv);
    device->latent_heads({qkv, q, kv, latent, o});
    const std::vector<double> qs = q.doubles(), kvs = kv.doubles(), latents = latent.doubles();
    const std::vector<float> table = make_rope_table(o.rope().angles());
    std::vector<double> want(static_cast<std::size_t>(w.M * w.qkv));
    for (std::int64_t row = 0; row < w.M; ++row) {
      const auto turned = [&](const double* x, std::int64_t i) {
        const std::int64_t half = rope / 2, pair = o.interleaved ? i / 2 : i % half;
        const bool second = o.interleaved ? i % 2 == 1 : i >= half;
        const std::int64_t first_at = o.interleaved ? 2 * pair : pair,
                           second_at = o.interleaved ? 2 * pair + 1 : pair + half;
        const float* angle = table.data() + o.rope().table_row(row) * rope + 2 * pair;
        return second ? x[second_at] * angle[0] + x[first_at] * angle[1]
                      : x[first_at] * angle[0] - x[second_at] * angle[1];
      };
      double* to = want.data() + row * w.qkv;
      for (std::int64_t h = 0; h < s.heads; ++h) {
        const double* head = qs.data() + row * w.q + h * D;
        const double* up = kvs.data() + row * w.kv_up + h * (nope + V);
        for (std::int64_t i = 0; i < D; ++i) {
          to[h * D + i] = o.q_scale * (i < nope ? head[i] : turned(head + nope, i - nope));
          to[w.q + h * D + i] =
              i < nope ? up[i] : turned(latents.data() + (row + 1) * w.latent - rope, i - nope);
        }
        for (std::int64_t i = 0; i < V; ++i) to[2 * w.q + h * V + i] = up[nope + i];
      }
    }
    CHECK(relative_error(qkv.floats(), want) < kFp32Error);
  }
}

TEST_CASE("latent_heads_backward: is the transpose and leaves other columns", "[cpu][rope]") {
  const auto device = make_cpu_device(2);
  for (const LatentHeadsOptions& o : latent_cases(2))
    for (const bool direct : {false, true}) {
      const LatentWidths w(o, direct);
      const Owned latent(DType::f32, w.M, w.latent, normal(3, w.M * w.latent)),
          apart(DType::f32, w.M, w.q, normal(1, w.M * w.q)),
          kv(DType::f32, w.M, w.kv_up, normal(2, w.M * w.kv_up)), qkv(DType::f32, w.M, w.qkv),
          dqkv(DType::f32, w.M, w.qkv, normal(4, w.M * w.qkv)), dapart(DType::f32, w.M, w.q),
          dkv(DType::f32, w.M, w.kv_up),
          dlatent(DType::f32, w.M, w.latent,
                  std::vector<float>(static_cast<std::size_t>(w.M * w.latent), 7.0f));
      const Owned &q = direct ? latent : apart, &dq = direct ? dlatent : dapart;
      device->latent_heads({qkv, q, kv, latent, o});
      device->latent_heads_backward({dq, dkv, dlatent, dqkv, o});
      const std::vector<float> x = latent.floats(), dx = dlatent.floats();
      double in = dot(kv.doubles(), dkv.floats());
      if (!direct) in += dot(apart.doubles(), dapart.floats());
      for (std::int64_t i = 0; i < w.M * w.latent; ++i) {
        const std::int64_t column = i % w.latent;
        if ((direct && column < w.q) || column >= w.latent - o.rope_dim)
          in += static_cast<double>(x[static_cast<std::size_t>(i)]) * dx[static_cast<std::size_t>(i)];
        else
          REQUIRE(dx[static_cast<std::size_t>(i)] == 7.0f);
      }
      const double out = dot(qkv.doubles(), dqkv.floats());
      CHECK(std::fabs(in - out) <= 1e-4 * std::sqrt(static_cast<double>(w.M * w.qkv)));
    }
}

PRECBENCH_OP_TEST(latent_heads_on, "latent_heads and latent_heads_backward") {
  for (const LatentHeadsOptions& o : latent_cases(16))
    for (const bool direct : {false, true}) {
      b.start();
      HostMemory& host = b.host();
      const LatentWidths w(o, direct);
      INFO("heads " << o.shape.heads << " rope " << o.rope_dim << " interleaved " << o.interleaved
                    << " direct " << direct);
      const Tensor latent = host.random(DType::bf16, w.M, w.latent, 1.0f),
                   apart = host.random(DType::bf16, w.M, w.q, 1.0f),
                   kv = host.random(DType::bf16, w.M, w.kv_up, 1.0f),
                   dqkv = host.random(DType::bf16, w.M, w.qkv, 1.0f);
      // The shared key's sums are compared by values of FP32, in which the CPU device adds too.
      const auto on_cpu = [&](DType dtype) {
        const Tensor in = host.converted(latent, dtype), q = direct ? in : host.converted(apart, dtype);
        const Tensor out = host.tensor(dtype, w.M, w.qkv), dkv = host.tensor(dtype, w.M, w.kv_up),
                     dlatent = host.converted(latent, dtype),
                     dq = direct ? dlatent : host.tensor(dtype, w.M, w.q);
        b.cpu().latent_heads({out, q, host.converted(kv, dtype), in, o});
        b.cpu().latent_heads_backward({dq, dkv, dlatent, host.converted(dqkv, dtype), o});
        return std::vector<Tensor>{out, dkv, dlatent, dq};
      };
      const std::vector<Tensor> naive = on_cpu(DType::bf16), truth = on_cpu(DType::f32);
      const Tensor in = b.put(latent), q = direct ? in : b.put(apart), dlatent = b.put(latent);
      const Tensor out = b.output(DType::bf16, w.M, w.qkv), dkv = b.output(DType::bf16, w.M, w.kv_up),
                   dq = direct ? dlatent : b.output(DType::bf16, w.M, w.q);
      b.device().latent_heads({out, q, b.put(kv), in, o});
      b.device().latent_heads_backward({dq, dkv, dlatent, b.put(dqkv), o});
      const std::vector<Tensor> got = {out, dkv, dlatent, dq};
      const char* names[] = {"qkv", "dkv_up", "dlatent", "dq"};
      for (int i = 0; i < 4; ++i) b.check(names[i], got[i], naive[i], truth[i]);
    }
}

PRECBENCH_OP_TEST(unequal_attention_on, "attention with values of another width than keys") {
  for (const AttentionShape& s :
       {AttentionShape{.B = 2, .T = 128, .heads = 4, .kv_heads = 4, .head_dim = 192, .value_dim = 128},
        AttentionShape{.B = 1, .T = 200, .heads = 2, .kv_heads = 2, .head_dim = 192, .value_dim = 128},
        AttentionShape{.B = 1, .T = 64, .heads = 2, .kv_heads = 2, .head_dim = 96, .value_dim = 64}}) {
    b.start();
    HostMemory& host = b.host();
    INFO("T " << s.T << " D " << s.head_dim << " V " << s.v_dim());
    const std::int64_t M = s.tokens();
    const Tensor qkv = host.random(DType::bf16, M, s.qkv_width(), 1.0f),
                 dout = host.random(DType::bf16, M, s.out_width(), 1.0f);
    const auto run_on = [&](Device& device, auto&& output, auto&& input, DType dtype) {
      const ops::Attention op{.out = operand(output(dtype, M, s.out_width())),
                              .lse = output(DType::f32, s.heads, M),
                              .qkv = input(qkv),
                              .shape = s};
      const Tensor d = output(dtype, M, s.qkv_width());
      device.attention(op);
      device.attention_backward({d, input(dout), op.out.value, op.lse, op.qkv, s});
      return std::vector<Tensor>{op.out.value, d};
    };
    const auto on_device = [&] {
      return run_on(
          b.device(), [&](auto... shape) { return b.output(shape...); },
          [&](const Tensor& t) { return b.put(t); }, DType::bf16);
    };
    if (!b.device().attention_refusal(s).empty()) {
      CHECK_THROWS_AS(on_device(), Unsupported);
      continue;
    }
    const auto on_cpu = [&](DType dtype) {
      return run_on(
          b.cpu(), [&](auto... shape) { return host.tensor(shape...); },
          [&](const Tensor& t) { return host.converted(t, dtype); }, dtype);
    };
    const std::vector<Tensor> got = on_device(), naive = on_cpu(DType::bf16), truth = on_cpu(DType::f32);
    b.check("out", got[0], naive[0], truth[0]);
    b.check("dqkv", got[1], naive[1], truth[1]);
  }
}
