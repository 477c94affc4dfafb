// Stress on the first weights: some channels grow by a power of two, and what reads them shrinks by the same. The model
// computes what it did before, exactly, until something overflows; a format with little range does not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/config/config.h"

namespace precbench {

/// Which channels of every block grow:
///   ffn   of the up projection's output, which the down projection reads; of every expert
///   norm  of both norms' gains, whose outputs q, k and v, gate and up, and a router read
///   vo    of V, which O reads
enum class StressKind : std::uint8_t { ffn, norm, vo };

/// The largest exponent either way: with it even small weights stay normal numbers and activations finite.
inline constexpr int kMaxStress = 30;

struct Stress {
  StressKind kind = StressKind::ffn;
  int exponent = 0;           ///< channels are multiplied by 2^exponent
  std::int64_t channels = 4;  ///< spread evenly over those there are

  bool operator==(const Stress&) const = default;
};

/// "ffn:8", "norm:-3:16"; nothing for "none". Throws InvalidInput that names the flag.
std::optional<Stress> parse_stress(const std::string& text, const char* flag = "--stress");
/// Of --fidelity-stress: any number of them with spaces between, "ffn:8 norm:-3:16". "none" is none of them.
std::vector<Stress> parse_fidelity_stress(const std::string& text);
/// In full: "ffn:8:4".
std::string to_text(const Stress& stress);

/// Channels of a block that the stress chooses from; of the narrowest, where experts and others differ.
std::int64_t channels_of(StressKind kind, const ModelConfig& model);
/// Throws InvalidInput where the model has fewer than the stress wants.
void check_stress(const Stress& stress, const ModelConfig& model, const char* flag = "--stress");

}  // namespace precbench
