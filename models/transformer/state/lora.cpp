// Names, number and first values of adapters. See lora.h.
#include "models/transformer/state/lora.h"

#include <cmath>
#include <string_view>

#include "kernels/numerics/formats.h"
#include "models/config/block.h"

namespace precbench {
namespace {

std::string adapter_name(const std::string& weight, const char* which) {
  constexpr std::string_view kEnd = ".weight";
  return "base_model.model." + weight.substr(0, weight.size() - kEnd.size()) + which + std::string(kEnd);
}

}  // namespace

std::string lora_a_name(const std::string& weight) { return adapter_name(weight, ".lora_A"); }
std::string lora_b_name(const std::string& weight) { return adapter_name(weight, ".lora_B"); }

bool has_adapter(const LinearSpec& linear) {
  return linear.experts == 1 && linear.role != LinearRole::router;
}

Recipe recipe_of_frozen(Recipe recipe) {
  recipe.wgrad = {};
  recipe.flow = false;
  return recipe;
}

std::int64_t lora_parameter_count(const ModelConfig& config, std::int64_t rank) {
  std::int64_t sum = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    for (const LinearSpec& linear : block_of(config, layer).linears)
      for (const ParameterPart& part : linear.parts)
        if (has_adapter(linear)) sum += rank * (linear.in + part.size);
  return sum;
}

float lora_bound(std::int64_t in) { return static_cast<float>(1 / std::sqrt(static_cast<double>(in))); }

float lora_first_value(std::uint64_t seed, std::int64_t index, float bound) {
  // Another stream than that of the model's weights, which have the same seed.
  constexpr std::uint64_t kStream = 0x9e3779b97f4a7c15;
  const std::uint32_t bits = random_bits(seed ^ kStream, static_cast<std::uint64_t>(index));
  return static_cast<float>((static_cast<double>(bits) * 0x1p-31 - 1) * bound);
}

}  // namespace precbench
