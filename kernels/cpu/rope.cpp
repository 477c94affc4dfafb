// Rotary position embedding (Su et al. 2021) in the rotate-half order of Hugging Face Llama: element i of a
// head pairs with element i + D/2 and turns by an angle of the table (rope_table.h). Qwen3's QK-norm is an RMSNorm
// of each q and k head before the turn, Qwen2's bias is added before it. Backward is the transpose of the turn: the
// negative angle, with the same factor.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"
#include "kernels/numerics/rope_table.h"

namespace precbench {
namespace {

/// Turns one head of D floats; table: D/2 pairs of cos, sin of this position; sign -1 turns back.
void turn(float* head, const float* table, std::int64_t D, float sign) {
  for (std::int64_t i = 0; i < D / 2; ++i) {
    const float cos = table[2 * i], sin = sign * table[2 * i + 1];
    const float a = head[i], b = head[i + D / 2];
    head[i] = a * cos - b * sin;
    head[i + D / 2] = b * cos + a * sin;
  }
}

float rstd_of(const float* head, std::int64_t D, float eps) {
  return 1.0f / std::sqrt(cpu::lane_sum(D, [&](std::int64_t i) { return head[i] * head[i]; }) /
                              static_cast<float>(D) +
                          eps);
}

/// The gains of q heads then k heads as floats; empty without QK-norm.
std::vector<float> gains_of(const RopeOptions& options) {
  std::vector<float> gains;
  if (options.q_norm.empty()) return gains;
  const std::int64_t D = options.shape.head_dim;
  gains.resize(2 * D);
  const Tensor* norms[] = {&options.q_norm, &options.k_norm};
  std::vector<float> buffer(D);
  for (int i = 0; i < 2; ++i) {
    const float* values = cpu::load(*norms[i], 0, D, buffer.data());
    std::copy(values, values + D, gains.begin() + i * D);
  }
  return gains;
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
  const std::vector<float> gains = gains_of(op.options);
  std::vector<float> bias_buffer(W);
  const float* bias =
      op.options.bias.empty() ? nullptr : cpu::load(op.options.bias, 0, W, bias_buffer.data());
  const bool copies_v = op.out.data != op.qkv.data || bias;
  cpu::for_rows(threads_, s.tokens(), 2 * W, [&](std::int64_t row, float* buffer) {
    const float* in = cpu::load(op.qkv, row * W, W, buffer);
    float* values = buffer + W;
    std::copy(in, in + W, values);
    for (std::int64_t i = 0; bias && i < W; ++i) values[i] += bias[i];
    for (std::int64_t h = 0; h < turned; ++h) {
      float* head = values + h * D;
      if (!gains.empty()) {
        const float scale = rstd_of(head, D, op.options.norm_eps);
        const float* gain = gains.data() + (h < s.heads ? 0 : D);
        for (std::int64_t i = 0; i < D; ++i) head[i] *= scale * gain[i];
      }
      turn(head, table.data() + row % s.T * D, D, 1.0f);
    }
    cpu::store(op.out, row * W, copies_v ? W : turned * D, values);
  });
}

void CpuDevice::do_rope_backward(const ops::RopeBackward& op) {
  const AttentionShape& s = op.options.shape;
  const std::int64_t D = s.head_dim, W = s.qkv_width(), M = s.tokens(), turned = s.heads + s.kv_heads;
  const std::vector<float>& table = rope_table(op.options);
  const std::vector<float> gains = gains_of(op.options);
  constexpr std::int64_t kRun = 64;
  const std::int64_t runs = (M + kRun - 1) / kRun;
  std::vector<float> partial(gains.empty() ? 0 : runs * 2 * D);
  cpu::for_rows(threads_, runs, 3 * W, [&](std::int64_t run, float* buffer) {
    for (std::int64_t row = run * kRun; row < std::min(M, (run + 1) * kRun); ++row) {
      const float* in = cpu::load(op.dout, row * W, W, buffer);
      float* grad = buffer + W;
      std::copy(in, in + W, grad);
      const float* before = gains.empty() ? nullptr : cpu::load(op.qkv, row * W, W, buffer + 2 * W);
      for (std::int64_t h = 0; h < turned; ++h) {
        float* head = grad + h * D;
        turn(head, table.data() + row % s.T * D, D, -1.0f);
        if (gains.empty()) continue;
        const float* x = before + h * D;
        const float scale = rstd_of(x, D, op.options.norm_eps);
        const std::int64_t which = h < s.heads ? 0 : D;
        const float* gain = gains.data() + which;
        float* dgain = partial.data() + run * 2 * D + which;
        const float mean = cpu::lane_sum(D, [&](std::int64_t i) { return head[i] * gain[i] * x[i]; }) *
                           scale / static_cast<float>(D);
        for (std::int64_t i = 0; i < D; ++i) {
          const float normed = x[i] * scale;
          dgain[i] += head[i] * normed;
          head[i] = scale * (head[i] * gain[i] - normed * mean);
        }
      }
      cpu::store(op.dqkv.value, row * W, W, grad);
    }
  });
  if (!gains.empty()) {
    const Tensor* targets[] = {&op.dq_norm, &op.dk_norm};
    std::vector<float> total(D);
    for (int which = 0; which < 2; ++which) {
      std::fill(total.begin(), total.end(), 0.0f);
      if (op.accumulate) std::copy_n(cpu::load(*targets[which], 0, D, total.data()), D, total.begin());
      for (std::int64_t run = 0; run < runs; ++run)
        for (std::int64_t i = 0; i < D; ++i) total[i] += partial[(run * 2 + which) * D + i];
      cpu::store(*targets[which], 0, D, total.data());
    }
  }
  do_quantize({op.dqkv});
}

}  // namespace precbench
