// Softmax cross-entropy and its gradient in one pass over a row of logits, which may be soft-capped, in FP32.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"
#include "kernels/numerics/activation_functions.h"

namespace precbench {

void CpuDevice::do_cross_entropy(const ops::CrossEntropy& op) {
  const std::int64_t V = op.logits.cols;
  cpu::for_rows(threads_, op.logits.rows, 2 * V, [&](std::int64_t r, float* buffer) {
    const float* row = cpu::load(op.logits, r * V, V, buffer);
    float* e = buffer + V;
    if (op.softcap != 0) {
      for (std::int64_t v = 0; v < V; ++v) buffer[v] = soft_capped(row[v], op.softcap);
      row = buffer;
    }
    float largest = row[0];
    for (std::int64_t v = 1; v < V; ++v) largest = std::max(largest, row[v]);
    for (std::int64_t v = 0; v < V; ++v) e[v] = cpu::exp(row[v] - largest);
    const float total = cpu::lane_sum(V, [&](std::int64_t v) { return e[v]; });
    const std::int32_t target = op.targets.as<std::int32_t>()[r];
    const float weight = op.weights.empty() ? 1.0f : op.weights.as<float>()[r];
    const float scale = op.scale * weight;
    op.loss.as<float>()[r] = (std::log(total) + largest - row[target]) * weight;
    const float factor = scale / total;
    for (std::int64_t v = 0; v < V; ++v) e[v] *= factor;
    e[target] -= scale;
    if (op.softcap != 0)
      for (std::int64_t v = 0; v < V; ++v) e[v] *= soft_cap_slope(row[v], op.softcap);
    cpu::store(op.logits, r * V, V, e);
  });
}

}  // namespace precbench
