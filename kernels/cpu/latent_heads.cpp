// Heads of latent attention: RoPE on the last elements of queries and keys, one rotated key for all heads of a row.
// Source: DeepSeek-V2 (2024), section 2.1.3.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"

namespace precbench {
namespace {

/// Rotates `n` elements in place. table: n / 2 pairs of cos, sin of this position; sign -1 rotates back.
void rotate(float* x, const float* table, std::int64_t n, bool interleaved, float sign) {
  const std::int64_t step = interleaved ? 2 : 1, partner = interleaved ? 1 : n / 2;
  for (std::int64_t i = 0; i < n / 2; ++i) {
    const float cos = table[2 * i], sin = sign * table[2 * i + 1];
    float &first = x[i * step], &second = x[i * step + partner];
    const float a = first, b = second;
    first = multiply_add(a, cos, -(b * sin));
    second = multiply_add(b, cos, a * sin);
  }
}

void load_into(float* to, const Tensor& from, std::int64_t first, std::int64_t count) {
  const float* values = cpu::load(from, first, count, to);
  if (values != to) std::copy_n(values, count, to);
}

/// Calls body(row, fused, kv, shared, angles) for every token, with room for a row of queries, keys and values, for one of the
/// GEMM that makes keys and values, and for the shared part of the key.
template <class Body>
void for_tokens(int threads, const LatentHeadsOptions& options, const std::vector<float>& table,
                const Body& body) {
  const std::int64_t up = options.kv_up_width(), width = options.shape.qkv_width(), rope = options.rope_dim;
  const RopeOptions turns = options.rope();
  cpu::for_rows(threads, options.shape.tokens(), width + up + rope, [&](std::int64_t row, float* buffer) {
    body(row, buffer, buffer + width, buffer + width + up, table.data() + turns.table_row(row) * rope);
  });
}

}  // namespace

void CpuDevice::do_latent_heads(const ops::LatentHeads& op) {
  const LatentHeadsOptions& options = op.options;
  const AttentionShape& s = options.shape;
  const std::int64_t D = s.head_dim, V = s.v_dim(), rope = options.rope_dim, nope = options.nope_dim();
  const std::int64_t up = options.kv_up_width(), width = s.qkv_width();
  const auto token = [&](std::int64_t row, float* out, float* kv, float* shared, const float* angles) {
    load_into(out, op.q, row * op.q.cols, s.q_width());
    load_into(kv, op.kv_up, row * up, up);
    load_into(shared, op.latent, (row + 1) * op.latent.cols - rope, rope);
    rotate(shared, angles, rope, options.interleaved, 1.0f);
    float *k = out + s.q_width(), *v = k + s.k_width();
    for (std::int64_t h = 0; h < s.heads; ++h) {
      float* q = out + h * D;
      rotate(q + nope, angles, rope, options.interleaved, 1.0f);
      for (std::int64_t i = 0; i < D; ++i) q[i] *= options.q_scale;
      const float* head = kv + h * (nope + V);
      std::copy_n(head, nope, k + h * D);
      std::copy_n(shared, rope, k + h * D + nope);
      std::copy_n(head + nope, V, v + h * V);
    }
    cpu::store(op.qkv, row * width, width, out);
  };
  for_tokens(threads_, options, rope_table(options.rope()), token);
}

void CpuDevice::do_latent_heads_backward(const ops::LatentHeadsBackward& op) {
  const LatentHeadsOptions& options = op.options;
  const AttentionShape& s = options.shape;
  const std::int64_t D = s.head_dim, V = s.v_dim(), rope = options.rope_dim, nope = options.nope_dim();
  const std::int64_t up = options.kv_up_width(), width = s.qkv_width();
  const auto token = [&](std::int64_t row, float* in, float* kv, float* shared, const float* angles) {
    load_into(in, op.dqkv, row * width, width);
    const float *k = in + s.q_width(), *v = k + s.k_width();
    std::fill_n(shared, rope, 0.0f);
    for (std::int64_t h = 0; h < s.heads; ++h) {
      float* q = in + h * D;
      rotate(q + nope, angles, rope, options.interleaved, -1.0f);
      for (std::int64_t i = 0; i < D; ++i) q[i] *= options.q_scale;
      float* head = kv + h * (nope + V);
      std::copy_n(k + h * D, nope, head);
      for (std::int64_t i = 0; i < rope; ++i) shared[i] += k[h * D + nope + i];
      std::copy_n(v + h * V, V, head + nope);
    }
    rotate(shared, angles, rope, options.interleaved, -1.0f);
    cpu::store(op.dq, row * op.dq.cols, s.q_width(), in);
    cpu::store(op.dkv_up, row * up, up, kv);
    cpu::store(op.dlatent, (row + 1) * op.dlatent.cols - rope, rope, shared);
  };
  for_tokens(threads_, options, rope_table(options.rope()), token);
}

}  // namespace precbench
