// The gate of a shared expert: each row times the sigmoid of its token's product with a vector.
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vector.h"

namespace precbench {

void CpuDevice::do_gate_rows(const ops::GateRows& op) {
  const std::int64_t N = op.y.cols, C = op.x.cols;
  std::vector<float> w_buffer(C);
  const float* w = cpu::load(op.w, 0, C, w_buffer.data());
  cpu::for_rows(threads_, op.y.rows, 2 * N + C, [&](std::int64_t row, float* buffer) {
    const float* x = cpu::load(op.x, row * C, C, buffer);
    const float gate = cpu::sigmoid(cpu::lane_dot(C, x, w));
    const float* raw = cpu::load(op.raw, row * N, N, buffer + C);
    float* y = buffer + C + N;
    for (std::int64_t i = 0; i < N; ++i) y[i] = gate * raw[i];
    cpu::store(op.y, row * N, N, y);
    op.gate.as<float>()[row] = gate;
  });
}

void CpuDevice::do_gate_rows_backward(const ops::GateRowsBackward& op) {
  const std::int64_t N = op.dy.cols;
  cpu::for_rows(threads_, op.dy.rows, 3 * N, [&](std::int64_t row, float* buffer) {
    const float *dy = cpu::load(op.dy, row * N, N, buffer), *raw = cpu::load(op.raw, row * N, N, buffer + N);
    const float gate = op.gate.as<float>()[row];
    const float dgate = cpu::lane_dot(N, dy, raw);
    op.dz.as<float>()[row] = dgate * gate * (1.0f - gate);
    float* draw = buffer + 2 * N;
    for (std::int64_t i = 0; i < N; ++i) draw[i] = gate * dy[i];
    cpu::store(op.draw, row * N, N, draw);
  });
}

}  // namespace precbench
