// The language model of a multimodal config.json, and model_types that are another's on text alone.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/base/errors.h"
#include "models/config/config_keys.h"

namespace precbench::config_keys {
namespace {

using nlohmann::json;

/// A model_type whose language model is one of `same_as`. On text alone, the positions of time, height and
/// width are equal, and so are the angles of multimodal RoPE (mrope) and of RoPE.
struct TextModel {
  const char *model_type, *same_as;
  bool multimodal_rope;
};
constexpr TextModel kTextModels[] = {
    {"qwen2_vl", "qwen2", true},
    {"qwen2_vl_text", "qwen2", true},
    {"qwen2_5_vl", "qwen2", true},
    {"qwen2_5_vl_text", "qwen2", true},
    {"qwen3_vl", "qwen3", true},
    {"qwen3_vl_text", "qwen3", true},
    {"qwen3_vl_moe", "qwen3_moe", true},
    {"qwen3_vl_moe_text", "qwen3_moe", true},
    {"glm4v_moe_text", "glm4_moe", true},
    {"mistral3", "mistral", false},
    {"gemma3", "gemma3_text", false},
    {"mimo", "qwen2", false},
    {"phi3_v", "phi3", false},
    {"kimi_k2", "deepseek_v3", false},
};

/// model_type of a file that names only its class.
constexpr std::pair<const char*, const char*> kArchitectures[] = {
    {"LlamaForCausalLM", "llama"},
    {"MistralForCausalLM", "mistral"},
    {"Qwen2ForCausalLM", "qwen2"},
    {"Qwen3ForCausalLM", "qwen3"},
    {"MixtralForCausalLM", "mixtral"},
    {"Qwen3MoeForCausalLM", "qwen3_moe"},
    {"OlmoeForCausalLM", "olmoe"},
    {"Olmo2ForCausalLM", "olmo2"},
    {"SmolLM3ForCausalLM", "smollm3"},
    {"GraniteForCausalLM", "granite"},
    {"Phi3ForCausalLM", "phi3"},
    {"Ministral3ForCausalLM", "ministral3"},
    {"GemmaForCausalLM", "gemma"},
    {"Gemma2ForCausalLM", "gemma2"},
    {"Gemma3ForCausalLM", "gemma3_text"},
    {"Olmo3ForCausalLM", "olmo3"},
    {"GPT2LMHeadModel", "gpt2"},
    {"GPTBigCodeForCausalLM", "gpt_bigcode"},
    {"GPTJForCausalLM", "gptj"},
    {"GPTNeoXForCausalLM", "gpt_neox"},
    {"PhiForCausalLM", "phi"},
    {"Starcoder2ForCausalLM", "starcoder2"},
    {"StableLmForCausalLM", "stablelm"},
    {"NemotronForCausalLM", "nemotron"},
    {"CohereForCausalLM", "cohere"},
    {"Cohere2ForCausalLM", "cohere2"},
    {"DeepseekForCausalLM", "deepseek"},
    {"DeepseekV2ForCausalLM", "deepseek_v2"},
    {"DeepseekV3ForCausalLM", "deepseek_v3"},
    {"Llama4ForCausalLM", "llama4_text"},
    {"GptOssForCausalLM", "gpt_oss"},
    {"SeedOssForCausalLM", "seed_oss"},
    {"GlmForCausalLM", "glm"},
    {"Glm4ForCausalLM", "glm4"},
    {"Glm4MoeForCausalLM", "glm4_moe"},
    {"MiniMaxM2ForCausalLM", "minimax_m2"},
    {"Exaone4ForCausalLM", "exaone4"},
    {"Ernie4_5ForCausalLM", "ernie4_5"},
    {"Ernie4_5_MoeForCausalLM", "ernie4_5_moe"},
    {"Qwen2MoeForCausalLM", "qwen2_moe"},
    {"Qwen2VLForConditionalGeneration", "qwen2_vl"},
    {"Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl"},
    {"Qwen3VLForConditionalGeneration", "qwen3_vl"},
    {"Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe"},
    {"Mistral3ForConditionalGeneration", "mistral3"},
    {"Gemma3ForConditionalGeneration", "gemma3"},
    {"InternLMForCausalLM", "internlm"},
    {"InternLM2ForCausalLM", "internlm2"},
    {"MiniCPMForCausalLM", "minicpm"},
    {"OrionForCausalLM", "orion"},
    {"QWenLMHeadModel", "qwen"},
    {"Glm4MoeLiteForCausalLM", "glm4_moe_lite"},
    {"Dots1ForCausalLM", "dots1"},
    {"SolarOpenForCausalLM", "solar_open"},
    {"CwmForCausalLM", "cwm"},
    {"GraniteMoeHybridForCausalLM", "granitemoehybrid"},
    {"ExaoneForCausalLM", "exaone"},
    {"InternLM3ForCausalLM", "internlm3"},
    {"HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"},
};

/// Returns the model_type, which a file may name only by its class; then a warning says so.
std::string type_of(const json& object, std::vector<std::string>& warnings) {
  std::string model_type;
  read(object, "model_type", model_type);
  // Some files of GLM-4.5 have the model_type of the dense GLM.
  if (model_type == "glm" && object.value("architectures", json()) == json::array({"Glm4MoeForCausalLM"}))
    return "glm4_moe";
  if (!model_type.empty() || !given(object, "architectures")) return model_type;
  for (const auto& [architecture, type] : kArchitectures)
    if (object.at("architectures") == json::array({architecture})) {
      warnings.push_back(fmt::format("model_type is missing: \"{}\" comes from architectures", type));
      return type;
    }
  return model_type;
}

/// Turns multimodal RoPE into RoPE.
void replace_rope(json& object) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!given(object, key) || !object.at(key).is_object()) continue;
    json& rope = object.at(key);
    for (const char* type : {"type", "rope_type"})
      if (rope.value(type, json()) == "mrope") rope[type] = "default";
    rope.erase("mrope_section");
    rope.erase("mrope_interleaved");
  }
}

