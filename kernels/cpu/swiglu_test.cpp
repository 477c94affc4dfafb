// SwiGLU on the CPU device: values against FP64, gradients against finite differences, and gates at exp's
// ends.
#include "kernels/cpu/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// gate_up [M, 2F] to s [M, F].
std::vector<double> swiglu(std::int64_t M, std::int64_t F, const std::vector<double>& gate_up) {
  std::vector<double> s(M * F);
  for (std::int64_t m = 0; m < M; ++m)
    for (std::int64_t f = 0; f < F; ++f) {
      const double gate = gate_up[m * 2 * F + f], up = gate_up[m * 2 * F + F + f];
      s[m * F + f] = gate / (1 + std::exp(-gate)) * up;
    }
  return s;
}

struct Run {
  Owned s, again, dgate_up;
};

Run run(Device& device, DType dtype, std::int64_t M, std::int64_t F, const std::vector<float>& gate_up,
        const std::vector<float>& ds) {
  const Owned in(dtype, M, 2 * F, gate_up), gradient(dtype, M, F, ds);
  Run r{{dtype, M, F}, {dtype, M, F}, {dtype, M, 2 * F}};
  QuantizedTensor s = operand(r.s), again = operand(r.again), dgate_up = operand(r.dgate_up);
  device.swiglu(s, in);
  device.swiglu_backward(dgate_up, again, gradient, in);
  return r;
}

}  // namespace

TEST_CASE("swiglu, its derivative, and its output again", "[cpu][swiglu]") {
  const auto device = make_cpu_device(2);
  for (const auto& [M, F] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 17}, {70, 5}}) {
    INFO("M " << M << " F " << F);
    const std::vector<float> gate_up = normal(1, M * 2 * F, 3.0f), ds = normal(2, M * F);
    const Run got = run(*device, DType::f32, M, F, gate_up, ds);
    const std::vector<double> x(gate_up.begin(), gate_up.end());
    CHECK(relative_error(got.s.floats(), swiglu(M, F, x)) < kFp32Error);
    CHECK(got.again.bytes() == got.s.bytes());
    check_gradient([&](const std::vector<double>& moved) { return dot(swiglu(M, F, moved), ds); }, x,
                   got.dgate_up.floats());
  }
}

TEST_CASE("swiglu goes to its limits where exp overflows", "[cpu][swiglu]") {
  const auto device = make_cpu_device(1);
  const Run got = run(*device, DType::f32, 2, 2, {-100, -0x1p99f, 2, 3, 100, 0x1p99f, 2, 3}, {1, 1, 1, 1});
  CHECK(got.s.floats() == std::vector<float>{0, 0, 200, 3 * 0x1p99f});
  CHECK(got.dgate_up.floats() == std::vector<float>{0, 0, 0, 0, 2, 3, 100, 0x1p99f});
}

TEST_CASE("swiglu in BF16 is FP32 rounded once", "[cpu][swiglu]") {
  const auto device = make_cpu_device(2);
  const std::vector<float> gate_up = rounded(normal(1, 40 * 30)), ds = rounded(normal(2, 40 * 15));
  const Run wide = run(*device, DType::f32, 40, 15, gate_up, ds);
  const Run narrow = run(*device, DType::bf16, 40, 15, gate_up, ds);
  CHECK(narrow.s.floats() == rounded(wide.s.floats()));
  CHECK(narrow.again.floats() == narrow.s.floats());
  CHECK(narrow.dgate_up.floats() == rounded(wide.dgate_up.floats()));
}
