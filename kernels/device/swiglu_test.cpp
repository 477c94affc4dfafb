// SwiGLU on the CPU device: values against FP64, gradients against finite differences, and gates at the ends
// of exp's range.
#include <array>
#include <limits>
#include <utility>

#include "kernels/device/compare_testing.h"
#include "kernels/device/op_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// FP64 reference: gate_up [M, 2F] to s [M, F].
std::vector<double> swiglu(std::int64_t M, std::int64_t F, const std::vector<double>& gate_up) {
  std::vector<double> s(M * F);
  for (std::int64_t m = 0; m < M; ++m)
    for (std::int64_t f = 0; f < F; ++f) {
      const double gate = gate_up[m * 2 * F + f], up = gate_up[m * 2 * F + F + f];
      s[m * F + f] = gate / (1 + std::exp(-gate)) * up;
    }
  return s;
}

struct SwigluRun {
  Owned s, again, dgate_up;
};

SwigluRun run(Device& device, DType dtype, std::int64_t M, std::int64_t F, const std::vector<float>& gate_up,
              const std::vector<float>& ds) {
  const Owned in(dtype, M, 2 * F, gate_up), gradient(dtype, M, F, ds);
  SwigluRun r{{dtype, M, F}, {dtype, M, F}, {dtype, M, 2 * F}};
  QuantizedTensor s = operand(r.s), again = operand(r.again), dgate_up = operand(r.dgate_up);
  device.swiglu({s, in});
  device.swiglu_backward({dgate_up, again, gradient, in});
  return r;
}

}  // namespace

TEST_CASE("swiglu: forward and derivative match FP64 and backward recomputes the output", "[cpu][swiglu]") {
  const auto device = make_cpu_device(2);
  for (const auto& shape : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 17}, {70, 5}}) {
    const std::int64_t M = shape.first, F = shape.second;
    INFO("M " << M << " F " << F);
    const std::vector<float> gate_up = normal(1, M * 2 * F, 3.0f), ds = normal(2, M * F);
    const SwigluRun got = run(*device, DType::f32, M, F, gate_up, ds);
    const std::vector<double> x(gate_up.begin(), gate_up.end());
    CHECK(relative_error(got.s.floats(), swiglu(M, F, x)) < kFp32Error);
    CHECK(got.again.bytes() == got.s.bytes());
    check_gradient([&](const std::vector<double>& moved) { return dot(swiglu(M, F, moved), ds); }, x,
                   got.dgate_up.floats());
  }
}

TEST_CASE("swiglu: reaches its limits where exp overflows", "[cpu][swiglu]") {
  const auto device = make_cpu_device(1);
  const SwigluRun got =
      run(*device, DType::f32, 2, 2, {-100, -0x1p99f, 2, 3, 100, 0x1p99f, 2, 3}, {1, 1, 1, 1});
  CHECK(got.s.floats() == std::vector<float>{0, 0, 200, 3 * 0x1p99f});
  CHECK(got.dgate_up.floats() == std::vector<float>{0, 0, 0, 0, 2, 3, 100, 0x1p99f});
}

TEST_CASE("swiglu: BF16 equals FP32 rounded once", "[cpu][swiglu]") {
  const auto device = make_cpu_device(2);
  const std::vector<float> gate_up = rounded(normal(1, 40 * 30)), ds = rounded(normal(2, 40 * 15));
  const SwigluRun wide = run(*device, DType::f32, 40, 15, gate_up, ds);
  const SwigluRun narrow = run(*device, DType::bf16, 40, 15, gate_up, ds);
  CHECK(narrow.s.floats() == rounded(wide.s.floats()));
  CHECK(narrow.again.floats() == narrow.s.floats());
  CHECK(narrow.dgate_up.floats() == rounded(wide.dgate_up.floats()));
}

// ---- any device against the CPU device

