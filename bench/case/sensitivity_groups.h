// Groups of recipe variants that --sensitivity measures, with the names used by the command line and records.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace precbench {

/// Groups of cells. A cell is a variant of the recipe, measured on the same weights and tokens.
///   gemms     one of fprop, dgrad and wgrad alone in the recipe, or alone in BF16
///   operands  only weights, only activations or only gradients quantized
///   roles     one kind of linear layer (q, k, v, qkv, o, gate_up, down, head) alone in the recipe or in BF16
///   blocks    one block alone in the recipe, or alone in BF16
///   linears   one linear layer of one block alone in BF16
///   elements  the same scales with other FP8 element formats
///   scales    the same elements with scales per tensor, per row, and per block of 128 and 32
///   best      the layers that recover most loss, together in BF16
enum class SensitivityGroup : std::uint8_t {
  gemms,
  operands,
  roles,
  blocks,
  linears,
  elements,
  scales,
  best
};

const char* name_of(SensitivityGroup group);

/// Parses group names separated by commas, "standard" (all but linears) or "all"; "" and "none" mean no
/// group. The result is in the order of the enum, without repeats. Throws InvalidInput, which names the flag,
/// for any other word.
std::vector<SensitivityGroup> parse_sensitivity(const std::string& text);

}  // namespace precbench
