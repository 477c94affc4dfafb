// Biases of experts and attention sinks: any device against FP64.
#include <cmath>

#include "kernels/device/moe_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

double value_at(const Tensor& t, std::int64_t i) { return HostMemory::get(t, i); }

/// Error of BF16 results, which are rounded once, or of FP32 sums.
double allowed(DType dtype, double size) { return size * (dtype == DType::bf16 ? 0x1p-8 : 0x1p-20); }

}  // namespace

PRECBENCH_OP_TEST(expert_bias_on, "add_expert_bias and expert_bias_backward") {
  for (const auto& [T, E, N] : {std::tuple{70, 4, 8}, {70, 9, 264}, {900, 5, 520}}) {
    INFO(T << " tokens, " << E << " experts, width " << N);
    b.start();
    HostMemory& host = b.host();
    const std::int64_t K = 2;
    // Experts without rows are among them: the last, and those between.
    const TwoGroups groups(b, uneven_index(T, K, E), K, E, 16);
    const std::int64_t rows = groups.cpu.rows_capacity();
    const std::vector<std::int32_t> source = integers(groups.cpu.source),
                                    offsets = integers(groups.cpu.offsets);
    const Tensor x = host.random(DType::bf16, rows, N, 1.0f), bias = host.random(DType::bf16, 1, E * N, 1.0f);
    for (std::int64_t r = 0; r < rows; ++r)  // padding is not read
      for (std::int64_t i = 0; source[r] < 0 && i < N; ++i) HostMemory::set(x, r * N + i, NAN);
    const Tensor sum = b.put(x);
    b.device().add_expert_bias({sum, b.put(bias), groups.device});
    const Tensor got = b.fetch(sum);
    std::vector<double> dbias(E * N), sizes(E * N);
    for (std::int64_t e = 0; e < E; ++e)
      for (std::int64_t r = offsets[e]; r < offsets[e + 1]; ++r)
        for (std::int64_t i = 0; source[r] >= 0 && i < N; ++i) {
          const double wanted = value_at(x, r * N + i) + value_at(bias, e * N + i);
          REQUIRE(std::fabs(value_at(got, r * N + i) - wanted) <= 0x1p-8 * std::fabs(wanted));
          dbias[e * N + i] += value_at(x, r * N + i);
          sizes[e * N + i] += std::fabs(value_at(x, r * N + i));
        }
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool accumulate : {false, true}) {
        const Tensor before = host.random(dtype, 1, E * N, 1.0f), after = b.put(before);
        b.device().expert_bias_backward({after, accumulate, b.put(x), groups.device});
        const Tensor result = b.fetch(after);
        for (std::int64_t i = 0; i < E * N; ++i)
          REQUIRE(std::fabs(value_at(result, i) - dbias[i] - (accumulate ? value_at(before, i) : 0)) <=
                  allowed(dtype, sizes[i] + 2));
      }
  }
}

PRECBENCH_OP_TEST(routed_bias_on, "add_routed_bias and routed_bias_backward") {
  for (const auto& [T, E, N] : {std::tuple{70, 4, 8}, {70, 9, 264}, {900, 5, 520}}) {
    INFO(T << " tokens, " << E << " experts, width " << N);
    b.start();
    HostMemory& host = b.host();
    const std::int64_t K = 2;
    const std::vector<std::int32_t> chosen = uneven_index(T, K, E);
    const Tensor index = host_integers(host, chosen, K), weights = host.random(DType::f32, T, K, 1.0f),
                 out = host.random(DType::bf16, T, N, 1.0f), bias = host.random(DType::bf16, 1, E * N, 1.0f),
                 dw = host.random(DType::f32, T, K, 1.0f);
    const Tensor sum = b.put(out);
    b.device().add_routed_bias({sum, b.put(bias), b.put(index), b.put(weights)});
    const Tensor got = b.fetch(sum);
    std::vector<double> dbias(E * N), sizes(E * N), dots(T * K), dot_sizes(T * K);
    for (std::int64_t t = 0; t < T; ++t)
      for (std::int64_t i = 0; i < N; ++i) {
        const double before = value_at(out, t * N + i);
        double wanted = before, size = std::fabs(before);
        for (std::int64_t slot = t * K; slot < (t + 1) * K; ++slot) {
          const std::int64_t at = chosen[slot] * N + i;
          const double weight = weights.as<float>()[slot], of_bias = value_at(bias, at);
          wanted += weight * of_bias, size += std::fabs(weight * of_bias);
          dbias[at] += weight * before, sizes[at] += std::fabs(weight * before);
          dots[slot] += before * of_bias, dot_sizes[slot] += std::fabs(before * of_bias);
        }
        REQUIRE(std::fabs(value_at(got, t * N + i) - wanted) <= 0x1p-8 * size);
      }
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool accumulate : {false, true}) {
        const Tensor before = host.random(dtype, 1, E * N, 1.0f), after = b.put(before), more = b.put(dw);
        b.device().routed_bias_backward(
            {after, accumulate, more, b.put(out), b.put(bias), b.put(index), b.put(weights)});
        const Tensor result = b.fetch(after), got_dw = b.fetch(more);
        for (std::int64_t i = 0; i < E * N; ++i)
          REQUIRE(std::fabs(value_at(result, i) - dbias[i] - (accumulate ? value_at(before, i) : 0)) <=
                  allowed(dtype, sizes[i] + 2));
        for (std::int64_t i = 0; i < T * K; ++i)
          REQUIRE(std::fabs(value_at(got_dw, i) - dots[i] - value_at(dw, i)) <= 0x1p-20 * (dot_sizes[i] + 2));
      }
  }
}

