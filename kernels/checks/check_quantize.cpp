// Quantizer checks. See check_quantize.h.
#include "kernels/checks/check_quantize.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <iterator>
#include <vector>

#include "kernels/device/native_path.h"

namespace precbench::checks {
namespace {

/// Difficult BF16 bit patterns: zeros, subnormals, the ends of the range, and values near 1e-38.
constexpr std::uint16_t kHostile[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x8080, 0x006C, 0x0300,
                                      0x0D80, 0x7F7F, 0xFF7F, 0x3F80, 0xBF80, 0x43E0, 0x4760, 0x3E2B, 0xC2C8};

/// Returns whole tiles, and none; FP4 kernels support multiples of 128, plain NVFP4 of 16.
std::vector<MatrixShape> shapes_of(const QuantFormat& format) {
  if (format.dtype != DType::e2m1) return {{256, 384}, {133, 101}};
  const bool plain_nvfp4 = format.scale == ScaleType::e4m3 && format.transform.length <= 16 &&
                           format.eden == 0 && !format.four_over_six;
  return {{256, 384}, plain_nvfp4 ? MatrixShape{144, 208} : MatrixShape{128, 2176}};
}

/// Gives a stochastic or transformed copy its random numbers, with a word on the host.
RandomStream random_numbers(TwoDevices& devices) {
  const Tensor word = devices.host().tensor(DType::i32, 1, 1);
  word.as<std::int32_t>()[0] = 1234567;
  return {.word = word, .stream = 8, .rows = 384, .row_signs = 14, .column_signs = 15};
}

std::string text_of(MatrixShape shape) { return fmt::format("{} x {}", shape.rows, shape.cols); }

}  // namespace

const char* name_of(Input input) {
  static constexpr const char* kNames[] = {"random", "imbalanced", "hostile", "infinite", "NaN"};
  return kNames[static_cast<int>(input)];
}

Tensor make_input(HostMemory& host, Input input, std::int64_t rows, std::int64_t cols) {
  const Tensor x = host.random(DType::bf16, rows, cols, 1.0f);
  const auto at = [&](std::int64_t r, std::int64_t c) -> std::uint16_t& {
    return x.as<std::uint16_t>()[r % rows * cols + c % cols];
  };
  switch (input) {
    case Input::random:
      break;
    case Input::imbalanced:  // magnitudes vary by 2^±30 over rows and columns, some ±0, one outlier
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < cols; ++c) {
          const int size = static_cast<int>(r * 7 % 31) - 15 + static_cast<int>(c * 5 % 31) - 15;
          const bool zero = r % 11 == 3 || c % 13 == 5;
          at(r, c) = zero ? 0 : bf16_encode(std::ldexp(bf16_decode(at(r, c)), size));
        }
      at(rows / 2, cols / 3) = bf16_encode(3e38f);
      break;
    case Input::hostile:  // whole rows of one tiny magnitude, then arbitrary bit patterns
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < cols; ++c)
          if (r % 4 == 0)
            at(r, c) = static_cast<std::uint16_t>(1 + (r + c) % 200);
          else if (r % 4 == 1)
            at(r, c) = kHostile[random_bits(1, r * cols + c) % std::size(kHostile)];
          else if (r % 4 == 2)
            at(r, c) = 0;
      break;
    case Input::infinite:
      at(rows / 3, cols / 2) = 0x7F80;
      at(rows - 1, cols - 1) = 0xFF80;
      break;
    case Input::nan:
      at(rows / 3, cols / 2) = 0x7FC1;
      at(rows - 1, 0) = 0xFF81;
      at(0, cols - 1) = 0x7F80;
      break;
  }
  return x;
}

std::string quantize_difference(TwoDevices& devices, const OutputFormats& formats, Input input,
                                MatrixShape shape, RandomStream random) {
  const Tensor value = make_input(devices.host(), input, shape.rows, shape.cols);
  QuantizedTensor x = devices.operand(formats, shape.rows, shape.cols);
  x.value = devices.put(value);
  x.random = random;
  x.random.word = devices.put(random.word);
  devices.device().quantize({x});
  if (auto found = devices.copies_difference(x, value); !found.empty()) return found;
  return same_bits(devices.fetch(x.value), value) ? "" : "the value changed";
}

