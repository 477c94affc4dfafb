// Forms of a block in a Hugging Face config.json: factors of Granite, layers without RoPE of SmolLM3. Source of
// the defaults: the configuration classes of transformers 5.
#include <fmt/format.h>

#include "kernels/base/errors.h"
#include "models/config/config_keys.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

constexpr std::int64_t kSmolLm3Interval = 4;  // every fourth layer has no RoPE

void read_granite(const json& object, ModelConfig& config) {
  double logit_divisor = 1;
  config.block.attention_scale = 1;
  read(object, "embedding_multiplier", config.embedding_scale);
  read(object, "residual_multiplier", config.block.residual_scale);
  read(object, "attention_multiplier", config.block.attention_scale);
  read(object, "logits_scaling", logit_divisor);
  config.logit_scale = 1 / logit_divisor;
}

/// Reads the layers without RoPE: a list with 1 for a layer with RoPE, or every n-th.
void read_smollm3(const json& object, ModelConfig& config) {
  std::int64_t interval = kSmolLm3Interval;
  read(object, "no_rope_layer_interval", interval);
  const bool listed = given(object, "no_rope_layers");
  const json list = listed ? object.at("no_rope_layers") : json::array();
  if (listed && (!list.is_array() || static_cast<std::int64_t>(list.size()) < config.layers))
    throw InvalidInput(fmt::format("no_rope_layers: expected 0 or 1 for each of {} layers, got {}",
                                   config.layers, shown(list)));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const json with_rope =
        listed ? list.at(static_cast<std::size_t>(layer)) : json((layer + 1) % interval != 0 ? 1 : 0);
    if (with_rope != 0 && with_rope != 1)
      throw InvalidInput(fmt::format("no_rope_layers: {} is neither 0 nor 1", shown(with_rope)));
    if (with_rope == 0) config.block.layers_without_rope.push_back(layer);
  }
}

}  // namespace

void read_hugging_face_block(const json& object, const std::string& model_type, ModelConfig& config) {
  if (model_type == "granite") read_granite(object, config);
  if (model_type == "smollm3") read_smollm3(object, config);
  if (model_type == "olmo2") config.block.norms = NormPlace::after;
  if (model_type == "phi3") config.block.fusion = TensorFusion::qkv_and_gate_up;
}

}  // namespace precbench::config_keys
