// Forms of a block in a config.json and in our own keys, and the language models of multimodal files.
#include <nlohmann/json.hpp>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "models/config/block.h"
#include "models/config/config.h"
#include "models/config/hugging_face_testing.h"

namespace precbench {
namespace {

using nlohmann::json;

json config_of(const std::string& model_type, const json& more = json::object()) {
  return testing::small_config_json(model_type, 8, more);
}

std::string error_of_file(const json& object) {
  return refusal_of([&] { model_from_json(object); });
}

std::string error_of_family(const std::string& model_type, const json& more) {
  return error_of_file(config_of(model_type, more));
}

TEST_CASE("config.json: SmolLM3 lists its layers without RoPE, or every fourth has none", "[models]") {
  using Layers = std::vector<std::int64_t>;
  CHECK(model_from_json(config_of("smollm3")).block.layers_without_rope == Layers{3, 7});
  CHECK(model_from_json(config_of("smollm3", {{"no_rope_layer_interval", 3}})).block.layers_without_rope ==
        Layers{2, 5});
  const ModelConfig listed =
      model_from_json(config_of("smollm3", {{"no_rope_layers", {0, 1, 1, 1, 1, 1, 0, 1}}}));
  CHECK(listed.block.layers_without_rope == Layers{0, 6});
  CHECK(!listed.has_rope(6));
  CHECK(listed.has_rope(7));
  CHECK(cut_to(listed, 4).block.layers_without_rope == Layers{0});
  CHECK(contains(error_of_family("smollm3", {{"no_rope_layers", {1, 0}}}),
                 "no_rope_layers: expected 0 or 1 for each of 8 layers"));
  CHECK(contains(error_of_family("smollm3", {{"no_rope_layers", {1, 0, 2, 1, 1, 1, 1, 1}}}),
                 "no_rope_layers: 2 is neither 0 nor 1"));
  CHECK(contains(error_of_family("smollm3", {{"no_rope_layer_interval", 0}}), "no_rope_layer_interval: "));
  CHECK(contains(error_of_family("smollm3", {{"mlp_bias", true}}), "mlp_bias: "));
}

TEST_CASE("config.json: Granite's factors, which other models must not have", "[models]") {
  const json factors = {{"embedding_multiplier", 12.0},
                        {"residual_multiplier", 0.22},
                        {"attention_multiplier", 0.015625},
                        {"logits_scaling", 8.0}};
  const ModelConfig granite = model_from_json(config_of("granite", factors));
  CHECK(granite.embedding_scale == 12);
  CHECK(granite.block.residual_scale == 0.22);
  CHECK(granite.block.attention_scale == 0.015625);
  CHECK(granite.logit_scale == 0.125);
  CHECK(granite.not_modelled.empty());
  CHECK(model_from_json(config_of("granite")).block.attention_scale == 1);  // the class's default
  CHECK(contains(error_of_family("granite", {{"residual_multiplier", 0.0}}),
                 "residual_multiplier: must be a positive number, got 0"));
  CHECK(
      contains(error_of_family("llama", factors), "residual_multiplier: a multiplier of residual branches"));
}

TEST_CASE("config.json: OLMo 2 has norms on the outputs of its halves", "[models]") {
  const ModelConfig olmo2 = model_from_json(config_of("olmo2"));
  CHECK(olmo2.block.norms == NormPlace::after);
  CHECK(olmo2.norms_all_heads());
  std::vector<std::string> names;
  for (const VectorSpec& vector : block_of(olmo2, 0).vectors)
    for (const ParameterPart& part : vector.parts) names.push_back(part.name);
  CHECK(names == std::vector<std::string>{"post_attention_layernorm.weight",
                                          "post_feedforward_layernorm.weight", "self_attn.q_norm.weight",
                                          "self_attn.k_norm.weight"});
}

TEST_CASE("config.json: Phi-3's LongRoPE is read up to the original context", "[models]") {
  const json factors = {1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5};
  const json rope = {{"type", "su"}, {"short_factor", factors}, {"long_factor", factors}};
  const ModelConfig phi = model_from_json(config_of("phi3", {{"rope_scaling", rope},
                                                             {"original_max_position_embeddings", 4096},
                                                             {"max_position_embeddings", 131072}}));
  CHECK(phi.rope_scaling.kind == RopeScaling::Kind::longrope);
  CHECK(phi.rope_scaling.pair_factors == factors.get<std::vector<double>>());
  CHECK(phi.rope_scaling.original_context == 4096);
  CHECK(phi.rope_scaling.attention_factor == Approx(1.190238).epsilon(1e-6));
  CHECK(phi.original_context_only);
  CHECK(phi.block.fusion == TensorFusion::qkv_and_gate_up);
  CHECK(phi.not_modelled.empty());
  const auto error_of_factors = [&](const json& changed) {
    json other = rope;
    other["short_factor"] = changed;
    return error_of_family("phi3", {{"rope_scaling", other}});
  };
  CHECK(error_of_factors({1, 2}) == "rope_scaling: short_factor: has 2 numbers, a head of 16 has 8 pairs");
  CHECK(
      contains(error_of_factors({1, 0}), "rope_scaling: short_factor: expected a list of positive numbers"));
  CHECK(contains(error_of_family("phi3", {{"resid_pdrop", 0.1}}), "resid_pdrop: dropout"));
}

TEST_CASE("config.json: windows of Phi-3, Ministral 3 and Mixtral", "[models]") {
  for (const char* model_type : {"phi3", "ministral3", "mixtral"}) {
    INFO(model_type);
    CHECK(model_from_json(config_of(model_type)).sliding_window == 0);
    CHECK(model_from_json(config_of(model_type, {{"sliding_window", nullptr}})).sliding_window == 0);
    CHECK(model_from_json(config_of(model_type, {{"sliding_window", 48}})).sliding_window == 48);
    CHECK(contains(error_of_family(model_type, {{"sliding_window", 0}}), "sliding_window: must be from 1"));
  }
}

TEST_CASE("config.json: a multimodal file is read as its language model", "[models]") {
  json text = config_of("qwen3_vl_text");
  text["rope_parameters"] = {{"rope_type", "default"},
                             {"rope_theta", 5e6},
                             {"mrope_interleaved", true},
                             {"mrope_section", {24, 20, 20}}};
  const json file = {{"model_type", "qwen3_vl"},
                     {"tie_word_embeddings", true},
                     {"vision_config", {{"depth", 2}}},
                     {"text_config", text}};
  ModelConfig read = model_from_json(file);
  CHECK(read.not_modelled ==
        std::vector<std::string>{"text_config alone is read: the model without images, sound and video"});
  read.not_modelled.clear();
  CHECK(read == model_from_json(config_of("qwen3", {{"rope_theta", 5e6}, {"tie_word_embeddings", true}})));

  json old = file;  // without a model_type inside, and with an older name of the angles
  old["text_config"].erase("model_type");
  old["text_config"]["rope_parameters"]["type"] = "mrope";
  old["text_config"]["rope_parameters"].erase("rope_type");
  ModelConfig again = model_from_json(old);
  again.not_modelled.clear();
  CHECK(again == read);

  CHECK(contains(error_of_file({{"model_type", "qwen3_vl"}, {"text_config", 3}}),
                 "text_config: expected an object, got 3"));
  CHECK(
      error_of_file({{"model_type", "qwen2_vl"}, {"vocab_size", 96}}) ==
      "model_type: \"qwen2_vl\" has its language model in text_config, or in older files at the top level, and this "
      "file in neither");
  CHECK(contains(error_of_file({{"model_type", "gemma4"}, {"text_config", config_of("gemma4_text")}}),
                 "model_type: \"gemma4_text\" is not supported"));
}

TEST_CASE("config.json: a file without model_type is read by its architecture", "[models]") {
  json file = config_of("llama");
  file.erase("model_type");
  CHECK(contains(error_of_file(file), "model_type: missing"));
  const auto expect = [](const json& unnamed, const json& named) {
    ModelConfig model = model_from_json(unnamed), expected = model_from_json(named);
    REQUIRE_FALSE(model.not_modelled.empty());
    CHECK(contains(model.not_modelled.back(), "comes from architectures"));
    model.not_modelled.pop_back();
    CHECK(model == expected);
  };
  for (const auto& [architecture, model_type] :
       {std::pair{"LlamaForCausalLM", "llama"}, std::pair{"Gemma2ForCausalLM", "gemma2"},
        std::pair{"Gemma3ForCausalLM", "gemma3_text"}, std::pair{"Olmo3ForCausalLM", "olmo3"},
        std::pair{"Phi3ForCausalLM", "phi3"}}) {
    file["architectures"] = {architecture};
    expect(file, config_of(model_type));
  }
  // Gemma has defaults for all dimensions.
  expect({{"architectures", {"Gemma2ForCausalLM"}}}, {{"model_type", "gemma2"}});
  for (const json& other :
       {json::array({"LlamaForCausalLM", "MistralForCausalLM"}), json::array({"BloomForCausalLM"})}) {
    file["architectures"] = other;
    CHECK(contains(error_of_file(file), "model_type: missing"));
  }
}

TEST_CASE("config.json: OLMo 3 has windows, and scales RoPE in the other layers alone", "[models]") {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 8192}};
  const ModelConfig olmo3 = model_from_json(config_of("olmo3", {{"rope_scaling", yarn}}));
  CHECK(olmo3.block.norms == NormPlace::after);
  CHECK(olmo3.norms_all_heads());
  CHECK(olmo3.block.local_layers == std::vector<std::int64_t>{0, 1, 2, 4, 5, 6});
  CHECK((olmo3.sliding_window == 4096 && olmo3.window(3) == 0 && olmo3.window(4) == 4096));
  CHECK((olmo3.rope_theta == 500000 && olmo3.block.local_rope_theta == 500000));
  CHECK(olmo3.rope_scaling.kind == RopeScaling::Kind::yarn);
  CHECK(model_from_json(config_of("olmo3")).block.local_rope_theta == 0);  // all layers have the same RoPE
  CHECK(model_from_json(config_of("olmo3", {{"sliding_window", nullptr}})).block.local_layers.empty());
}

