// Biases of experts: those of gate and up on the rows of their groups, those of down on the sums of tokens.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"

namespace precbench {

void CpuDevice::do_add_expert_bias(const ops::AddExpertBias& op) {
  const std::int64_t N = op.x.cols, E = op.groups.experts();
  const std::int32_t* offsets = op.groups.offsets.as<std::int32_t>();
  cpu::for_rows(threads_, offsets[E], 2 * N, [&](std::int64_t row, float* buffer) {
    if (op.groups.source.as<std::int32_t>()[row] < 0) return;
    const std::int64_t e = std::upper_bound(offsets, offsets + E + 1, row) - offsets - 1;
    const float* x = cpu::load(op.x, row * N, N, buffer);
    const float* bias = cpu::load(op.bias, e * N, N, buffer + N);
    for (std::int64_t i = 0; i < N; ++i) buffer[i] = x[i] + bias[i];
    cpu::store(op.x, row * N, N, buffer);
  });
}

void CpuDevice::do_expert_bias_backward(const ops::ExpertBiasBackward& op) {
  const std::int64_t N = op.dy.cols;
  cpu::for_rows(threads_, op.groups.experts(), 2 * N, [&](std::int64_t e, float* buffer) {
    float* sum = buffer + N;
    std::fill_n(sum, N, 0.0f);
    if (op.accumulate) std::copy_n(cpu::load(op.dbias, e * N, N, buffer), N, sum);
    const std::int64_t first = op.groups.offsets.as<std::int32_t>()[e],
                       count = op.groups.counts.as<std::int32_t>()[e];
    for (std::int64_t row = first; row < first + count; ++row) {
      const float* dy = cpu::load(op.dy, row * N, N, buffer);
      for (std::int64_t i = 0; i < N; ++i) sum[i] += dy[i];
    }
    cpu::store(op.dbias, e * N, N, sum);
  });
}

void CpuDevice::do_add_routed_bias(const ops::AddRoutedBias& op) {
  const std::int64_t N = op.out.cols, K = op.index.cols;
  cpu::for_rows(threads_, op.out.rows, 3 * N, [&](std::int64_t t, float* buffer) {
    float* sum = buffer + N;
    std::copy_n(cpu::load(op.out, t * N, N, buffer), N, sum);
    for (std::int64_t slot = t * K; slot < (t + 1) * K; ++slot) {
      const float weight = op.weights.as<float>()[slot];
      const float* bias = cpu::load(op.bias, op.index.as<std::int32_t>()[slot] * N, N, buffer + 2 * N);
      for (std::int64_t i = 0; i < N; ++i) sum[i] = multiply_add(weight, bias[i], sum[i]);
    }
    cpu::store(op.out, t * N, N, sum);
  });
}

void CpuDevice::do_routed_bias_backward(const ops::RoutedBiasBackward& op) {
  const std::int64_t N = op.dy.cols, K = op.index.cols, slots = op.index.size(), E = op.bias.size() / N;
  const std::int32_t* index = op.index.as<std::int32_t>();
  cpu::for_rows(threads_, op.dy.rows, 2 * N, [&](std::int64_t t, float* buffer) {
    const float* dy = cpu::load(op.dy, t * N, N, buffer);
    for (std::int64_t slot = t * K; slot < (t + 1) * K; ++slot) {
      const float* bias = cpu::load(op.bias, index[slot] * N, N, buffer + N);
      op.dw.as<float>()[slot] += cpu::lane_dot(N, dy, bias);
    }
  });
  cpu::for_rows(threads_, E, 2 * N, [&](std::int64_t e, float* buffer) {
    float* sum = buffer + N;
    std::fill_n(sum, N, 0.0f);
    if (op.accumulate) std::copy_n(cpu::load(op.dbias, e * N, N, buffer), N, sum);
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      if (index[slot] != e) continue;
      const float weight = op.weights.as<float>()[slot];
      const float* dy = cpu::load(op.dy, slot / K * N, N, buffer);
      for (std::int64_t i = 0; i < N; ++i) sum[i] = multiply_add(weight, dy[i], sum[i]);
    }
    cpu::store(op.dbias, e * N, N, sum);
  });
}

}  // namespace precbench
