// Activations without a gate, and biases added to rows: on the CPU device against FP64, on any device against the
// CPU device.
#include <cmath>

#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr Activation kUngated[] = {Activation::silu, Activation::gelu_tanh, Activation::gelu,
                                   Activation::relu2};

/// PyTorch's definitions; the square of F.relu.
double without_gate(Activation activation, double x) {
  switch (activation) {
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::gelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979324) * (x + 0.044715 * x * x * x)));
    case Activation::relu2:
      return x > 0 ? x * x : 0;
  }
  return 0;
}

}  // namespace

TEST_CASE("activate: every activation with its bias and its derivative match FP64", "[cpu][activate]") {
  const auto device = make_cpu_device(2);
  const std::int64_t M = 7, F = 19;
  for (const Activation activation : kUngated)
    for (const bool biased : {false, true}) {
      INFO(static_cast<int>(activation) << (biased ? " with a bias" : ""));
      const std::vector<float> values = normal(1, M * F, 2.0f), ds = normal(2, M * F), b = normal(3, F);
      const Owned z(DType::f32, M, F, values), gradient(DType::f32, M, F, ds), bias(DType::f32, 1, F, b);
      const Owned s(DType::f32, M, F), again(DType::f32, M, F), dz(DType::f32, M, F);
      QuantizedTensor out = operand(s), out_again = operand(again), d = operand(dz);
      const Tensor added = biased ? bias.tensor() : Tensor{};
      device->activate({out, z, added, activation});
      device->activate_backward({d, out_again, gradient, z, added, activation});
      const auto activated = [&](const std::vector<double>& at) {
        std::vector<double> result(at);
        for (std::size_t i = 0; i < at.size(); ++i)
          result[i] = without_gate(activation, at[i] + (biased ? b[i % F] : 0));
        return result;
      };
      const std::vector<double> x(values.begin(), values.end());
      CHECK(relative_error(s.floats(), activated(x)) < kFp32Error);
      CHECK(again.bytes() == s.bytes());
      check_gradient([&](const std::vector<double>& moved) { return dot(activated(moved), ds); }, x,
                     dz.floats());
    }
}

TEST_CASE("add_bias and bias_backward: a row for each position", "[cpu][bias]") {
  const auto device = make_cpu_device(2);
  const std::int64_t B = 3, T = 5, N = 8;
  const std::vector<float> values = normal(1, B * T * N), table = normal(2, T * N), start = normal(3, T * N);
  const Owned x(DType::f32, B * T, N, values), positions(DType::f32, T, N, table);
  device->add_bias({x, positions});
  std::vector<double> sums(values.begin(), values.end());
  for (std::int64_t i = 0; i < B * T * N; ++i) sums[i] += table[i % (T * N)];
  CHECK(relative_error(x.floats(), sums) < kFp32Error);
  const Owned dy(DType::f32, B * T, N, values), fresh(DType::f32, T, N), added(DType::f32, T, N, start);
  device->bias_backward({fresh, false, dy});
  device->bias_backward({added, true, dy});
  std::vector<double> total(T * N), more(start.begin(), start.end());
  for (std::int64_t i = 0; i < B * T * N; ++i)
    total[i % (T * N)] += values[i], more[i % (T * N)] += values[i];
  CHECK(relative_error(fresh.floats(), total) < kFp32Error);
  CHECK(relative_error(added.floats(), more) < kFp32Error);
}

// ---- any device against the CPU device