PRECBENCH_OP_TEST(merge_attention_on, "merge_attention") {
  for (const AttentionShape& shape :
       {AttentionShape{.B = 2, .T = 37, .heads = 4, .kv_heads = 2, .head_dim = 16},
        AttentionShape{.B = 1, .T = 200, .heads = 5, .kv_heads = 1, .head_dim = 96},
        AttentionShape{.B = 3, .T = 65, .heads = 32, .kv_heads = 8, .head_dim = 128}}) {
    INFO(shape.heads << " heads of " << shape.head_dim);
    b.start();
    HostMemory& host = b.host();
    const std::int64_t M = shape.tokens(), H = shape.heads, T = shape.T, D = shape.head_dim;
    const Tensor out = host.random(DType::f32, M, H * D, 1.0f), lse = host.random(DType::f32, H, M, 3.0f),
                 part = host.random(DType::bf16, M, H * D, 1.0f),
                 part_lse = host.random(DType::f32, H, M, 3.0f);
    part_lse.as<float>()[0] = -INFINITY;  // a query that sees none of these keys
    part_lse.as<float>()[1] = 80, part_lse.as<float>()[2] = -80;
    const Tensor new_out = b.put(out), new_lse = b.put(lse);
    b.device().merge_attention({new_out, new_lse, b.put(part), b.put(part_lse), shape});
    const Tensor got_out = b.fetch(new_out), got_lse = b.fetch(new_lse);
    for (std::int64_t row = 0; row < M; ++row)
      for (std::int64_t h = 0; h < H; ++h) {
        const std::int64_t at = (row / T * H + h) * T + row % T;
        const double kept = lse.as<float>()[at], added = part_lse.as<float>()[at];
        const double largest = std::max(kept, added);
        const double total = largest + std::log1p(std::exp(std::min(kept, added) - largest));
        REQUIRE(std::fabs(value_at(got_lse, at) - total) <= 0x1p-21 * (std::fabs(total) + 1));
        for (std::int64_t i = row * H * D + h * D; i < row * H * D + (h + 1) * D; ++i) {
          const double x = std::exp(kept - total) * value_at(out, i),
                       y = std::exp(added - total) * value_at(part, i);
          REQUIRE(std::fabs(value_at(got_out, i) - x - y) <= 0x1p-18 * (std::fabs(x) + std::fabs(y)) + 1e-36);
        }
      }
  }
}

PRECBENCH_OP_TEST(attention_sink_on, "attention_sink and attention_sink_backward") {
  for (const AttentionShape& shape :
       {AttentionShape{.B = 2, .T = 37, .heads = 4, .kv_heads = 2, .head_dim = 16},
        AttentionShape{.B = 1, .T = 200, .heads = 5, .kv_heads = 1, .head_dim = 96},
        AttentionShape{.B = 3, .T = 65, .heads = 64, .kv_heads = 8, .head_dim = 64}}) {
    INFO(shape.heads << " heads of " << shape.head_dim);
    b.start();
    HostMemory& host = b.host();
    const std::int64_t M = shape.tokens(), H = shape.heads, T = shape.T, D = shape.head_dim;
    const Tensor out = host.random(DType::bf16, M, H * D, 1.0f), lse = host.random(DType::f32, H, M, 3.0f),
                 sink = host.random(DType::bf16, 1, H, 2.0f), dout = host.random(DType::bf16, M, H * D, 1.0f);
    lse.as<float>()[0] = -INFINITY;  // a query without keys
    lse.as<float>()[1] = 80, lse.as<float>()[2] = -80;
    const Tensor new_out = b.put(out), new_lse = b.put(lse);
    b.device().attention_sink({new_out, new_lse, b.put(sink), shape});
    const Tensor got_out = b.fetch(new_out), got_lse = b.fetch(new_lse);
    std::vector<double> dsink(H), sizes(H);
    for (std::int64_t row = 0; row < M; ++row)
      for (std::int64_t h = 0; h < H; ++h) {
        const std::int64_t at = (row / T * H + h) * T + row % T;
        const double of_keys = lse.as<float>()[at], of_sink = value_at(sink, h);
        const double share = 1 / (1 + std::exp(of_sink - of_keys));
        const double largest = std::max(of_keys, of_sink);
        const double total = largest + std::log1p(std::exp(std::min(of_keys, of_sink) - largest));
        REQUIRE(std::fabs(value_at(got_lse, at) - total) <= 0x1p-21 * (std::fabs(total) + 1));
        double delta = 0, size = 0;
        for (std::int64_t i = row * H * D + h * D; i < row * H * D + (h + 1) * D; ++i) {
          REQUIRE(std::fabs(value_at(got_out, i) - share * value_at(out, i)) <=
                  0x1p-8 * share * std::fabs(value_at(out, i)) + 1e-38);
          // The gradient is tested with the unchanged output.
          delta += value_at(dout, i) * value_at(out, i);
          size += std::fabs(value_at(dout, i) * value_at(out, i));
        }
        dsink[h] -= std::exp(of_sink - total) * delta;
        sizes[h] += std::exp(of_sink - total) * size;
      }
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool accumulate : {false, true}) {
        const Tensor before = host.random(dtype, 1, H, 1.0f), after = b.put(before);
        b.device().attention_sink_backward(
            {after, accumulate, b.put(dout), b.put(out), b.put(got_lse), b.put(sink), shape});
        const Tensor result = b.fetch(after);
        for (std::int64_t h = 0; h < H; ++h)
          REQUIRE(std::fabs(value_at(result, h) - dsink[h] - (accumulate ? value_at(before, h) : 0)) <=
                  allowed(dtype, sizes[h] + 2));
      }
  }
}
