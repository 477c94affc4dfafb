// What the tests of the CUDA ops share: host tensors that the CPU device computes on in place, their copies
// on the GPU, and the two comparisons: bit for bit, and at most twice as far from the truth.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/devices.h"
#include "kernels/device/test_buffers.h"
#include "kernels/gpu/gpu_testing.h"
#include "kernels/numerics/formats.h"
#include "kernels/numerics/random.h"
#include "tools/testing/catch.h"

namespace precbench::op_testing {

/// Host memory for tensors; every byte starts as 0xFF (NaN), so that what is not written shows.
class HostMemory {
 public:
  Tensor tensor(DType dtype, std::int64_t rows, std::int64_t cols) {
    blocks_.emplace_back((static_cast<std::size_t>(bytes_of(dtype, rows * cols)) + 3) / 4, 0xFFFFFFFFu);
    return {blocks_.back().data(), dtype, rows, cols};
  }
  /// Normal with the given deviation, at a place of its own in the stream.
  Tensor random(DType dtype, std::int64_t rows, std::int64_t cols, float deviation) {
    const Tensor t = tensor(dtype, rows, cols);
    for (std::int64_t i = 0; i < t.size(); ++i) set(t, i, deviation * irwin_hall_normal(7, drawn_++));
    return t;
  }
  /// In [0, limit).
  Tensor tokens(std::int64_t count, std::int64_t limit) {
    const Tensor t = tensor(DType::i32, count, 1);
    for (std::int64_t i = 0; i < count; ++i)
      t.as<std::int32_t>()[i] = static_cast<std::int32_t>(random_bits(8, drawn_++) % limit);
    return t;
  }
  Tensor converted(const Tensor& from, DType dtype) {
    if (from.empty()) return {};
    const Tensor t = tensor(dtype, from.rows, from.cols);
    for (std::int64_t i = 0; i < t.size(); ++i) set(t, i, get(from, i));
    return t;
  }

  static float get(const Tensor& t, std::int64_t i) {
    return t.dtype == DType::f32 ? t.as<float>()[i] : bf16_decode(t.as<std::uint16_t>()[i]);
  }
  static void set(const Tensor& t, std::int64_t i, float x) {
    if (t.dtype == DType::f32)
      t.as<float>()[i] = x;
    else
      t.as<std::uint16_t>()[i] = bf16_encode(x);
  }
  static std::vector<double> values(const Tensor& t) {
    std::vector<double> x(t.size());
    for (std::int64_t i = 0; i < t.size(); ++i) x[i] = get(t, i);
    return x;
  }

 private:
  std::list<std::vector<std::uint32_t>> blocks_;
  std::uint64_t drawn_ = 0;
};

/// A tensor of the GPU as a host tensor.
inline Tensor fetched(HostMemory& host, Device& gpu, const Tensor& t) {
  const Tensor copy = host.tensor(t.dtype, t.rows, t.cols);
  gpu.download(copy.data, t);
  return copy;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data, b.data, a.bytes()) == 0;
}

