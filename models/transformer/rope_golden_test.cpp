// RoPE of published models, from their config.json to the angles of far positions, against Hugging Face's
// rotary embedding (tools/goldens/make_rope_goldens.py).
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/xz_testing.h"
#include "kernels/numerics/rope_table.h"
#include "kernels/testing/catch.h"
#include "models/config/config.h"

using namespace precbench;

namespace {

constexpr double kFp32Roundoff = 0x1p-24;  // of FP32, in which the library computes

}  // namespace

TEST_CASE("RoPE: frequencies and angles match Hugging Face at near and far positions", "[rope]") {
  const auto goldens = nlohmann::json::parse(
      testing::unpacked_file(PRECBENCH_SOURCE_DIR "/models/transformer/golden/rope.json.xz"));
  REQUIRE(goldens.size() >= 7);
  for (const auto& golden : goldens) {
    INFO(golden.at("name"));
    const ModelConfig model = model_from_json(golden.at("config"));
    RopeAngles angles{0, golden.at("D"), static_cast<float>(model.rope_theta), model.rope_scaling};
    CHECK(model.head_dim == angles.D);
    CHECK(std::fabs(model.rope_scaling.attention_factor / golden.at("attention_factor").get<double>() - 1) <
          1e-12);
    const std::vector<double> frequencies = rope_frequencies(angles);
    // A power, a division and a few operations of the scaling, each rounded to FP32.
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      INFO("pair " << i);
      CHECK(std::fabs(frequencies[i] / golden.at("frequencies")[i].get<double>() - 1) <= 8 * kFp32Roundoff);
    }
    const std::vector<std::int64_t> positions = golden.at("positions");
    angles.T = positions.back() + 1;
    const std::vector<float> table = make_rope_table(angles);
    for (std::size_t p = 0; p < positions.size(); ++p)
      for (std::size_t i = 0; i < frequencies.size(); ++i) {
        INFO("position " << positions[p] << ", pair " << i);
        // The library rounds the frequency and the angle to FP32; its cosine inherits the error of the angle.
        const double angle = static_cast<double>(positions[p]) * frequencies[i];
        const double bound =
            model.rope_scaling.attention_factor * (10 * kFp32Roundoff * angle + 2 * kFp32Roundoff);
        const float* pair = table.data() + positions[p] * angles.D + 2 * static_cast<std::int64_t>(i);
        CHECK(std::fabs(pair[0] - golden.at("cos")[p][i].get<double>()) <= bound);
        CHECK(std::fabs(pair[1] - golden.at("sin")[p][i].get<double>()) <= bound);
      }
  }
}
