// Addition of a bias or of positions, and its gradient: the output gradient summed over rows.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"

namespace precbench {

void CpuDevice::do_add_bias(const ops::AddBias& op) {
  const std::int64_t N = op.x.cols;
  cpu::for_rows(threads_, op.x.rows, 2 * N, [&](std::int64_t r, float* buffer) {
    const float* x = cpu::load(op.x, r * N, N, buffer);
    const float* bias = cpu::load(op.bias, r % op.bias.rows * N, N, buffer + N);
    const float weight = op.weights.empty() ? 1.0f : op.weights.as<float>()[r];
    for (std::int64_t i = 0; i < N; ++i) buffer[i] = multiply_add(weight, bias[i], x[i]);
    cpu::store(op.x, r * N, N, buffer);
  });
}

namespace {

/// Adds the rows of each position in order.
void sum_by_position(int threads, const ops::BiasBackward& op) {
  const std::int64_t M = op.dy.rows, N = op.dy.cols, positions = op.dbias.rows;
  cpu::for_rows(threads, positions, 3 * N, [&](std::int64_t position, float* buffer) {
    float* sum = buffer + N;
    std::fill_n(sum, N, 0.0f);
    if (op.accumulate) std::copy_n(cpu::load(op.dbias, position * N, N, buffer), N, sum);
    for (std::int64_t row = position; row < M; row += positions) {
      const float* in = cpu::load(op.dy, row * N, N, buffer);
      for (std::int64_t i = 0; i < N; ++i) sum[i] += in[i];
    }
    cpu::store(op.dbias, position * N, N, sum);
  });
}

}  // namespace

void CpuDevice::do_bias_backward(const ops::BiasBackward& op) {
  if (op.dbias.rows > 1) return sum_by_position(threads_, op);
  // Runs of rows are summed separately, then in order: no sum depends on the thread count.
  constexpr std::int64_t kRun = 64;
  const std::int64_t M = op.dy.rows, N = op.dy.cols, runs = (M + kRun - 1) / kRun;
  std::vector<float> partial(runs * N);
  cpu::for_rows(threads_, runs, N, [&](std::int64_t run, float* buffer) {
    float* sum = partial.data() + run * N;
    for (std::int64_t row = run * kRun; row < std::min(M, (run + 1) * kRun); ++row) {
      const float* in = cpu::load(op.dy, row * N, N, buffer);
      if (op.weights.empty()) {
        for (std::int64_t i = 0; i < N; ++i) sum[i] += in[i];
      } else {
        const float weight = op.weights.as<float>()[row];
        for (std::int64_t i = 0; i < N; ++i) sum[i] = multiply_add(weight, in[i], sum[i]);
      }
    }
  });
  std::vector<float> total(N);
  if (op.accumulate) std::copy_n(cpu::load(op.dbias, 0, N, total.data()), N, total.begin());
  for (std::int64_t run = 0; run < runs; ++run)
    for (std::int64_t i = 0; i < N; ++i) total[i] += partial[run * N + i];
  cpu::store(op.dbias, 0, N, total.data());
}

}  // namespace precbench
