// RoPE frequencies with a scaling that has no ramp.
#include "kernels/numerics/rope_table.h"

#include <numbers>

#include "kernels/testing/catch.h"

namespace precbench {
namespace {

TEST_CASE("rope_frequencies: llama3 scaling with equal factors is a step", "[rope]") {
  RopeAngles angles;
  angles.T = 1, angles.D = 128, angles.theta = 500000;
  const std::vector<double> plain = rope_frequencies(angles);
  angles.scaling.kind = RopeScaling::Kind::llama3;
  angles.scaling.factor = 16;
  angles.scaling.original_context = 8192;
  angles.scaling.low_freq_factor = angles.scaling.high_freq_factor = 1;
  const std::vector<double> scaled = rope_frequencies(angles);
  int slowed = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    INFO(i);
    // Wavelengths beyond the original context are slowed, all others stay.
    const bool beyond = 2 * std::numbers::pi / plain[i] > 8192;
    CHECK(scaled[i] == (beyond ? plain[i] / 16 : plain[i]));
    slowed += beyond;
  }
  CHECK(slowed == 29);
}

}  // namespace
}  // namespace precbench
