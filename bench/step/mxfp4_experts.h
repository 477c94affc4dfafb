// Experts of gpt-oss in MXFP4, as its published checkpoints have them: instead of experts.gate_up_proj [E, C, 2F] there are
// experts.gate_up_proj_blocks [E, 2F, C/32, 16] and _scales [E, 2F, C/32], and likewise for down_proj. A block of 32
// values along the input has 16 bytes with two e2m1 values each, the lower half first, and the biased exponent of its scale.
#pragma once

#include <optional>
#include <string>

#include "bench/step/stored_form.h"
#include "models/checkpoint/safetensors.h"

namespace precbench {

/// The two tensors of a file that hold a tensor of experts.
struct Mxfp4Experts {
  const StoredTensor* blocks = nullptr;
  const StoredTensor* scales = nullptr;
};

/// Returns the tensors that stand for `part` of an expert's matrix, or nothing if the file has none. `name` is the file's
/// name of the whole tensor. Throws InvalidInput that names a tensor with another shape or dtype.
std::optional<Mxfp4Experts> find_mxfp4_experts(const SafetensorsFile& file, const std::string& path,
                                               const std::string& name, const StoredPart& part);

/// Writes the exact values of the parameter, row-major.
void read_mxfp4(const Mxfp4Experts& experts, const StoredPart& part, const Parameter& p, float* values);

}  // namespace precbench