/// Sets the dimensions that a wrapper leaves out because they are those of transformers' LlamaConfig (LLaVA).
void set_llama_dimensions(json& object) {
  for (const auto& [key, value] : {std::pair{"hidden_size", 4096}, std::pair{"intermediate_size", 11008},
                                   std::pair{"num_hidden_layers", 32}, std::pair{"num_attention_heads", 32},
                                   std::pair{"vocab_size", 32000}})
    if (!given(object, key)) object[key] = value;
}

}  // namespace

TextConfig text_config_of(const json& file) {
  TextConfig text{file, {}};
  std::string model_type = type_of(file, text.warnings);
  for (const char* key : kTextConfigs) {
    if (!given(file, key)) continue;
    if (!file.at(key).is_object())
      throw InvalidInput(fmt::format("{}: expected an object, got {}", key, shown(file.at(key))));
    text.object = file.at(key);
    const std::string own = type_of(text.object, text.warnings);
    if (!own.empty()) model_type = own;
    if (model_type == "llama") set_llama_dimensions(text.object);
    if (given(file, "tie_word_embeddings"))
      text.object["tie_word_embeddings"] = file.at("tie_word_embeddings");
    if (given(file, "quantization_config"))
      text.object["quantization_config"] = file.at("quantization_config");
    text.warnings.push_back(fmt::format("{} alone is read: the model without images, sound and video", key));
    break;
  }
  const auto found = std::find_if(std::begin(kTextModels), std::end(kTextModels),
                                  [&](const TextModel& known) { return known.model_type == model_type; });
  if (found != std::end(kTextModels)) {
    if (!given(file, "text_config") && !given(file, "num_hidden_layers") && !given(file, "hidden_size"))
      throw InvalidInput(fmt::format(
          "model_type: \"{}\" has its language model in text_config, or in older files at the top level, and this file "
          "in neither",
          model_type));
    model_type = found->same_as;
    if (found->multimodal_rope) replace_rope(text.object);
  }
  translate(text, model_type);
  if (!model_type.empty()) text.object["model_type"] = model_type;
  return text;
}

}  // namespace precbench::config_keys
