// Angles of rotary position embedding, computed once on the host and the same for every device. Source: Su et
// al., RoFormer (2021), section 3.2.2; context extensions as applied by Hugging Face.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace precbench {

/// Context extension of a checkpoint. Pairs of elements rotate by theta^(-2 i / D) per position, and the slow
/// ones, which never make a full turn in the original context, are slowed down further.
struct RopeScaling {
  enum class Kind : std::uint8_t {
    none,
    linear,  ///< every pair is slowed by `factor` (position interpolation, Chen et al. 2023)
    llama3,  ///< by wavelength: fully beyond original / low_freq, not below original / high_freq (Llama 3.1)
    yarn,    ///< by turns in the original context, on a ramp from beta_fast to beta_slow (Peng et al. 2023)
    longrope,  ///< pair i is slowed by pair_factors[i] up to the original context (Ding et al. 2024, Phi-3)
  };
  Kind kind = Kind::none;
  double factor = 1;
  double original_context = 0;                       ///< positions; llama3, yarn and longrope
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;              ///< yarn
  bool truncate = true;                              ///< yarn: the ramp starts and ends at whole pairs
  double attention_factor = 1;                       ///< factor on cos and sin
  std::vector<double> pair_factors = {};             ///< longrope, [D / 2]; of longer contexts: not modelled

  bool operator==(const RopeScaling&) const = default;
};

/// Inputs of a table of angles.
struct RopeAngles {
  std::int64_t T = 0, D = 0;  ///< consecutive positions; elements of a head, even
  float theta = 500000.0f;
  RopeScaling scaling = {};
  std::int64_t rotated = 0;                 ///< elements of a head in pairs that rotate, even; 0: all D
  double scale = 1;                         ///< factor of all pairs, also of those that do not rotate
  std::int64_t first = 0;                   ///< position of row 0
  std::optional<std::int64_t> second = {};  ///< position of row T, from which on there are T more rows

  std::int64_t rows() const { return second ? 2 * T : T; }
  std::int64_t rotated_elements() const { return rotated > 0 ? rotated : D; }
  std::int64_t position(std::int64_t row) const { return row < T ? first + row : *second + row - T; }

  bool operator==(const RopeAngles&) const = default;
};

/// Returns the [D / 2] rotation angles per position of the pairs (i, i + D/2) of a head, in FP64. Those of a head of
/// `rotated` elements come first, then zeros: a partial rotation turns the first pairs.
std::vector<double> rope_frequencies(const RopeAngles& angles);

/// Returns [rows(), D / 2] pairs (cos, sin) of position times frequency, times `scale` and in pairs that rotate times
/// attention_factor: in FP64, rounded once.
std::vector<float> make_rope_table(const RopeAngles& angles);

}  // namespace precbench