PRECBENCH_OP_TEST(swiglu_on, "swiglu and swiglu_backward") {
  // Tiles of gate and up that line up with blocks, and a width where they do not.
  for (const Size& size : {Size{128, 256}, Size{100, 128}, Size{133, 208}}) {
    b.start();
    HostMemory& host = b.host();
    const std::int64_t M = size.M, F = size.C;
    INFO(M << " x " << F);
    const Tensor gate_up = host.random(DType::bf16, M, 2 * F, 4.0f),
                 ds = host.random(DType::bf16, M, F, 1.0f);
    HostMemory::set(gate_up, 0, -1000.0f);  // e^1000 overflows
    HostMemory::set(gate_up, 1, 1000.0f);
    const auto cpu_run = [&](DType dtype, Tensor& dgate_up) {
      QuantizedTensor s, d;
      s.value = host.tensor(dtype, M, F);
      dgate_up = d.value = host.tensor(dtype, M, 2 * F);
      b.cpu().swiglu_backward({d, s, host.converted(ds, dtype), host.converted(gate_up, dtype)});
      return s.value;
    };
    Tensor naive_d, true_d;
    const Tensor naive = cpu_run(DType::bf16, naive_d), truth = cpu_run(DType::f32, true_d);
    const Tensor dev_in = b.put(gate_up), dev_ds = b.put(ds);
    const Tensor s = b.check_operand("s", M, F, [&](QuantizedTensor& out) {
      b.device().swiglu({out, dev_in});
    });
    check_twice("s", s, naive, HostMemory::values(truth));
    // Forward keeps the amax for backward even if its own copies do not use it.
    float amax = 0;
    for (double v : HostMemory::values(s)) amax = std::max(amax, static_cast<float>(std::fabs(v)));
    for (const QuantFormat& row : {QuantFormat{}, kRow, kBlock}) {
      QuantizedTensor out = b.operand({row, {}}, M, F);
      out.amax_out = b.output(DType::f32, 1, 1);
      out.keep_value = !row.quantized();
      b.device().swiglu({out, dev_in});
      CHECK(b.fetch(out.amax_out).as<float>()[0] == amax);
    }

    for (const OutputFormats& again : {OutputFormats{}, {{}, kTensorE4m3}, {kBlock, kRow}, {{}, kMx}}) {
      QuantizedTensor dev_s;
      const Tensor d = b.check_operand("dgate_up", M, 2 * F, [&](QuantizedTensor& out) {
        dev_s = b.operand(again, M, F);
        dev_s.keep_value = out.keep_value;
        b.device().swiglu({dev_s, dev_in});  // writes the amax, as forward does
        for (const Tensor& t : {dev_s.rowwise.data, dev_s.columnwise.data, dev_s.value})
          if (!t.empty()) b.device().upload(t, host.tensor(t.dtype, t.rows, t.cols).data);
        b.device().synchronize();
        dev_s.amax_in = std::exchange(dev_s.amax_out, {});
        b.device().swiglu_backward({out, dev_s, dev_ds, dev_in});
        b.check_copies("s again", dev_s, s);
        if (dev_s.keep_value) CHECK(same_bits(b.fetch(dev_s.value), s));
      });
      check_twice("dgate_up", d, naive_d, HostMemory::values(true_d));
      const Tensor alone = b.check_operand("dgate_up without s", M, 2 * F, [&](QuantizedTensor& out) {
        b.device().swiglu_backward({out, {.value = {}, .keep_value = false}, dev_ds, dev_in});
      });
      CHECK(same_bits(alone, d));
    }
  }
}

PRECBENCH_OP_TEST(swiglu_poison_on,
                  "swiglu and swiglu_backward: what is not finite reaches its own place alone") {
  constexpr std::int64_t M = 133, F = 208, kRow = 70, kColumn = 97;
  HostMemory& host = b.host();
  const Tensor gate_up = host.random(DType::bf16, M, 2 * F, 1.0f), ds = host.random(DType::bf16, M, F, 1.0f);
  const auto run = [&] {
    QuantizedTensor s{.value = b.output(DType::bf16, M, F)}, again{.value = b.output(DType::bf16, M, F)},
        dgate_up{.value = b.output(DType::bf16, M, 2 * F)};
    const Tensor in = b.put(gate_up), gradient = b.put(ds);
    b.device().swiglu({s, in});
    b.device().swiglu_backward({dgate_up, again, gradient, in});
    return std::array{b.fetch(s.value), b.fetch(again.value), b.fetch(dgate_up.value)};
  };
  const auto clean = run();
  enum class Poisoned : std::uint8_t { gate, up, gradient };
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const Poisoned which : {Poisoned::gate, Poisoned::up, Poisoned::gradient}) {
      INFO(poison << " in " << static_cast<int>(which));
      const bool of_gradient = which == Poisoned::gradient;
      const Tensor& x = of_gradient ? ds : gate_up;
      const std::int64_t at = kRow * x.cols + kColumn + (which == Poisoned::up ? F : 0);
      const float was = HostMemory::get(x, at);
      HostMemory::set(x, at, poison);
      const auto got = run();
      HostMemory::set(x, at, was);
      const auto here = [&](std::int64_t row, std::int64_t column) {
        return row == kRow && column == kColumn;
      };
      for (const int i : {0, 1})
        check_reached(i ? "s again" : "s", got[i], clean[i],
                      [&](auto row, auto column) { return !of_gradient && here(row, column); });
      // The gradient of up does not depend on up.
      check_reached("dgate_up", got[2], clean[2], [&](auto row, auto column) {
        return here(row, column) || (which != Poisoned::up && here(row, column - F));
      });
    }
}

PRECBENCH_OP_TEST(swiglu_many_tiles_on, "swiglu_backward of more tiles than a GPU has at a time") {
  const std::int64_t M = b.on_cpu() ? 128 : 24 * 128, F = b.on_cpu() ? 256 : 23 * 128;
  HostMemory& host = b.host();
  const Tensor gate_up = b.put(host.random(DType::bf16, M, 2 * F, 4.0f)),
               ds = b.put(host.random(DType::bf16, M, F, 1.0f));
  QuantizedTensor plain = b.operand({}, M, 2 * F), plain_s = b.operand({}, M, F);
  b.device().swiglu_backward({plain, plain_s, ds, gate_up});
  const Tensor value = b.fetch(plain.value), s_value = b.fetch(plain_s.value);
  for (const OutputFormats& formats :
       {OutputFormats{kTensorE4m3, kTensorE4m3}, {kRow, kRow}, {kBlock, kBlockPow2}, {kMx, {}}}) {
    QuantizedTensor d = b.operand(formats, M, 2 * F), s = b.operand({{}, kBlock}, M, F);
    b.device().swiglu_backward({d, s, ds, gate_up});
    b.check_copies("dgate_up, row " + describe(formats.rowwise), d, value);
    b.check_copies("s", s, s_value);
    CHECK(same_bits(b.fetch(d.value), value));
  }
}
