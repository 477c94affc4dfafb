// Rotary position embedding (Su et al. 2021) in the rotate-half order of Hugging Face Llama: element i of a
// head pairs with element i + D/2 and rotates by an angle of the table (rope_table.h). QK-norm is an RMSNorm
// before the rotation: of each q and k head in Qwen3, of all q heads and all k heads of a row in OLMoE.
// Qwen2's bias is added before it. Backward is the transpose: the negative angle, with the same factor.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"
#include "kernels/numerics/rope_table.h"

namespace precbench {
namespace {

/// Rotates one head of D floats. table: D/2 pairs of cos, sin of this position; sign -1 rotates back.
void rotate(float* head, const float* table, std::int64_t D, float sign) {
  for (std::int64_t i = 0; i < D / 2; ++i) {
    const float cos = table[2 * i], sin = sign * table[2 * i + 1];
    const float a = head[i], b = head[i + D / 2];
    head[i] = multiply_add(a, cos, -(b * sin));
    head[i + D / 2] = multiply_add(b, cos, a * sin);
  }
}

/// RMSNorm of q or k: `groups` groups of `size` consecutive elements, each with its own mean square.
struct PartNorm {
  std::int64_t first;  // first column in qkv
  std::int64_t groups, size;
  std::vector<float> gains;  // shared by all groups, [size]
};

/// Returns q's norm, then k's; empty without QK-norm.
std::vector<PartNorm> norms_of(const RopeOptions& options) {
  std::vector<PartNorm> norms;
  if (options.q_norm.empty()) return norms;
  const AttentionShape& s = options.shape;
  const auto add = [&](std::int64_t first, std::int64_t heads, const Tensor& gains) {
    const std::int64_t size = gains.size();
    PartNorm norm{first, heads * s.head_dim / size, size, std::vector<float>(static_cast<std::size_t>(size))};
    std::vector<float> buffer(norm.gains.size());
    std::copy_n(cpu::load(gains, 0, size, buffer.data()), size, norm.gains.begin());
    for (float& gain : norm.gains) gain += options.gain_offset;
    norms.push_back(std::move(norm));
  };
  add(0, s.heads, options.q_norm);
  add(s.heads * s.head_dim, s.kv_heads, options.k_norm);
  return norms;
}

float rstd_of(const float* x, std::int64_t size, float eps) {
  return 1.0f / std::sqrt(cpu::lane_dot(size, x, x) / static_cast<float>(size) + eps);
}

}  // namespace

const std::vector<float>& CpuDevice::rope_table(const RopeOptions& options) {
  if (rope_angles_ == options.angles()) return rope_table_;
  rope_table_ = make_rope_table(options.angles());
  rope_angles_ = options.angles();
  return rope_table_;
}

void CpuDevice::do_rope(const ops::Rope& op) {
  const AttentionShape& s = op.options.shape;
  const std::int64_t D = s.head_dim, W = s.qkv_width(), turned = s.heads + s.kv_heads;
  const std::vector<float>& table = rope_table(op.options);
  const std::vector<PartNorm> norms = norms_of(op.options);
  std::vector<float> bias_buffer(W);
  const float* bias =
      op.options.bias.empty() ? nullptr : cpu::load(op.options.bias, 0, W, bias_buffer.data());
  const bool copies_v = op.out.data != op.qkv.data || bias;
  cpu::for_rows(threads_, s.tokens(), 2 * W, [&](std::int64_t row, float* buffer) {
    const float* in = cpu::load(op.qkv, row * W, W, buffer);
    float* values = buffer + W;
    std::copy(in, in + W, values);
    for (std::int64_t i = 0; bias && i < W; ++i) values[i] += bias[i];
    for (const PartNorm& norm : norms)
      for (std::int64_t group = 0; group < norm.groups; ++group) {
        float* x = values + norm.first + group * norm.size;
        const float scale = rstd_of(x, norm.size, op.options.norm_eps);
        for (std::int64_t i = 0; i < norm.size; ++i) x[i] *= scale * norm.gains[i];
      }
    for (std::int64_t h = 0; h < turned; ++h)
      rotate(values + h * D, table.data() + op.options.table_row(row) * D, D, 1.0f);
    cpu::store(op.out, row * W, copies_v ? W : turned * D, values);
  });
}

void CpuDevice::do_rope_backward(const ops::RopeBackward& op) {
  const AttentionShape& s = op.options.shape;
  const std::int64_t D = s.head_dim, W = s.qkv_width(), M = s.tokens(), turned = s.heads + s.kv_heads;
  const std::vector<float>& table = rope_table(op.options);
  const std::vector<PartNorm> norms = norms_of(op.options);
  const std::int64_t gains = op.dq_norm.size() + op.dk_norm.size();
  std::vector<float> bias_buffer(W);
  const float* bias = norms.empty() || op.options.bias.empty()
                          ? nullptr
                          : cpu::load(op.options.bias, 0, W, bias_buffer.data());
  constexpr std::int64_t kRun = 64;
  const std::int64_t runs = (M + kRun - 1) / kRun;
  std::vector<float> partial(runs * gains);  // [runs][q's gains, k's]
  cpu::for_rows(threads_, runs, 4 * W, [&](std::int64_t run, float* buffer) {
    for (std::int64_t row = run * kRun; row < std::min(M, (run + 1) * kRun); ++row) {
      const float* in = cpu::load(op.dout, row * W, W, buffer);
      float* grad = buffer + W;
      std::copy(in, in + W, grad);
      for (std::int64_t h = 0; h < turned; ++h)
        rotate(grad + h * D, table.data() + op.options.table_row(row) * D, D, -1.0f);
      const float* before = norms.empty() ? nullptr : cpu::load(op.qkv, row * W, W, buffer + 2 * W);
      if (bias) {
        float* sum = buffer + 3 * W;
        for (std::int64_t i = 0; i < W; ++i) sum[i] = before[i] + bias[i];
        before = sum;
      }
      float* dgain = partial.data() + run * gains;
      for (const PartNorm& norm : norms) {
        for (std::int64_t group = 0; group < norm.groups; ++group) {
          const std::int64_t first = norm.first + group * norm.size;
          const float *x = before + first, *gain = norm.gains.data();
          float* dx = grad + first;
          const float scale = rstd_of(x, norm.size, op.options.norm_eps);
          const float mean = cpu::lane_accumulate(norm.size,
                                                  [&](std::int64_t i, float sum) {
                                                    return multiply_add(dx[i] * gain[i], x[i], sum);
                                                  }) *
                             scale / static_cast<float>(norm.size);
          for (std::int64_t i = 0; i < norm.size; ++i) {
            const float normed = x[i] * scale;
            dgain[i] = multiply_add(dx[i], normed, dgain[i]);
            dx[i] = scale * multiply_add(dx[i], gain[i], -(normed * mean));
          }
        }
        dgain += norm.size;
      }
      cpu::store(op.dqkv.value, row * W, W, grad);
    }
  });
  std::int64_t at = 0;  // offset in a run's gains
  for (const Tensor& dgain : {op.dq_norm, op.dk_norm}) {
    const std::int64_t size = dgain.size();
    if (dgain.empty()) continue;
    std::vector<float> total(size);
    if (op.accumulate) std::copy_n(cpu::load(dgain, 0, size, total.data()), size, total.begin());
    for (std::int64_t run = 0; run < runs; ++run)
      for (std::int64_t i = 0; i < size; ++i) total[i] += partial[run * gains + at + i];
    cpu::store(dgain, 0, size, total.data());
    at += size;
  }
  do_quantize({op.dqkv});
}

}  // namespace precbench
