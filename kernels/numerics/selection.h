// Selection of the linear layers that stay in BF16 and of later recipes in a run, in the syntax of recipe
// files and the command line.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/numerics/linear_role.h"

namespace precbench {

struct Recipe;

/// A count, "2", or a fraction of the total, "0.15", rounded up.
struct Share {
  std::int64_t count = 0;
  double part = 0;  ///< 0: use count

  std::int64_t of(std::int64_t all) const;
  bool operator==(const Share&) const = default;
};

/// A block whose linear layers stay in BF16, or only the layer of this role: qkv, o, gate_up or down.
struct KeptBlock {
  std::int64_t block = 0;
  std::optional<LinearRole> role{};
  bool operator==(const KeptBlock&) const = default;
};

/// Linear layers that stay in BF16.
struct KeepBf16 {
  Share first, last;                         ///< blocks
  std::array<bool, kRolesAndParts> roles{};  ///< in every block; head: lm_head, regardless of other entries
  std::vector<KeptBlock> blocks{};           ///< indices from 0, in the order given
  bool first_linear = false;                 ///< the first block's qkv, or its q if q, k and v are separate
  std::int64_t min_in = 0, min_out = 0;      ///< matrices [out, in] smaller in either dimension
  bool small = false;                        ///< those too small by torchao's rule (is_too_small)
  bool apart = false;                        ///< q, k and v are separate GEMMs, regardless of other entries

  /// Returns true if q, k and v are chosen separately.
  bool qkv_apart() const;
  /// Returns true if a matrix of this size stays in BF16. Separate matrices q, k, v, gate and up are tested
  /// one by one.
  bool keeps_size(const Recipe& recipe, std::int64_t out, std::int64_t in) const;
  /// Returns true if this layer stays in BF16. `layer`: its block of `layers`, any for the head; [out, in]:
  /// its matrix, or one of the matrices fused in it.
  bool keeps(const Recipe& recipe, LinearRole role, std::int64_t layer, std::int64_t layers, std::int64_t out,
             std::int64_t in) const;
  bool operator==(const KeepBf16&) const = default;
};

/// Parses comma-separated words: "first:N", "last:N" (N: blocks, or a fraction of them such as 0.15),
/// "block:N" (index), "block:N.ROLE" (its qkv, o, gate_up or down layer), a role (qkv, o, gate_up, down,
/// head, or q, k, v), "first_linear", "last_linear" (the head), "min_in:N", "min_out:N", "torchao_auto",
/// "qkv_apart". "none" and "" keep nothing. Throws InvalidInput that says what is wrong, without naming the
/// field.
KeepBf16 parse_keep_bf16(const std::string& text);

/// torchao's automatic filter: returns true if quantizing such a layer costs more than FP8 saves on an H100.
/// Known for recipes whose operands all have per-tensor or all per-row scales; throws InvalidInput for
/// others.
bool is_too_small(const Recipe& recipe, std::int64_t out, std::int64_t in);

/// Another recipe from a step on.
struct RecipeSwitch {
  std::string recipe;  ///< a name, or a file
  Share from;          ///< steps run before the switch; a fraction refers to all steps
  bool operator==(const RecipeSwitch&) const = default;
};

/// Parses "bf16@800", "bf16@0.82", comma-separated; "none" and "" give none. Throws InvalidInput like
/// parse_keep_bf16.
std::vector<RecipeSwitch> parse_switches(const std::string& text);

/// Return the text that the parsers read back.
std::vector<std::string> words_of(const KeepBf16& keep);
std::string to_text(const RecipeSwitch& change);

}  // namespace precbench
