// The gate of a shared expert: on the CPU device against FP64, on other devices against the CPU device.
#include <cmath>

#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

TEST_CASE("gate_rows: rows times the sigmoid of a product, and the gradient", "[cpu][moe]") {
  constexpr std::int64_t kRows = 5, kCols = 11, kWidth = 7;
  const auto device = make_cpu_device(2);
  const std::vector<float> raw_values = normal(1, kRows * kCols), x_values = normal(2, kRows * kWidth),
                           w_values = normal(3, kWidth), dy_values = normal(4, kRows * kCols);
  const Owned raw(DType::f32, kRows, kCols, raw_values), x(DType::f32, kRows, kWidth, x_values),
      w(DType::f32, 1, kWidth, w_values), dy(DType::f32, kRows, kCols, dy_values);
  const Owned y(DType::f32, kRows, kCols), gate(DType::f32, kRows, 1), draw(DType::f32, kRows, kCols),
      dz(DType::f32, kRows, 1);
  device->gate_rows({y, gate, raw, x, w});
  device->gate_rows_backward({draw, dz, dy, raw, gate});
  for (std::int64_t row = 0; row < kRows; ++row) {
    double z = 0, dgate = 0;
    for (std::int64_t i = 0; i < kWidth; ++i) z += double{x_values[row * kWidth + i]} * w_values[i];
    const double g = 1 / (1 + std::exp(-z));
    CHECK(std::fabs(gate.floats()[row] - g) < 8 * kFp32Error);
    for (std::int64_t i = row * kCols; i < (row + 1) * kCols; ++i) {
      CHECK(std::fabs(y.floats()[i] - g * raw_values[i]) < 16 * kFp32Error);
      CHECK(std::fabs(draw.floats()[i] - g * dy_values[i]) < 16 * kFp32Error);
      dgate += double{dy_values[i]} * raw_values[i];
    }
    CHECK(std::fabs(dz.floats()[row] - dgate * g * (1 - g)) < 64 * kFp32Error);
  }
}

TEST_CASE("add_bias, bias_backward: weights of rows", "[cpu][moe]") {
  constexpr std::int64_t kRows = 70, kCols = 12;
  const auto device = make_cpu_device(2);
  const std::vector<float> values = normal(1, kRows * kCols), b = normal(2, kCols),
                           of_rows = normal(3, kRows);
  const Owned x(DType::f32, kRows, kCols, values), bias(DType::f32, 1, kCols, b),
      weights(DType::f32, kRows, 1, of_rows), dbias(DType::f32, 1, kCols);
  device->bias_backward({dbias, false, x, weights});
  device->add_bias({x, bias, weights});
  std::vector<double> sums(kCols), added(values.begin(), values.end());
  for (std::int64_t i = 0; i < kRows * kCols; ++i) {
    sums[i % kCols] += double{of_rows[i / kCols]} * values[i];
    added[i] += double{of_rows[i / kCols]} * b[i % kCols];
  }
  CHECK(relative_error(dbias.floats(), sums) < 8 * kFp32Error);
  CHECK(relative_error(x.floats(), added) < kFp32Error);
}

// ---- any device against the CPU device

/// Checks FP32 functions of sums of products, which a device may add in any order: an error may be kRoundings unit
/// roundoffs of the sum of the products' magnitudes, times the function's slope. `others`: further roundings of the result.
void check_sums(const char* what, const Tensor& result, const Tensor& truth,
                const std::vector<double>& magnitudes, const std::vector<double>& slopes, double others) {
  INFO(what);
  constexpr double kRoundings = 16;  // 8 elements of a thread, then a tree over up to 256 threads
  for (std::int64_t i = 0; i < truth.size(); ++i) {
    const double expected = HostMemory::get(truth, i);
    CHECK(std::fabs(HostMemory::get(result, i) - expected) <=
          0x1p-24 * (kRoundings * magnitudes[i] * slopes[i] + others * std::fabs(expected)));
  }
}

PRECBENCH_OP_TEST(gate_rows_on, "gate_rows, its gradient, and rows with weights") {
  for (const Size& size : {Size{1, 8}, Size{50, 96}, Size{515, 2048}}) {
    b.start();
    INFO(size.M << " x " << size.C);
    HostMemory& host = b.host();
    const std::int64_t M = size.M, C = size.C;
    const Tensor raw = host.random(DType::bf16, M, C, 1.0f), x = host.random(DType::bf16, M, C, 1.0f),
                 w = host.random(DType::bf16, 1, C, 0.1f), dy = host.random(DType::bf16, M, C, 1.0f);
    struct Results {
      Tensor y, gate, draw, dz, dw, dx;
    };
    const auto on_cpu = [&](DType dtype) {
      Results r{host.tensor(dtype, M, C),      host.tensor(DType::f32, M, 1), host.tensor(dtype, M, C),
                host.tensor(DType::f32, M, 1), host.tensor(dtype, 1, C),      host.converted(dy, dtype)};
      const Tensor in = host.converted(x, dtype), vector = host.converted(w, dtype),
                   before = host.converted(raw, dtype);
      b.cpu().gate_rows({r.y, r.gate, before, in, vector});
      b.cpu().gate_rows_backward({r.draw, r.dz, host.converted(dy, dtype), before, r.gate});
      b.cpu().bias_backward({r.dw, false, in, r.dz});
      b.cpu().add_bias({r.dx, vector, r.dz});
      return r;
    };
    const Results naive = on_cpu(DType::bf16), exact = on_cpu(DType::f32);
    const Results got{b.output(DType::bf16, M, C), b.output(DType::f32, M, 1),  b.output(DType::bf16, M, C),
                      b.output(DType::f32, M, 1),  b.output(DType::bf16, 1, C), b.put(dy)};
    const Tensor in = b.put(x), vector = b.put(w), before = b.put(raw);
    b.device().gate_rows({got.y, got.gate, before, in, vector});
    // The rest from exact gates and gradients of them, so that each op answers for itself.
    b.device().gate_rows_backward({got.draw, got.dz, b.put(dy), before, b.put(exact.gate)});
    b.device().bias_backward({got.dw, false, in, b.put(exact.dz)});
    b.device().add_bias({got.dx, vector, b.put(exact.dz)});
    std::vector<double> of_z(M), of_dgate(M), slopes(M);
    for (std::int64_t row = 0; row < M; ++row) {
      for (std::int64_t i = 0; i < C; ++i) {
        of_z[row] += std::fabs(HostMemory::get(x, row * C + i) * HostMemory::get(w, i));
        of_dgate[row] += std::fabs(HostMemory::get(dy, row * C + i) * HostMemory::get(raw, row * C + i));
      }
      const double gate = HostMemory::get(exact.gate, row);
      slopes[row] = gate * (1 - gate);
    }
    check_sums("gate", b.fetch(got.gate), exact.gate, of_z, slopes, 4);
    check_sums("dz", b.fetch(got.dz), exact.dz, of_dgate, slopes, 4);
    b.check("y", got.y, naive.y, exact.y);
    b.check("draw", got.draw, naive.draw, exact.draw);
    b.check("dw", got.dw, naive.dw, exact.dw);
    b.check("dx", got.dx, naive.dx, exact.dx);
  }
}