Finding check_quantizer(TwoDevices& devices, const QuantFormat& asked) {
  const QuantFormat format = quantizer_format(asked);
  Finding finding{quantizer_path(format), "", "", true};
  for (const MatrixShape shape : shapes_of(format)) {
    finding.what += (finding.what.empty() ? "" : " and ") + text_of(shape);
    for (const Input input : kInputs) {
      devices.start();
      const std::string found =
          quantize_difference(devices, {format, format}, input, shape, random_numbers(devices));
      if (found.empty()) continue;
      finding.agrees = false;
      finding.measured = fmt::format("{}, {} input: {}", text_of(shape), name_of(input), found);
      return finding;
    }
  }
  finding.what += fmt::format(", {} inputs", std::size(kInputs));
  finding.measured = "equal bits";
  return finding;
}

Finding check_producers(TwoDevices& devices, const QuantFormat& asked) {
  const QuantFormat format = quantizer_format(asked);
  constexpr std::int64_t M = 256, C = 256;
  devices.start();
  HostMemory& host = devices.host();
  Device& device = devices.device();
  const auto random = [&](std::int64_t rows, std::int64_t cols, float deviation) {
    return devices.put(host.random(DType::bf16, rows, cols, deviation));
  };
  const Tensor x = random(M, C, 2), branch = random(M, C, 1), weight = random(1, C, 1), dh = random(M, C, 1),
               gate_up = random(M, 2 * C, 4), ds = random(M, C, 1);
  const Tensor sum = devices.output(DType::bf16, M, C), mean = devices.output(DType::f32, M, 1),
               rstd = devices.output(DType::f32, M, 1), dweight = devices.output(DType::f32, 1, C),
               dbias = devices.output(DType::f32, 1, C);
  RandomStream numbers = random_numbers(devices);
  numbers.word = devices.put(numbers.word);
  struct Producer {
    const char* name;
    std::int64_t cols;
    std::function<void(QuantizedTensor&)> run;
  };
  const Producer producers[] = {
      {"add_rmsnorm", C,
       [&](QuantizedTensor& out) {
         device.add_rmsnorm({out, sum, rstd, x, branch, weight, 1e-5f});
       }},
      {"rmsnorm_backward", C,
       [&](QuantizedTensor& out) {
         device.rmsnorm_backward({out, dweight, false, branch, dh, sum, rstd, weight});
       }},
      {"add_layernorm", C,
       [&](QuantizedTensor& out) {
         device.add_layernorm({out, sum, mean, rstd, x, branch, weight, weight, 1e-5f});
       }},
      {"layernorm_backward", C,
       [&](QuantizedTensor& out) {
         device.layernorm_backward({out, dweight, dbias, false, branch, dh, sum, mean, rstd, weight});
       }},
      {"activate", C,
       [&](QuantizedTensor& out) {
         device.activate({out, x, weight});
       }},
      {"activate_backward", C,
       [&](QuantizedTensor& out) {
         QuantizedTensor s{.value = devices.output(DType::bf16, M, C)};
         device.activate_backward({out, s, ds, x, weight});
       }},
      {"swiglu", C,
       [&](QuantizedTensor& out) {
         device.swiglu({out, gate_up});
       }},
      {"swiglu_backward", 2 * C, [&](QuantizedTensor& out) {
         QuantizedTensor s{.value = devices.output(DType::bf16, M, C)};
         device.swiglu_backward({out, s, ds, gate_up});
       }}};
  Finding finding{quantizer_path(format), "fused into ", "equal bits", true};
  for (const Producer& producer : producers) {
    finding.what += (&producer == producers ? "" : ", ") + std::string(producer.name);
    QuantizedTensor out = devices.operand({format, format}, M, producer.cols);
    out.random = numbers;
    producer.run(out);
    const std::string found = devices.copies_difference(out, devices.fetch(out.value));
    if (found.empty()) continue;
    finding.agrees = false;
    finding.measured = fmt::format("{}: {}", producer.name, found);
    return finding;
  }
  return finding;
}

}  // namespace precbench::checks
