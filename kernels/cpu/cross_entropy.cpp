// Softmax cross-entropy and its gradient over rows of logits, which may be soft-capped, in FP32: in one pass, or in two
// ops if ranks divide the vocabulary.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"
#include "kernels/numerics/activation_functions.h"

namespace precbench {

namespace {

/// Returns a row of logits, soft-capped in `buffer` unless softcap is 0.
const float* capped_row(const Tensor& logits, std::int64_t r, float softcap, float* buffer) {
  const std::int64_t V = logits.cols;
  const float* row = cpu::load(logits, r * V, V, buffer);
  if (softcap == 0) return row;
  for (std::int64_t v = 0; v < V; ++v) buffer[v] = soft_capped(row[v], softcap);
  return buffer;
}

/// Computes e = e^(row - largest). Returns their sum.
float exponentials(const float* row, std::int64_t V, float largest, float* e) {
  for (std::int64_t v = 0; v < V; ++v) e[v] = cpu::exp(row[v] - largest);
  return cpu::lane_sum(V, [&](std::int64_t v) { return e[v]; });
}

/// Turns exponentials into the gradient of a row's logits, and stores it. `target`: its column, outside of the row if
/// another rank has it.
void store_gradient(const Tensor& logits, std::int64_t r, const float* row, float* e, std::int64_t target,
                    float scale, float total, float softcap) {
  const std::int64_t V = logits.cols;
  const float factor = scale / total;
  for (std::int64_t v = 0; v < V; ++v) e[v] *= factor;
  if (target >= 0 && target < V) e[target] -= scale;
  if (softcap != 0)
    for (std::int64_t v = 0; v < V; ++v) e[v] *= soft_cap_slope(row[v], softcap);
  cpu::store(logits, r * V, V, e);
}

}  // namespace

void CpuDevice::do_cross_entropy(const ops::CrossEntropy& op) {
  const std::int64_t V = op.logits.cols;
  cpu::for_rows(threads_, op.logits.rows, 2 * V, [&](std::int64_t r, float* buffer) {
    const float* row = capped_row(op.logits, r, op.softcap, buffer);
    const float largest = *std::max_element(row, row + V);
    const float total = exponentials(row, V, largest, buffer + V);
    const std::int32_t target = op.targets.as<std::int32_t>()[r];
    const float weight = op.weights.empty() ? 1.0f : op.weights.as<float>()[r];
    const float scale = op.scale * weight;
    op.loss.as<float>()[r] = (std::log(total) + largest - row[target]) * weight;
    store_gradient(op.logits, r, row, buffer + V, target, scale, total, op.softcap);
  });
}

void CpuDevice::do_logit_stats(const ops::LogitStats& op) {
  const std::int64_t V = op.logits.cols;
  cpu::for_rows(threads_, op.logits.rows, 2 * V, [&](std::int64_t r, float* buffer) {
    const float* row = capped_row(op.logits, r, op.softcap, buffer);
    const std::int64_t target = op.targets.as<std::int32_t>()[r] - op.first;
    float* stats = op.stats.as<float>() + 3 * r;
    stats[0] = *std::max_element(row, row + V);
    stats[1] = exponentials(row, V, stats[0], buffer + V);
    stats[2] = target >= 0 && target < V ? row[target] : -std::numeric_limits<float>::infinity();
  });
}

void CpuDevice::do_logit_gradient(const ops::LogitGradient& op) {
  const std::int64_t V = op.logits.cols, M = op.logits.rows, ranks = op.stats.size() / (3 * M);
  cpu::for_rows(threads_, M, 2 * V, [&](std::int64_t r, float* buffer) {
    const auto stats = [&](std::int64_t rank) { return op.stats.as<float>() + 3 * (rank * M + r); };
    float largest = stats(0)[0], logit = stats(0)[2], total = 0;
    for (std::int64_t rank = 1; rank < ranks; ++rank) {
      largest = std::max(largest, stats(rank)[0]);
      logit = std::max(logit, stats(rank)[2]);
    }
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      total += stats(rank)[1] * cpu::exp(stats(rank)[0] - largest);
    const float* row = capped_row(op.logits, r, op.softcap, buffer);
    exponentials(row, V, largest, buffer + V);
    const float weight = op.weights.empty() ? 1.0f : op.weights.as<float>()[r];
    op.loss.as<float>()[r] = (std::log(total) + largest - logit) * weight;
    store_gradient(op.logits, r, row, buffer + V, op.targets.as<std::int32_t>()[r] - op.first,
                   op.scale * weight, total, op.softcap);
  });
}

}  // namespace precbench
