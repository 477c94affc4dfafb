// Softmaxes that were computed without some of their logits: attention sinks, a logit per head, and parts of the keys.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"

namespace precbench {
namespace {

/// Returns log(exp(a) + exp(b)); one of them may be -infinity. FP64's log1p, rounded, does not depend on the C library's version.
float log_sum_exp(float a, float b) {
  const float largest = std::max(a, b);
  return largest + static_cast<float>(std::log1p(static_cast<double>(std::exp(std::min(a, b) - largest))));
}

}  // namespace

void CpuDevice::do_attention_sink(const ops::AttentionSink& op) {
  const AttentionShape& s = op.shape;
  const std::int64_t H = s.heads, T = s.T, D = s.head_dim, width = s.q_width();
  std::vector<float> buffer_of_sinks(static_cast<std::size_t>(H));
  const float* sinks = cpu::load(op.sink, 0, H, buffer_of_sinks.data());
  float* lse = op.lse.as<float>();
  cpu::for_rows(threads_, s.tokens(), 2 * width, [&](std::int64_t row, float* buffer) {
    const float* in = cpu::load(op.out, row * width, width, buffer);
    float* out = buffer + width;
    const std::int64_t b = row / T, t = row % T;
    for (std::int64_t h = 0; h < H; ++h) {
      float& total = lse[(b * H + h) * T + t];
      const float share = cpu::sigmoid(total - sinks[h]);
      for (std::int64_t i = h * D; i < (h + 1) * D; ++i) out[i] = share * in[i];
      total = log_sum_exp(total, sinks[h]);
    }
    cpu::store(op.out, row * width, width, out);
  });
}

void CpuDevice::do_merge_attention(const ops::MergeAttention& op) {
  const AttentionShape& s = op.shape;
  const std::int64_t H = s.heads, T = s.T, D = s.v_dim(), width = s.out_width();
  const float* part_lse = op.part_lse.as<float>();
  cpu::for_rows(threads_, s.tokens(), width, [&](std::int64_t row, float* buffer) {
    const float* part = cpu::load(op.part, row * width, width, buffer);
    float* out = op.out.as<float>() + row * width;
    for (std::int64_t h = 0; h < H; ++h) {
      const std::int64_t at = (row / T * H + h) * T + row % T;
      float& total = op.lse.as<float>()[at];
      const float kept = cpu::sigmoid(total - part_lse[at]), added = cpu::sigmoid(part_lse[at] - total);
      for (std::int64_t i = h * D; i < (h + 1) * D; ++i) out[i] = multiply_add(added, part[i], kept * out[i]);
      total = log_sum_exp(total, part_lse[at]);
    }
  });
}

void CpuDevice::do_attention_sink_backward(const ops::AttentionSinkBackward& op) {
  // Runs of rows are summed separately, then in order: no sum depends on the thread count.
  constexpr std::int64_t kRun = 64;
  const AttentionShape& s = op.shape;
  const std::int64_t H = s.heads, T = s.T, D = s.head_dim, width = s.q_width(), M = s.tokens(),
                     runs = (M + kRun - 1) / kRun;
  std::vector<float> buffer_of_sinks(static_cast<std::size_t>(H)),
      partial(static_cast<std::size_t>(runs * H));
  const float* sinks = cpu::load(op.sink, 0, H, buffer_of_sinks.data());
  const float* lse = op.lse.as<float>();
  cpu::for_rows(threads_, runs, 2 * width, [&](std::int64_t run, float* buffer) {
    float* sums = partial.data() + run * H;
    for (std::int64_t row = run * kRun; row < std::min(M, (run + 1) * kRun); ++row) {
      const float* dout = cpu::load(op.dout, row * width, width, buffer);
      const float* out = cpu::load(op.out, row * width, width, buffer + width);
      const std::int64_t b = row / T, t = row % T;
      for (std::int64_t h = 0; h < H; ++h) {
        const float *g = dout + h * D, *o = out + h * D;
        const float delta = cpu::lane_dot(D, g, o);
        sums[h] = multiply_add(-cpu::exp(sinks[h] - lse[(b * H + h) * T + t]), delta, sums[h]);
      }
    }
  });
  std::vector<float> total(static_cast<std::size_t>(H));
  if (op.accumulate) std::copy_n(cpu::load(op.dsink, 0, H, total.data()), H, total.begin());
  for (std::int64_t run = 0; run < runs; ++run)
    for (std::int64_t h = 0; h < H; ++h) total[h] += partial[run * H + h];
  cpu::store(op.dsink, 0, H, total.data());
}

}  // namespace precbench
