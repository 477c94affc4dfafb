// Memory of a comparison, and the comparison of quantized copies. See two_devices.h.
#include "kernels/checks/two_devices.h"

#include <fmt/format.h>

#include "kernels/device/devices.h"
#include "kernels/numerics/custom_format.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench::checks {
namespace {

/// Compares elements of `bits` bits.
std::string elements_difference(const char* what, const Tensor& got, const Tensor& want) {
  const int bits = bits_of(got.dtype);
  const auto code = [&](const Tensor& t, std::int64_t i) -> std::uint32_t {
    if (bits == 32) return t.as<std::uint32_t>()[i];
    if (bits == 16) return t.as<std::uint16_t>()[i];
    if (bits == 8) return t.as<std::uint8_t>()[i];
    return code_of_two(t.as<std::uint8_t>()[i / 2], i);
  };
  std::int64_t count = 0, first = -1;
  for (std::int64_t i = 0; i < want.size(); ++i) {
    const std::uint32_t x = code(got, i), y = code(want, i);
    // A NaN made by arithmetic has other bits on a CPU than on a GPU.
    const bool same =
        x == y || (got.dtype == DType::f32 && std::isnan(bits_to_float(x)) && std::isnan(bits_to_float(y)));
    if (!same && count++ == 0) first = i;
  }
  if (count == 0) return "";
  return fmt::format("{} of {} {} differ, first at row {} column {}", count, want.size(), what,
                     first / want.cols, first % want.cols);
}

std::string copy_difference(const char* direction, const GemmOperand& got, const GemmOperand& want) {
  for (const auto& [what, member] :
       {std::pair("codes", &GemmOperand::data), std::pair("scales", &GemmOperand::scale),
        std::pair("amaxes", &GemmOperand::amax)}) {
    if ((want.*member).empty()) continue;
    const std::string found =
        elements_difference(fmt::format("{} {}", direction, what).c_str(), got.*member, want.*member);
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace

TwoDevices::TwoDevices(Device& device, int cpu_threads)
    : device_(device), cpu_(make_cpu_device(cpu_threads)) {
  start();
}

void TwoDevices::start() {
  host_ = std::make_unique<HostMemory>();
  buffers_ = std::make_unique<Buffers>(device_);
}

Tensor TwoDevices::fetch(const Tensor& t) {
  const Tensor copy = host_->tensor(t.dtype, t.rows, t.cols);
  device_.download(copy.data, t);
  return copy;
}

GemmOperand TwoDevices::quantized_copy(const QuantFormat& format, std::int64_t rows, std::int64_t k) {
  const GemmOperand on_host = host_copy(format, rows, k);
  return on_host.empty() ? on_host : put(on_host);
}

QuantizedTensor TwoDevices::operand(const OutputFormats& formats, std::int64_t rows, std::int64_t cols) {
  QuantizedTensor x{.value = output(DType::bf16, rows, cols),
                    .rowwise = quantized_copy(formats.rowwise, rows, cols),
                    .columnwise = quantized_copy(formats.columnwise, cols, rows)};
  if (formats.one_scale()) x.amax_out = output(DType::f32, 1, 1);
  return x;
}

QuantizedTensor TwoDevices::host_operand(const OutputFormats& formats, const Tensor& value) {
  QuantizedTensor x{.value = value,
                    .rowwise = host_copy(formats.rowwise, value.rows, value.cols),
                    .columnwise = host_copy(formats.columnwise, value.cols, value.rows)};
  if (formats.one_scale()) x.amax_out = host_->tensor(DType::f32, 1, 1);
  return x;
}

std::string TwoDevices::copies_difference(const QuantizedTensor& result, const Tensor& value) {
  QuantizedTensor expected = host_operand({result.rowwise.format, result.columnwise.format}, value);
  expected.random = result.random;
  if (!result.random.word.empty()) expected.random.word = fetch(result.random.word);
  cpu().quantize({expected});
  const auto fetched = [&](const GemmOperand& operand) {
    GemmOperand copy = operand;
    for (const auto member : {&GemmOperand::data, &GemmOperand::scale, &GemmOperand::amax})
      if (!(operand.*member).empty()) copy.*member = fetch(operand.*member);
    return copy;
  };
  if (!result.rowwise.empty())
    if (auto found = copy_difference("rowwise", fetched(result.rowwise), expected.rowwise); !found.empty())
      return found;
  if (!result.columnwise.empty())
    if (auto found = copy_difference("columnwise", fetched(result.columnwise), expected.columnwise);
        !found.empty())
      return found;
  if (!result.amax_out.empty() && !same_bits(fetch(result.amax_out), expected.amax_out))
    return "the largest magnitude differs";
  return "";
}

GemmOperand TwoDevices::host_copy(const QuantFormat& format, std::int64_t rows, std::int64_t k) {
  if (!format.quantized()) return {};
  return {format, host_->tensor(format.dtype, rows, k),
          host_->tensor(scale_dtype(format), 1, scale_count(format.granularity, rows, k)), false,
          format.scale == ScaleType::e4m3 ? host_->tensor(DType::f32, 1, 1) : Tensor{}};
}

}  // namespace precbench::checks
