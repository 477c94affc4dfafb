// RoPE frequencies with and without scaling, and the table of their angles. See rope_table.h.
#include "kernels/numerics/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace precbench {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

/// Between the two wavelengths the slowed share falls linearly with original context / wavelength. If both
/// are equal, as in Llama 4 Scout, there is no ramp.
double llama3(double frequency, const RopeScaling& s) {
  const double turns = s.original_context * frequency / kTurn;  // in the original context
  if (s.high_freq_factor == s.low_freq_factor)
    return turns < s.low_freq_factor ? frequency / s.factor : frequency;
  const double kept = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return frequency * std::lerp(1 / s.factor, 1.0, std::clamp(kept, 0.0, 1.0));
}

/// Returns the (fractional) index of the pair that makes `turns` turns in the original context.
double pair_of_turns(double turns, const RopeAngles& a) {
  const double rotated = static_cast<double>(a.rotated_elements());
  return rotated * std::log(a.scaling.original_context / (turns * kTurn)) /
         (2 * std::log(static_cast<double>(a.theta)));
}

struct Ramp {
  double first, last;  // pairs: none is slowed up to the first, all fully from the last on
};

Ramp yarn_ramp(const RopeAngles& a) {
  double first = pair_of_turns(a.scaling.beta_fast, a), last = pair_of_turns(a.scaling.beta_slow, a);
  if (a.scaling.truncate) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(a.rotated_elements() - 1));
  if (first == last) last += 0.001;  // a step, as in the reference
  return {first, last};
}

}  // namespace

std::vector<double> rope_frequencies(const RopeAngles& a) {
  const RopeScaling& s = a.scaling;
  const Ramp ramp = s.kind == RopeScaling::Kind::yarn ? yarn_ramp(a) : Ramp{};
  std::vector<double> frequencies(static_cast<std::size_t>(a.D / 2));
  const std::int64_t rotated = a.rotated_elements();
  for (std::int64_t i = 0; i < rotated / 2; ++i) {
    double frequency =
        std::pow(static_cast<double>(a.theta), -2.0 * static_cast<double>(i) / static_cast<double>(rotated));
    if (s.kind == RopeScaling::Kind::linear) frequency /= s.factor;
    if (s.kind == RopeScaling::Kind::llama3) frequency = llama3(frequency, s);
    if (s.kind == RopeScaling::Kind::yarn) {
      const double slowed =
          std::clamp((static_cast<double>(i) - ramp.first) / (ramp.last - ramp.first), 0.0, 1.0);
      frequency *= std::lerp(1.0, 1 / s.factor, slowed);
    }
    if (s.kind == RopeScaling::Kind::longrope) frequency /= s.pair_factors.at(static_cast<std::size_t>(i));
    frequencies[static_cast<std::size_t>(i)] = frequency;
  }
  return frequencies;
}

std::vector<float> make_rope_table(const RopeAngles& a) {
  const std::vector<double> frequencies = rope_frequencies(a);
  std::vector<float> table(static_cast<std::size_t>(a.rows() * a.D));
  for (std::int64_t i = 0; i < a.D / 2; ++i) {
    const double factor = (2 * i < a.rotated_elements() ? a.scaling.attention_factor : 1) * a.scale;
    for (std::int64_t t = 0; t < a.rows(); ++t) {
      const double angle = static_cast<double>(a.position(t)) * frequencies[static_cast<std::size_t>(i)];
      float* pair = table.data() + t * a.D + 2 * i;
      pair[0] = static_cast<float>(std::cos(angle) * factor);
      pair[1] = static_cast<float>(std::sin(angle) * factor);
    }
  }
  return table;
}

}  // namespace precbench
