// Causal grouped-query attention by blocks of queries: scores of a block against all keys before it, a row
// softmax, the weighted sum of values. Backward recomputes the scores and takes the softmax from the saved
// log-sum-exp (Dao et al. 2022, without the tiling over keys). Everything is FP32 between the BF16 inputs and
// outputs. A thread takes whole kv heads, so that dK and dV are summed over the group's heads in one order.
#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"

namespace precbench {
namespace {

constexpr std::int64_t kBlock = 64;  // queries per block

void gemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
          const float* a, const float* b, float beta, float* c) {
  cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
              static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha, a,
              static_cast<int>(transpose_a ? m : k), b, static_cast<int>(transpose_b ? k : n), beta, c,
              static_cast<int>(n));
}

/// Where the heads of one sequence lie in the fused rows.
struct HeadView {
  const AttentionShape& s;
  std::int64_t b;

  /// Head `index` of [q heads | k heads | v heads] as T x D floats.
  void load(float* out, const Tensor& rows, std::int64_t index) const {
    const std::int64_t D = s.head_dim, width = rows.cols;
    for (std::int64_t t = 0; t < s.T; ++t) {
      const float* values = cpu::load(rows, (b * s.T + t) * width + index * D, D, out + t * D);
      if (values != out + t * D) std::copy(values, values + D, out + t * D);
    }
  }
  void store(const Tensor& rows, std::int64_t index, const float* values) const {
    const std::int64_t D = s.head_dim;
    for (std::int64_t t = 0; t < s.T; ++t)
      cpu::store(rows, (b * s.T + t) * rows.cols + index * D, D, values + t * D);
  }
};

/// scores[n, keys] (keys = first + n) of queries [first, first + n).
void block_scores(float* scores, const float* q, const float* k, std::int64_t first, std::int64_t n,
                  std::int64_t D) {
  gemm(false, true, n, first + n, D, 1.0f / std::sqrt(static_cast<float>(D)), q + first * D, k, 0.0f, scores);
}

}  // namespace

void CpuDevice::do_attention(QuantizedTensor& out, const Tensor& lse, const Tensor& qkv,
                             const AttentionShape& s) {
  const std::int64_t T = s.T, D = s.head_dim, group = s.heads / s.kv_heads;
  const std::int64_t floats = 4 * T * D + kBlock * T;
  cpu::for_rows(threads_, s.B * s.kv_heads, floats, [&](std::int64_t task, float* buffer) {
    const std::int64_t b = task / s.kv_heads, kv = task % s.kv_heads;
    const HeadView view{s, b};
    float *k = buffer, *v = k + T * D, *q = v + T * D, *o = q + T * D, *p = o + T * D;
    view.load(k, qkv, s.heads + kv);
    view.load(v, qkv, s.heads + s.kv_heads + kv);
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      view.load(q, qkv, h);
      float* lse_row = lse.as<float>() + (b * s.heads + h) * T;
      for (std::int64_t first = 0; first < T; first += kBlock) {
        const std::int64_t n = std::min(kBlock, T - first), keys = first + n;
        block_scores(p, q, k, first, n, D);
        for (std::int64_t i = 0; i < n; ++i) {
          float* row = p + i * keys;
          const std::int64_t visible = first + i + 1;
          float largest = -std::numeric_limits<float>::infinity();
          for (std::int64_t j = 0; j < visible; ++j) largest = std::max(largest, row[j]);
          for (std::int64_t j = 0; j < visible; ++j) row[j] = cpu::exp(row[j] - largest);
          const float total = cpu::lane_sum(visible, [&](std::int64_t j) { return row[j]; });
          const float inverse = 1.0f / total;
          for (std::int64_t j = 0; j < visible; ++j) row[j] *= inverse;
          std::fill(row + visible, row + keys, 0.0f);
          lse_row[first + i] = largest + std::log(total);
        }
        gemm(false, false, n, D, keys, 1.0f, p, v, 0.0f, o + first * D);
      }
      view.store(out.value, h, o);
    }
  });
  do_quantize(out, true);
}

void CpuDevice::do_attention_backward(const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                                      const Tensor& lse, const Tensor& qkv, const AttentionShape& s) {
  const std::int64_t T = s.T, D = s.head_dim, group = s.heads / s.kv_heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  const std::int64_t floats = 8 * T * D + 2 * kBlock * T;
  cpu::for_rows(threads_, s.B * s.kv_heads, floats, [&](std::int64_t task, float* buffer) {
    const std::int64_t b = task / s.kv_heads, kv = task % s.kv_heads;
    const HeadView view{s, b};
    float *k = buffer, *v = k + T * D, *dk = v + T * D, *dv = dk + T * D;
    float *q = dv + T * D, *dq = q + T * D, *o = dq + T * D, *grad = o + T * D;
    float *p = grad + T * D, *dp = p + kBlock * T;
    view.load(k, qkv, s.heads + kv);
    view.load(v, qkv, s.heads + s.kv_heads + kv);
    std::fill(dk, dk + 2 * T * D, 0.0f);
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      view.load(q, qkv, h);
      view.load(o, out, h);
      view.load(grad, dout, h);
      const float* lse_row = lse.as<float>() + (b * s.heads + h) * T;
      for (std::int64_t first = 0; first < T; first += kBlock) {
        const std::int64_t n = std::min(kBlock, T - first), keys = first + n;
        block_scores(p, q, k, first, n, D);
        gemm(false, true, n, keys, D, 1.0f, grad + first * D, v, 0.0f, dp);
        for (std::int64_t i = 0; i < n; ++i) {
          float *row = p + i * keys, *drow = dp + i * keys;
          const float *o_row = o + (first + i) * D, *grad_row = grad + (first + i) * D;
          const std::int64_t visible = first + i + 1;
          const float delta = cpu::lane_sum(D, [&](std::int64_t c) { return o_row[c] * grad_row[c]; });
          const float log_total = lse_row[first + i];
          for (std::int64_t j = 0; j < visible; ++j) {
            row[j] = cpu::exp(row[j] - log_total);
            drow[j] = row[j] * (drow[j] - delta);
          }
          std::fill(row + visible, row + keys, 0.0f);
          std::fill(drow + visible, drow + keys, 0.0f);
        }
        gemm(true, false, keys, D, n, 1.0f, p, grad + first * D, 1.0f, dv);
        gemm(false, false, n, D, keys, scale, dp, k, 0.0f, dq + first * D);
        gemm(true, false, keys, D, n, scale, dp, q + first * D, 1.0f, dk);
      }
      view.store(dqkv, h, dq);
    }
    view.store(dqkv, s.heads + kv, dk);
    view.store(dqkv, s.heads + s.kv_heads + kv, dv);
  });
}

}  // namespace precbench
