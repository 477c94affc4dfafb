// Causal grouped-query attention by blocks of queries: scores of a block against all visible keys, a row
// softmax, the weighted sum of values. Backward recomputes the scores and the softmax from the saved
// log-sum-exp (Dao et al. 2022, without tiling over keys). Everything is FP32 between the BF16 inputs and
// outputs. A thread processes whole KV heads, so that dK and dV are summed over the group's heads in one
// order. Queries and keys may be in different tensors, with different lengths and an offset between their
// positions. A query may see a window of keys alone, or those of its own document, and scores may be soft-capped (Gemma
// 2).
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vector.h"
#include "kernels/numerics/activation_functions.h"

namespace precbench {
namespace {

constexpr std::int64_t kBlock = 64;  // queries per block

/// c [m, n] = beta c + alpha op(a) op(b), dense and row-major, with optional transposition; beta is 0 or 1.
void gemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
          const float* a, const float* b, float beta, float* c) {
  if (m == 0 || n == 0 || k == 0) return;  // a block that sees no key
  cpu::gemm(m, n, k, alpha, {a, transpose_a ? m : k, transpose_a}, {b, transpose_b ? k : n, !transpose_b},
            beta != 0, c, n);
}

/// Loads a head of sequence b as rows x D floats: the columns from `first` on of `from` [B * rows, ...].
void load_head(float* out, const Tensor& from, std::int64_t b, std::int64_t rows, std::int64_t first,
               std::int64_t D) {
  for (std::int64_t t = 0; t < rows; ++t) {
    const float* values = cpu::load(from, (b * rows + t) * from.cols + first, D, out + t * D);
    if (values != out + t * D) std::copy(values, values + D, out + t * D);
  }
}

void store_head(const Tensor& to, std::int64_t b, std::int64_t rows, std::int64_t first, std::int64_t D,
                const float* values) {
  for (std::int64_t t = 0; t < rows; ++t) cpu::store(to, (b * rows + t) * to.cols + first, D, values + t * D);
}

/// Location of keys and values, or their gradients: after the query heads in the fused rows, or in a separate
/// tensor.
struct KeyRows {
  const Tensor& rows;
  const AttentionShape& shape;
  std::int64_t first;  // column of the first key

  std::int64_t key(std::int64_t head) const { return first + head * shape.head_dim; }
  std::int64_t value(std::int64_t head) const { return first + shape.k_width() + head * shape.v_dim(); }
};

KeyRows key_rows(const Tensor& fused, const Tensor& own, const AttentionShape& s) {
  if (own.empty()) return {fused, s, s.q_width()};
  return {own, s, 0};
}

/// First keys of a sequence's queries, counted from the first key that attention is given.
struct FirstKeys {
  const std::int32_t* in_sequence;  ///< null: 0 each
  std::int64_t key_start;

  FirstKeys(const DocumentMask& documents, const AttentionShape& s, std::int64_t b)
      : in_sequence(documents.empty() ? nullptr : documents.first_key.as<const std::int32_t>() + b * s.T),
        key_start(documents.key_start) {}

  std::int64_t of(std::int64_t query) const { return in_sequence ? in_sequence[query] - key_start : 0; }
};

/// A run of queries and the keys visible to it, numbered from the first that any of its queries sees.
struct QueryBlock {
  const AttentionShape& shape;
  const FirstKeys document_starts;
  std::int64_t first, n;
  std::int64_t begin;  ///< number of keys before
  std::int64_t keys;   ///< up to the last that the last query sees

  QueryBlock(const AttentionShape& s, std::int64_t first_query, const FirstKeys& first_keys)
      : shape(s),
        document_starts(first_keys),
        first(first_query),
        n(std::min(kBlock, s.T - first)),
        begin(start_of(0)),
        keys(end(n - 1)) {}

  /// Query i sees the keys from start(i) up to, but without, end(i).
  std::int64_t start(std::int64_t i) const { return start_of(i) - begin; }
  std::int64_t end(std::int64_t i) const { return end_of(i) - begin; }

