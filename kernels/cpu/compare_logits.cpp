// Distance of two next-token distributions, row by row, in FP64.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"
#include "kernels/numerics/activation_functions.h"

namespace precbench {

void CpuDevice::do_compare_logits(const ops::CompareLogits& op) {
  const std::int64_t V = op.logits.cols;
  cpu::for_rows(threads_, op.logits.rows, 2 * V, [&](std::int64_t r, float* buffer) {
    const float* p = cpu::load(op.reference, r * V, V, buffer);
    const float* q = cpu::load(op.logits, r * V, V, buffer + V);
    if (op.softcap != 0) {
      for (std::int64_t v = 0; v < V; ++v) {
        buffer[v] = soft_capped(p[v], op.softcap);
        buffer[V + v] = soft_capped(q[v], op.softcap);
      }
      p = buffer, q = buffer + V;
    }
    const double p_max = *std::max_element(p, p + V), q_max = *std::max_element(q, q + V);
    double p_sum = 0, q_sum = 0, weighted = 0;  // weighted: of the differences, by the reference
    for (std::int64_t v = 0; v < V; ++v) {
      const double p_logit = static_cast<double>(p[v]) - p_max, q_logit = static_cast<double>(q[v]) - q_max;
      const double weight = std::exp(p_logit);
      p_sum += weight;
      q_sum += std::exp(q_logit);
      weighted = multiply_add(weight, p_logit - q_logit, weighted);
    }
    const double normalizers = std::log(q_sum) - std::log(p_sum);
    const std::int32_t target = op.targets.as<std::int32_t>()[r];
    const double p_target = static_cast<double>(p[target]) - p_max,
                 q_target = static_cast<double>(q[target]) - q_max;
    float* out = op.out.as<float>() + 2 * r;
    out[0] = static_cast<float>(q_target - p_target - normalizers);
    out[1] = static_cast<float>(weighted / p_sum + normalizers);
  });
}

}  // namespace precbench