/// Equal bits, or NaN in both: a NaN made by arithmetic carries other bits on a CPU than on a GPU.
inline bool same_scales(const Tensor& a, const Tensor& b) {
  if (a.dtype != DType::f32) return same_bits(a, b);
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const float x = a.as<float>()[i], y = b.as<float>()[i];
    if (float_to_bits(x) != float_to_bits(y) && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return a.size() == b.size();
}

/// The 2x rule: root-mean-square and largest error of `result` are at most twice those of `naive`, the CPU
/// device at the same precision, or of the truth itself rounded to the result's type where `naive` is closer
/// than that.
inline void check_twice(const std::string& what, const Tensor& result, const Tensor& naive,
                        const std::vector<double>& truth) {
  INFO(what);
  REQUIRE(result.size() == static_cast<std::int64_t>(truth.size()));
  double sums[3] = {}, largest[3] = {};
  for (std::int64_t i = 0; i < result.size(); ++i) {
    const float exact = static_cast<float>(truth[i]);
    const double rounded = result.dtype == DType::f32 ? exact : bf16_decode(bf16_encode(exact));
    const double errors[3] = {HostMemory::get(result, i) - truth[i], HostMemory::get(naive, i) - truth[i],
                              rounded - truth[i]};
    for (int k = 0; k < 3; ++k) {
      sums[k] += errors[k] * errors[k];
      largest[k] = std::max(largest[k], std::isnan(errors[k]) ? INFINITY : std::fabs(errors[k]));
    }
  }
  // One value of few has no root-mean-square to speak of: one last place of the largest is always allowed.
  double last_place = 0;
  for (double t : truth)
    last_place = std::max(last_place, std::fabs(t) * (result.dtype == DType::f32 ? 0x1p-24 : 0x1p-9));
  CHECK(std::sqrt(sums[0] / truth.size()) <=
        2 * std::sqrt(std::max({sums[1], sums[2], last_place * last_place}) / truth.size()));
  CHECK(largest[0] <= 2 * std::max({largest[1], largest[2], last_place}));
}

/// Forms of one op's output on the GPU, with everything that it may leave unwritten set to NaN before.
struct OperandFormats {
  QuantFormat rowwise, columnwise;
};

inline GemmOperand gpu_form(Buffers& buffers, Device& gpu, const QuantFormat& format, std::int64_t rows,
                            std::int64_t k) {
  if (!format.quantized()) return {};
  const std::int64_t scales = scale_count(format.granularity, rows, k);
  GemmOperand form{format, buffers.tensor(format.dtype, rows, k),
                   buffers.tensor(format.scale == ScaleType::ue8m0 ? DType::ue8m0 : DType::f32, 1, scales),
                   false};
  const std::vector<std::uint8_t> ones(std::max(form.data.bytes(), form.scale.bytes()), 0xFF);
  gpu.upload(form.data, ones.data());
  gpu.upload(form.scale, ones.data());
  gpu.synchronize();
  return form;
}

inline GemmOperand host_form(HostMemory& host, const QuantFormat& format, std::int64_t rows, std::int64_t k) {
  if (!format.quantized()) return {};
  const std::int64_t scales = scale_count(format.granularity, rows, k);
  return {format, host.tensor(format.dtype, rows, k),
          host.tensor(format.scale == ScaleType::ue8m0 ? DType::ue8m0 : DType::f32, 1, scales), false};
}

inline bool one_scale(const QuantFormat& f) { return f.granularity == Granularity::tensor; }

inline QuantizedTensor gpu_operand(Buffers& buffers, Device& gpu, const OperandFormats& formats,
                                   std::int64_t rows, std::int64_t cols) {
  QuantizedTensor x;
  x.value = buffers.tensor(DType::bf16, rows, cols);
  x.rowwise = gpu_form(buffers, gpu, formats.rowwise, rows, cols);
  x.columnwise = gpu_form(buffers, gpu, formats.columnwise, cols, rows);
  if (one_scale(formats.rowwise) || one_scale(formats.columnwise)) x.amax = buffers.tensor(DType::f32, 1, 1);
  return x;
}

/// A CPU operand of the same formats whose value is given.
inline QuantizedTensor host_operand(HostMemory& host, const OperandFormats& formats, const Tensor& value) {
  QuantizedTensor x;
  x.value = value;
  x.rowwise = host_form(host, formats.rowwise, value.rows, value.cols);
  x.columnwise = host_form(host, formats.columnwise, value.cols, value.rows);
  if (one_scale(formats.rowwise) || one_scale(formats.columnwise)) x.amax = host.tensor(DType::f32, 1, 1);
  return x;
}

/// The forms and amax on the GPU are, bit for bit, what the CPU device makes of `value`.
inline void check_forms(const std::string& what, HostMemory& host, Device& gpu, Device& cpu,
                        const QuantizedTensor& result, const Tensor& value) {
  INFO(what);
  QuantizedTensor expected = host_operand(host, {result.rowwise.format, result.columnwise.format}, value);
  cpu.quantize(expected);
  if (!result.rowwise.empty()) {
    CHECK(same_bits(fetched(host, gpu, result.rowwise.data), expected.rowwise.data));
    CHECK(same_scales(fetched(host, gpu, result.rowwise.scale), expected.rowwise.scale));
  }
  if (!result.columnwise.empty()) {
    CHECK(same_bits(fetched(host, gpu, result.columnwise.data), expected.columnwise.data));
    CHECK(same_scales(fetched(host, gpu, result.columnwise.scale), expected.columnwise.scale));
  }
  if (!result.amax.empty()) CHECK(same_bits(fetched(host, gpu, result.amax), expected.amax));
}

/// Both devices and the memory of one comparison. `gpu(t)` is a host tensor's copy on the GPU.
struct Bench {
  std::unique_ptr<Device> gpu_device = gpu_or_skip();
  std::unique_ptr<Device> cpu = make_cpu_device(2);
  std::unique_ptr<HostMemory> host;
  std::unique_ptr<Buffers> buffers;

  explicit operator bool() const { return gpu_device != nullptr; }
  Device& gpu() { return *gpu_device; }
  void start() {
    host = std::make_unique<HostMemory>();
    buffers = std::make_unique<Buffers>(*gpu_device);
  }
  Tensor on_gpu(const Tensor& t) { return t.empty() ? Tensor{} : buffers->copy_of(t); }
  /// An output on the GPU: NaN until it is written.
  Tensor gpu_output(DType dtype, std::int64_t rows, std::int64_t cols) {
    return buffers->copy_of(host->tensor(dtype, rows, cols));
  }
  Tensor wide(const Tensor& t) { return host->converted(t, DType::f32); }
  Tensor fetch(const Tensor& t) { return fetched(*host, *gpu_device, t); }
  /// A device output, checked by the 2x rule against the CPU's outputs of BF16 and FP32 inputs.
  void check(const std::string& what, const Tensor& result, const Tensor& naive, const Tensor& truth) {
    check_twice(what, fetch(result), naive, HostMemory::values(truth));
  }
};

// ---- the formats that recipes use

inline constexpr QuantFormat kTensorE4m3{DType::e4m3, Granularity::tensor, ScaleType::f32,
                                         ScaleRounding::none};
inline constexpr QuantFormat kTensorE5m2{DType::e5m2, Granularity::tensor, ScaleType::f32,
                                         ScaleRounding::none};
inline constexpr QuantFormat kRow{DType::e4m3, Granularity::row, ScaleType::f32_pow2, ScaleRounding::none};
inline constexpr QuantFormat kRowExact{DType::e5m2, Granularity::row, ScaleType::f32, ScaleRounding::none};
inline constexpr QuantFormat kBlock{DType::e4m3, Granularity::block_1x128, ScaleType::f32,
                                    ScaleRounding::none};
inline constexpr QuantFormat kBlockPow2{DType::e4m3, Granularity::block_1x128, ScaleType::f32_pow2,
                                        ScaleRounding::none};
inline constexpr QuantFormat kSquare{DType::e4m3, Granularity::block_128x128, ScaleType::f32,
                                     ScaleRounding::none};
inline constexpr QuantFormat kMx{DType::e4m3, Granularity::block_1x32, ScaleType::ue8m0,
                                 ScaleRounding::rceil};

}  // namespace precbench::op_testing