TEST_CASE("config.json: SmolLM3's windows are in the layers without RoPE", "[models]") {
  const ModelConfig some =
      model_from_json(config_of("smollm3", {{"use_sliding_window", true}, {"sliding_window", 32}}));
  CHECK(some.block.local_layers == some.block.layers_without_rope);
  CHECK((some.window(3) == 32 && some.window(2) == 0));
}

TEST_CASE("model_to_json: every form of a block can be read again", "[models]") {
  for (const char* name :
       {"ministral3-3b", "smollm3-3b", "granite-3.1-2b", "olmo2-1b", "phi-3-mini", "gemma-2b", "gemma-2-27b",
        "gemma-3-27b", "phi-4-mini", "glm-4-9b-0414", "exaone-4.0-32b", "qwen1.5-moe-a2.7b", "glm-4.5",
        "minimax-m2", "ernie-4.5-21b-a3b"}) {
    INFO(name);
    const ModelConfig model = find_model(name);
    CHECK(model_from_json(model_to_json(model)) == model);
  }
  CHECK(!model_to_json(find_model("llama3.2-1b")).contains("norms"));
}

TEST_CASE("validate: an impossible form of a block is named", "[models]") {
  json own = {{"layers", 2}, {"width", 64}, {"ffn", 96}, {"heads", 4}, {"vocab", 96}};
  const auto error_own = [&](const char* key, const json& value) {
    json changed = own;
    changed[key] = value;
    return error_of_file(changed);
  };
  CHECK(error_own("norms", "around") == "norms: \"around\" is none of before, after, both");
  CHECK(error_own("residual_scale", -1) == "residual_scale: must be a positive number, got -1");
  CHECK(error_own("layers_without_rope", {2}) == "layers_without_rope: 2 is not a layer after -1 of 2");
  CHECK(error_own("layers_without_rope", {1, 0}) == "layers_without_rope: 0 is not a layer after 1 of 2");
  CHECK(contains(error_own("layers_without_rope", "all"), "layers_without_rope: expected a list of layers"));
  own.update({{"experts", 4}, {"top_k", 2}, {"expert_ffn", 32}});
  CHECK(error_own("norms", "after") == "norms: not supported together with experts");
  CHECK(error_own("residual_scale", 0.5) == "residual_scale: not supported together with experts");
}

}  // namespace
}  // namespace precbench