 private:
  std::int64_t end_of(std::int64_t i) const {
    return std::clamp<std::int64_t>(first + i + shape.offset + 1, 0, shape.keys());
  }
  std::int64_t start_of(std::int64_t i) const {
    const std::int64_t document = std::clamp<std::int64_t>(document_starts.of(first + i), 0, end_of(i));
    if (shape.window == 0) return document;
    return std::clamp<std::int64_t>(first + i + shape.offset + 1 - shape.window, document, end_of(i));
  }
};

/// Computes scores[n, keys] of a block's queries. Here and below `k`, `v` and their gradients begin with the
/// block's first key.
void block_scores(float* scores, const float* q, const float* k, const QueryBlock& block, std::int64_t D) {
  gemm(false, true, block.n, block.keys, D, 1.0f / std::sqrt(static_cast<float>(D)), q + block.first * D, k,
       0.0f, scores);
  if (const float cap = block.shape.softcap; cap != 0)
    for (std::int64_t i = 0; i < block.n * block.keys; ++i) scores[i] = soft_capped(scores[i], cap);
}

/// Rows for a GEMM with weights that are 0 for keys a query does not see. 0 times Inf or NaN is NaN, so
/// non-finite rows are replaced by zeros in the GEMM, and added afterwards for the queries that see them.
class FiniteRows {
 public:
  /// Checks only the rows of [n, D] from `begin` on: not every query sees them.
  FiniteRows(const float* rows, std::int64_t begin, std::int64_t n, std::int64_t D) : rows_(rows) {
    if (cpu::all_finite(rows + begin * D, (n - begin) * D)) return;
    for (std::int64_t row = begin; row < n; ++row) {
      if (cpu::all_finite(rows + row * D, D)) continue;
      if (left_out_.empty()) finite_.assign(rows, rows + n * D);
      std::fill_n(finite_.begin() + row * D, D, 0.0f);
      left_out_.push_back(row);
    }
  }

  const float* data() const { return left_out_.empty() ? rows_ : finite_.data(); }
  const std::vector<std::int64_t>& left_out() const { return left_out_; }

 private:
  const float* rows_;
  std::vector<float> finite_;  // empty if all rows are finite
  std::vector<std::int64_t> left_out_;
};

void add_row(float* to, float weight, const float* row, std::int64_t D) {
  for (std::int64_t c = 0; c < D; ++c) to[c] = multiply_add(weight, row[c], to[c]);
}

/// out[n, D] = scale * weights[n, keys] * rows[keys, D], over the keys that each query sees.
void sum_over_keys(float* out, float scale, const float* weights, const float* rows, const QueryBlock& block,
                   std::int64_t D) {
  const std::int64_t seen_by_all = block.start(block.n - 1) == 0 ? block.end(0) : 0;
  const FiniteRows finite(rows, seen_by_all, block.keys, D);
  gemm(false, false, block.n, D, block.keys, scale, weights, finite.data(), 0.0f, out);
  for (const std::int64_t key : finite.left_out())
    for (std::int64_t i = 0; i < block.n; ++i)
      if (block.start(i) <= key && key < block.end(i))
        add_row(out + i * D, scale * weights[i * block.keys + key], rows + key * D, D);
}

/// out[keys, D] += scale * weights^T * rows[n, D], over the queries that see each key.
void add_over_queries(float* out, float scale, const float* weights, const float* rows,
                      const QueryBlock& block, std::int64_t D) {
  const FiniteRows finite(rows, 0, block.n, D);
  gemm(true, false, block.keys, D, block.n, scale, weights, finite.data(), 1.0f, out);
  for (const std::int64_t i : finite.left_out())
    for (std::int64_t key = block.start(i); key < block.end(i); ++key)
      add_row(out + key * D, scale * weights[i * block.keys + key], rows + i * D, D);
}

/// Sets a row's elements of keys that query i does not see to 0.
void clear_hidden(float* row, const QueryBlock& block, std::int64_t i) {
  std::fill(row, row + block.start(i), 0.0f);
  std::fill(row + block.end(i), row + block.keys, 0.0f);
}

/// Converts a row of n scores to probabilities. Returns log sum exp.
float softmax(float* row, std::int64_t n) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  float largest = -kInf;
  for (std::int64_t j = 0; j < n; ++j) largest = std::max(largest, row[j]);
  for (std::int64_t j = 0; j < n; ++j) row[j] = cpu::exp(row[j] - largest);
  const float total = cpu::lane_sum(n, [&](std::int64_t j) { return row[j]; });
  const float inverse = 1.0f / total;
  for (std::int64_t j = 0; j < n; ++j) row[j] *= inverse;
  return n ? largest + std::log(total) : -kInf;
}

}  // namespace

