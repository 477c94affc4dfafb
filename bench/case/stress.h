// Stress on the first weights: some channels grow by a power of two, and the weights that read them shrink by
// the same. The model computes exactly the same until something overflows, which happens early in formats
// with little range.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/config/config.h"

namespace precbench {

/// Channels of every block that grow:
///   ffn   output of the up projection, read by the down projection; for every expert
///   norm  gains of both norms, whose outputs q, k and v, gate and up, and a router read; not in models with other
///         norms (OLMo 2, Gemma)
///   vo    V, read by O
enum class StressKind : std::uint8_t { ffn, norm, vo };

/// Largest absolute exponent, for which small weights stay normal numbers and activations stay finite.
inline constexpr int kMaxStress = 30;

struct Stress {
  StressKind kind = StressKind::ffn;
  int exponent = 0;           ///< channels are multiplied by 2^exponent
  std::int64_t channels = 4;  ///< spread evenly over all channels

  bool operator==(const Stress&) const = default;
};

/// Parses "ffn:8" or "norm:-3:16"; null for "none". Throws InvalidInput that names the flag.
std::optional<Stress> parse_stress(const std::string& text, const char* flag = "--stress");
/// Parses --fidelity-stress: stresses separated by spaces, "ffn:8 norm:-3:16". Rejects "none".
std::vector<Stress> parse_fidelity_stress(const std::string& text);
/// Returns the full form: "ffn:8:4".
std::string to_text(const Stress& stress);

/// Returns the number of channels of a block to choose from: the narrowest, if experts and dense blocks
/// differ.
std::int64_t channels_of(StressKind kind, const ModelConfig& model);
/// Returns why the channels of this kind cannot grow in the model without changing what it computes; null if they can.
std::optional<std::string> stress_unsupported_reason(StressKind kind, const ModelConfig& model);
/// Likewise for a stress, which may also have more channels than there are.
std::optional<std::string> stress_unsupported_reason(const Stress& stress, const ModelConfig& model);

}  // namespace precbench
