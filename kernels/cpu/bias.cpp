// A bias added to rows, and its gradient: the output gradient summed over rows.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"

namespace precbench {

void CpuDevice::do_add_bias(const ops::AddBias& op) {
  const std::int64_t M = op.x.rows, N = op.x.cols;
  std::vector<float> bias_buffer(N);
  const float* bias = cpu::load(op.bias, 0, N, bias_buffer.data());
  cpu::for_rows(threads_, M, 2 * N, [&](std::int64_t row, float* buffer) {
    const float* in = cpu::load(op.x, row * N, N, buffer);
    float* sum = buffer + N;
    const float weight = op.weights.empty() ? 1.0f : op.weights.as<float>()[row];
    for (std::int64_t i = 0; i < N; ++i) sum[i] = in[i] + weight * bias[i];
    cpu::store(op.x, row * N, N, sum);
  });
}

void CpuDevice::do_bias_backward(const ops::BiasBackward& op) {
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
        for (std::int64_t i = 0; i < N; ++i) sum[i] += weight * in[i];
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
