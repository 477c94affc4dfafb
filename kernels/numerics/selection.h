// Which linear layers a recipe leaves in BF16, and which recipe comes later in a run: words that stand in recipe files
// and on the command line alike.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/numerics/linear_role.h"

namespace precbench {

struct Recipe;

/// A number of things: "2", or a part of all there are, "0.15", rounded up.
struct Share {
  std::int64_t count = 0;
  double part = 0;  ///< 0: count is meant

  std::int64_t of(std::int64_t all) const;
  bool operator==(const Share&) const = default;
};

/// One block whose linear layers stay in BF16, or only the one of this role: qkv, o, gate_up or down.
struct KeptBlock {
  std::int64_t block = 0;
  std::optional<LinearRole> role{};
  bool operator==(const KeptBlock&) const = default;
};

/// The linear layers that stay in BF16.
struct KeepBf16 {
  Share first, last;                         ///< blocks
  std::array<bool, kRolesAndParts> roles{};  ///< in every block; head: lm_head, whatever else says otherwise
  std::vector<KeptBlock> blocks{};           ///< counted from 0, in the order given
  bool first_linear = false;                 ///< the first block's qkv, or q where it is apart
  std::int64_t min_in = 0, min_out = 0;      ///< matrices [out, in] with less of either
  bool small = false;                        ///< those that torchao's rule finds too small (is_too_small)
  bool apart = false;                        ///< q, k and v are products of their own, whatever else is kept

  /// Whether q, k and v are chosen each alone.
  bool qkv_apart() const;
  /// Whether a matrix of this size stays in BF16. q, k, v, gate and up are asked each alone, as models have them.
  bool keeps_size(const Recipe& recipe, std::int64_t out, std::int64_t in) const;
  /// Whether this layer stays in BF16. `layer`: its block of `layers`, any for the head; [out, in]: its matrix, or
  /// one of those it is made of.
  bool keeps(const Recipe& recipe, LinearRole role, std::int64_t layer, std::int64_t layers, std::int64_t out,
             std::int64_t in) const;
  bool operator==(const KeepBf16&) const = default;
};

/// Words with commas between: "first:N", "last:N" (N: blocks, or a part of them such as 0.15), "block:N" (the block with that
/// index), "block:N.ROLE" (its qkv, o, gate_up or down layer), a role (qkv, o, gate_up,
/// down, head, or q, k, v), "first_linear", "last_linear" (the head), "min_in:N", "min_out:N", "torchao_auto",
/// "qkv_apart". "none" and "" keep nothing. Throws InvalidInput that says what is wrong, without naming the field.
KeepBf16 parse_keep_bf16(const std::string& text);

/// torchao's automatic filter: such a layer costs more to quantize than FP8 saves, on an H100. Known for recipes whose
/// operands have one scale for the tensor, or one for a row, throughout; throws InvalidInput for others.
bool is_too_small(const Recipe& recipe, std::int64_t out, std::int64_t in);

/// Another recipe from a step on.
struct RecipeSwitch {
  std::string recipe;  ///< a name, or a file
  Share from;          ///< steps done in what was before; a part is one of all steps
  bool operator==(const RecipeSwitch&) const = default;
};

/// "bf16@800", "bf16@0.82", with commas between; "none" and "" are none. Throws InvalidInput likewise.
std::vector<RecipeSwitch> parse_switches(const std::string& text);

/// As they are read back.
std::vector<std::string> words_of(const KeepBf16& keep);
std::string to_text(const RecipeSwitch& change);

}  // namespace precbench