void CpuDevice::do_attention(const ops::Attention& op) {
  const AttentionShape& s = op.shape;
  const KeyRows from = key_rows(op.qkv, op.kv, s);
  const std::int64_t T = s.T, K = s.keys(), D = s.head_dim, V = s.v_dim(), group = s.heads / s.kv_heads;
  const std::int64_t floats = (T + K) * (D + V) + kBlock * K;
  cpu::for_rows(threads_, s.B * s.kv_heads, floats, [&](std::int64_t task, float* buffer) {
    const std::int64_t b = task / s.kv_heads, kv = task % s.kv_heads;
    float *k = buffer, *v = k + K * D, *q = v + K * V, *o = q + T * D, *p = o + T * V;
    load_head(k, from.rows, b, K, from.key(kv), D);
    load_head(v, from.rows, b, K, from.value(kv), V);
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      load_head(q, op.qkv, b, T, h * D, D);
      float* lse_row = op.lse.as<float>() + (b * s.heads + h) * T;
      for (std::int64_t first = 0; first < T; first += kBlock) {
        const QueryBlock block(s, first, FirstKeys(op.documents, s, b));
        if (block.keys == 0) std::fill_n(o + first * V, block.n * V, 0.0f);
        block_scores(p, q, k + block.begin * D, block, D);
        for (std::int64_t i = 0; i < block.n; ++i) {
          float* row = p + i * block.keys;
          lse_row[first + i] = softmax(row + block.start(i), block.end(i) - block.start(i));
          clear_hidden(row, block, i);
        }
        sum_over_keys(o + first * V, 1.0f, p, v + block.begin * V, block, V);
      }
      store_head(op.out.value, b, T, h * V, V, o);
    }
  });
  do_quantize({op.out});
}

void CpuDevice::do_attention_backward(const ops::AttentionBackward& op) {
  const AttentionShape& s = op.shape;
  const KeyRows from = key_rows(op.qkv, op.kv, s), to = key_rows(op.dqkv, op.dkv, s);
  const std::int64_t T = s.T, K = s.keys(), D = s.head_dim, V = s.v_dim(), group = s.heads / s.kv_heads;
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  const std::int64_t floats = 2 * (T + K) * (D + V) + 2 * kBlock * K;
  cpu::for_rows(threads_, s.B * s.kv_heads, floats, [&](std::int64_t task, float* buffer) {
    const std::int64_t b = task / s.kv_heads, kv = task % s.kv_heads;
    float *k = buffer, *v = k + K * D, *dk = v + K * V, *dv = dk + K * D;
    float *q = dv + K * V, *dq = q + T * D, *o = dq + T * D, *grad = o + T * V;
    float *p = grad + T * V, *dp = p + kBlock * K;
    load_head(k, from.rows, b, K, from.key(kv), D);
    load_head(v, from.rows, b, K, from.value(kv), V);
    std::fill(dk, dk + K * (D + V), 0.0f);
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      load_head(q, op.qkv, b, T, h * D, D);
      load_head(o, op.out, b, T, h * V, V);
      load_head(grad, op.dout, b, T, h * V, V);
      const float* lse_row = op.lse.as<float>() + (b * s.heads + h) * T;
      for (std::int64_t first = 0; first < T; first += kBlock) {
        const QueryBlock block(s, first, FirstKeys(op.documents, s, b));
        const std::int64_t n = block.n, keys = block.keys, at = block.begin * D, at_v = block.begin * V;
        if (keys == 0) std::fill_n(dq + first * D, n * D, 0.0f);
        block_scores(p, q, k + at, block, D);
        gemm(false, true, n, keys, V, 1.0f, grad + first * V, v + at_v, 0.0f, dp);
        for (std::int64_t i = 0; i < n; ++i) {
          float *row = p + i * keys, *drow = dp + i * keys;
          const float *o_row = o + (first + i) * V, *grad_row = grad + (first + i) * V;
          const float delta = cpu::lane_dot(V, o_row, grad_row);
          const float log_total = lse_row[first + i];
          const auto differentiate = [&](auto slope_of) {
            for (std::int64_t j = block.start(i); j < block.end(i); ++j) {
              const float slope = slope_of(row[j]);
              row[j] = cpu::exp(row[j] - log_total);
              drow[j] = row[j] * (drow[j] - delta) * slope;
            }
          };
          if (s.softcap == 0)
            differentiate([](float) { return 1.0f; });
          else
            differentiate([&](float score) { return soft_cap_slope(score, s.softcap); });
          clear_hidden(row, block, i);
          clear_hidden(drow, block, i);
        }
        add_over_queries(dv + at_v, 1.0f, p, grad + first * V, block, V);
        sum_over_keys(dq + first * D, scale, dp, k + at, block, D);
        add_over_queries(dk + at, scale, dp, q + first * D, block, D);
      }
      store_head(op.dqkv, b, T, h * D, D, dq);
    }
    store_head(to.rows, b, K, to.key(kv), D, dk);
    store_head(to.rows, b, K, to.value(kv), V, dv);
  });
}

}  // namespace precbench
