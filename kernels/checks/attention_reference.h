// Attention by its definition, on the host, for checks: in FP64, and as a plain BF16 program would compute
// it (the whole score matrix in FP32; probabilities and their gradients rounded to BF16 before the second
// GEMM). The GPU's error against FP64 may be at most twice that of the plain program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/numerics/formats.h"

namespace precbench::checks {

/// All results of attention, in the layouts of ops::Attention and ops::AttentionBackward; dkv is empty
/// without kv.
struct AttentionResult {
  std::vector<double> out, lse, dqkv, dkv;
};

/// T is the type of all arithmetic: double for the exact result, float for the BF16 program, which then also
/// rounds. `kv` may be empty: keys and values are then in the fused rows. `first_key` is that of DocumentMask, and may be
/// empty.
template <class T>
AttentionResult attention_reference(const AttentionShape& s, const std::vector<std::uint16_t>& qkv,
                                    const std::vector<std::uint16_t>& dout,
                                    const std::vector<std::uint16_t>& kv_rows = {},
                                    const std::vector<std::int32_t>& first_key = {}) {
  const auto rounded = [](T x) {
    if constexpr (sizeof(T) == sizeof(double)) return x;
    return static_cast<T>(bf16_decode(bf16_encode(static_cast<float>(x))));
  };
  const bool fused = kv_rows.empty();
  const std::int64_t D = s.head_dim, V = s.v_dim(), C = s.out_width(), group = s.heads / s.kv_heads;
  const std::int64_t keys = s.keys();
  const std::int64_t W = s.qkv_width(), W_k = fused ? W : s.kv_width();  // of rows
  const std::int64_t first_k = fused ? s.q_width() : 0, first_v = first_k + s.k_width();
  const std::vector<std::uint16_t>& keys_from = fused ? qkv : kv_rows;
  const T scale = 1 / std::sqrt(static_cast<T>(D)), cap = static_cast<T>(s.softcap);
  AttentionResult result;
  result.out.resize(s.tokens() * C);
  result.lse.resize(s.tokens() * s.heads);
  result.dqkv.resize(s.tokens() * W);
  if (!fused) result.dkv.resize(s.B * keys * W_k);
  std::vector<double>& to_keys = fused ? result.dqkv : result.dkv;
  for (std::int64_t b = 0; b < s.B; ++b)
    for (std::int64_t kv = 0; kv < s.kv_heads; ++kv) {
      std::vector<T> dk(keys * D), dv(keys * V);  // summed over the group before they are rounded
      for (std::int64_t head = kv * group; head < (kv + 1) * group; ++head) {
        const auto q = [&](std::int64_t t, std::int64_t d) {
          return static_cast<T>(bf16_decode(qkv[(b * s.T + t) * W + head * D + d]));
        };
        const auto k = [&](std::int64_t t, std::int64_t d) {
          return static_cast<T>(bf16_decode(keys_from[(b * keys + t) * W_k + first_k + kv * D + d]));
        };
        const auto v = [&](std::int64_t t, std::int64_t d) {
          return static_cast<T>(bf16_decode(keys_from[(b * keys + t) * W_k + first_v + kv * V + d]));
        };
        std::vector<T> p(keys), slope(keys, 1), o(V), dq(D);  // slope: of soft-capped scores
        for (std::int64_t i = 0; i < s.T; ++i) {
          const std::int64_t seen = std::clamp<std::int64_t>(i + s.offset + 1, 0, keys);
          std::int64_t begin = s.window ? std::clamp<std::int64_t>(i + s.offset + 1 - s.window, 0, seen) : 0;
          if (!first_key.empty())
            begin = std::min(seen, std::max<std::int64_t>(begin, first_key[b * s.T + i]));
          if (seen == begin) {  // out and dq are 0
            result.lse[(b * s.heads + head) * s.T + i] = -INFINITY;
            continue;
          }
          T top = -INFINITY, sum = 0, delta = 0;
          for (std::int64_t j = begin; j < seen; ++j) {
            p[j] = 0;
            for (std::int64_t d = 0; d < D; ++d) p[j] += q(i, d) * k(j, d);
            p[j] *= scale;
            if (cap != 0) {
              const T ratio = std::tanh(p[j] / cap);
              p[j] = cap * ratio;
              slope[j] = 1 - ratio * ratio;
            }
            top = std::fmax(top, p[j]);
          }
          for (std::int64_t j = begin; j < seen; ++j) sum += p[j] = std::exp(p[j] - top);
          for (std::int64_t j = begin; j < seen; ++j) p[j] /= sum;
          result.lse[(b * s.heads + head) * s.T + i] = top + std::log(sum);
          o.assign(V, 0);
          for (std::int64_t j = begin; j < seen; ++j)
            for (std::int64_t d = 0; d < V; ++d) o[d] += rounded(p[j]) * v(j, d);
          const std::int64_t row = (b * s.T + i) * C + head * V;
          const auto g = [&](std::int64_t d) { return static_cast<T>(bf16_decode(dout[row + d])); };
          for (std::int64_t d = 0; d < V; ++d) {
            o[d] = rounded(o[d]);
            result.out[row + d] = o[d];
            delta += g(d) * o[d];
          }
          dq.assign(D, 0);
          for (std::int64_t j = begin; j < seen; ++j) {
            T dp = 0;
            for (std::int64_t d = 0; d < V; ++d) dp += g(d) * v(j, d);
            const T ds = rounded(p[j] * (dp - delta) * slope[j]), weight = rounded(p[j]);
            for (std::int64_t d = 0; d < V; ++d) dv[j * V + d] += weight * g(d);
            for (std::int64_t d = 0; d < D; ++d) {
              dk[j * D + d] += ds * q(i, d);
              dq[d] += ds * k(j, d);
            }
          }
          for (std::int64_t d = 0; d < D; ++d)
            result.dqkv[(b * s.T + i) * W + head * D + d] = rounded(scale * dq[d]);
        }
      }
      for (std::int64_t t = 0; t < keys; ++t) {
        const std::int64_t row = (b * keys + t) * W_k;
        for (std::int64_t d = 0; d < D; ++d)
          to_keys[row + first_k + kv * D + d] = rounded(scale * dk[t * D + d]);
        for (std::int64_t d = 0; d < V; ++d) to_keys[row + first_v + kv * V + d] = rounded(dv[t * V + d]);
      }
    }
  return result;
}

/// Returns the RMS of x - y over columns [first, first + count) of rows of `width`.
inline double rms_difference(const std::vector<double>& x, const std::vector<double>& y, std::int64_t width,
                             std::int64_t first, std::int64_t count) {
  double sum = 0;
  for (std::size_t row = 0; row < x.size(); row += width)
    for (std::int64_t c = first; c < first + count; ++c)
      sum += (x[row + c] - y[row + c]) * (x[row + c] - y[row + c]);
  return std::sqrt(sum / (static_cast<double>(x.size() / width) * count));
}

}  // namespace precbench::checks