PRECBENCH_OP_TEST(activate_on, "activate and activate_backward with every activation") {
  for (const Activation activation : kUngated)
    for (const Size& size : {Size{128, 256}, Size{133, 208}}) {
      b.start();
      HostMemory& host = b.host();
      const std::int64_t M = size.M, F = size.C;
      const bool biased = size.M % 2 == 0 || activation == Activation::gelu;
      INFO(M << " x " << F << ", activation " << static_cast<int>(activation));
      const Tensor z = host.random(DType::bf16, M, F, 3.0f), ds = host.random(DType::bf16, M, F, 1.0f),
                   bias = biased ? host.random(DType::bf16, 1, F, 1.0f) : Tensor{};
      if (activation != Activation::relu2) {  // whose square overflows the formats' copies
        HostMemory::set(z, 0, -1000.0f);
        HostMemory::set(z, 1, 1000.0f);
      }
      const auto cpu_run = [&](DType dtype, Tensor& dz) {
        QuantizedTensor s, d;
        s.value = host.tensor(dtype, M, F);
        dz = d.value = host.tensor(dtype, M, F);
        b.cpu().activate_backward({d, s, host.converted(ds, dtype), host.converted(z, dtype),
                                   host.converted(bias, dtype), activation});
        return s.value;
      };
      Tensor naive_d, true_d;
      const Tensor naive = cpu_run(DType::bf16, naive_d), truth = cpu_run(DType::f32, true_d);
      const Tensor dev_z = b.put(z), dev_ds = b.put(ds), dev_bias = b.put(bias);
      const Tensor s = b.check_operand("s", M, F, [&](QuantizedTensor& out) {
        b.device().activate({out, dev_z, dev_bias, activation});
      });
      check_twice("s", s, naive, HostMemory::values(truth));
      for (const OutputFormats& formats : {OutputFormats{}, {{}, kTensorE4m3}, {kBlock, kRow}}) {
        const Tensor d = b.check_operand("dz", M, F, [&](QuantizedTensor& out) {
          QuantizedTensor again = b.operand(formats, M, F);
          b.device().activate_backward({out, again, dev_ds, dev_z, dev_bias, activation});
          b.check_copies("s again", again, s);
          if (again.keep_value) CHECK(same_bits(b.fetch(again.value), s));
        });
        check_twice("dz", d, naive_d, HostMemory::values(true_d));
      }
      QuantizedTensor kept;
      kept.keep_value = false;
      const Tensor alone = b.check_operand("dz alone", M, F, [&](QuantizedTensor& out) {
        b.device().activate_backward({out, kept, dev_ds, dev_z, dev_bias, activation});
      });
      check_twice("dz alone", alone, naive_d, HostMemory::values(true_d));
    }
}

PRECBENCH_OP_TEST(positions_on, "add_bias, and bias_backward of positions") {
  struct Shape {
    std::int64_t rows, positions, cols;
  };
  for (const Shape& s : {Shape{50, 1, 96}, Shape{96, 32, 264}, Shape{7, 7, 8}})
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const bool accumulate : {false, true}) {
        b.start();
        INFO(s.rows << " rows, " << s.positions << " positions, " << name_of(dtype));
        HostMemory& host = b.host();
        const Tensor x = host.random(dtype, s.rows, s.cols, 1.0f),
                     table = host.random(DType::bf16, s.positions, s.cols, 1.0f);
        const Tensor sum = b.put(x), cpu_sum = host.converted(x, dtype);
        b.device().add_bias({sum, b.put(table)});
        b.cpu().add_bias({cpu_sum, table});
        CHECK(same_bits(b.fetch(sum), cpu_sum));
        const Tensor dy = host.random(DType::bf16, s.rows, s.cols, 1.0f),
                     before = host.random(dtype, s.positions, s.cols, 1.0f);
        const Tensor dtable = b.put(before), cpu_dtable = host.converted(before, dtype);
        b.device().bias_backward({dtable, accumulate, b.put(dy)});
        b.cpu().bias_backward({cpu_dtable, accumulate, dy});
        std::vector<double> truth(static_cast<std::size_t>(before.size()));
        for (std::int64_t i = 0; i < before.size() && accumulate; ++i) truth[i] = HostMemory::get(before, i);
        for (std::int64_t i = 0; i < dy.size(); ++i) truth[i % before.size()] += HostMemory::get(dy, i);
        check_twice("dtable", b.fetch(dtable), cpu_dtable, truth);
      }
}
