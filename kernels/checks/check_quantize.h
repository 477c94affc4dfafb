// Checks of a device's quantizers against the CPU device, bit for bit: the op quantize on difficult inputs, and
// the ops that quantize what they produce.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/checks/finding.h"
#include "kernels/checks/two_devices.h"

namespace precbench::checks {

/// Difficult matrices: widely varying magnitudes, zeros, subnormals, ends of the range, Inf and NaN.
enum class Input : std::uint8_t { random, imbalanced, hostile, infinite, nan };
inline constexpr Input kInputs[] = {Input::random, Input::imbalanced, Input::hostile, Input::infinite,
                                    Input::nan};
const char* name_of(Input input);
/// Returns a BF16 matrix.
Tensor make_input(HostMemory& host, Input input, std::int64_t rows, std::int64_t cols);

struct MatrixShape {
  std::int64_t rows, cols;
};

/// Quantizes one input on both devices. Returns the first difference of copies or of the value, which must not
/// change; empty if there is none. `random` has a word on the host.
std::string quantize_difference(TwoDevices& devices, const OutputFormats& formats, Input input,
                                MatrixShape shape, RandomStream random = {});

/// Judges quantize in one format, in both directions, on every input; one finding.
Finding check_quantizer(TwoDevices& devices, const QuantFormat& format);

/// Judges the copies in one format, in both directions, that rmsnorm, swiglu and their gradients write beside
/// their values; one finding.
Finding check_producers(TwoDevices& devices, const QuantFormat& format);

}  // namespace precbench::checks
