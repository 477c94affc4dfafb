// Routers and shared experts of Qwen2-MoE, GLM-4.5, MiniMax-M2, ERNIE 4.5 and DeepSeek-MoE in a config.json.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "models/config/block.h"
#include "models/config/config.h"
#include "models/config/hugging_face_testing.h"

namespace precbench {
namespace {

using nlohmann::json;

json routed_file(const std::string& model_type, const json& more = json::object()) {
  return testing::small_config_json(model_type, 4, more);
}

ModelConfig routed_model(const std::string& model_type, const json& more = json::object()) {
  return model_from_json(routed_file(model_type, more));
}

std::string routed_error(const std::string& model_type, const json& more) {
  return refusal_of([&] { routed_model(model_type, more); });
}

bool has_parameter(const BlockSpec& block, const std::string& name) {
  return std::any_of(block.linears.begin(), block.linears.end(), [&](const LinearSpec& linear) {
    return std::any_of(linear.parts.begin(), linear.parts.end(),
                       [&](const ParameterPart& part) { return part.name == name; });
  });
}

TEST_CASE("config.json: Qwen2-MoE has a gate on its shared expert", "[models][moe]") {
  const ModelConfig model = routed_model("qwen2_moe", {{"mlp_only_layers", {0}}});
  CHECK((model.moe.rule.experts == 60 && model.moe.rule.top_k == 4 && !model.moe.rule.normalise));
  CHECK((model.moe.shared_ffn == 5632 && model.moe.shared_gate && model.moe.dense_layers == 1));
  CHECK(model.qkv_bias);
  CHECK_FALSE(routed_model("qwen2_moe", {{"qkv_bias", false}}).qkv_bias);
  CHECK(has_parameter(block_of(model, 1), "mlp.shared_expert_gate.weight"));
  CHECK(has_parameter(block_of(model, 1), "mlp.shared_expert.up_proj.weight"));
  CHECK(contains(routed_error("qwen2_moe", {{"mlp_only_layers", {1}}}), "mlp_only_layers: "));
  CHECK(contains(routed_error("qwen2_moe", {{"use_sliding_window", true}}), "use_sliding_window: "));
  json own = model_to_json(model);
  own.erase("shared_ffn");
  CHECK(contains(refusal_of([&] { model_from_json(own); }), "shared_gate: the model has no shared expert"));
}

TEST_CASE("config.json: GLM-4.5 routes like DeepSeek-V3, with and without a QK-norm", "[models][moe]") {
  const json file = {{"use_qk_norm", true}, {"attention_bias", true}, {"routed_scaling_factor", 2.5}};
  const ModelConfig model = routed_model("glm4_moe", file);
  CHECK((model.qk_norm && model.qkv_bias && !model.block.o_bias));
  CHECK(
      (model.moe.rule.score == RouterScore::sigmoid && model.moe.rule.scale == 2.5 && model.moe.route_bias));
  CHECK((model.moe.dense_layers == 1 && model.moe.shared_ffn == 1408));
  CHECK((model.block.rotary_dim == 8 && model.block.rope_pairs == RopePairs::halves));
  CHECK_FALSE(routed_model("glm4_moe").qk_norm);
  json mislabelled = file;
  mislabelled["architectures"] = {"Glm4MoeForCausalLM"};
  CHECK(routed_model("glm", mislabelled) == model);
  // The language model of GLM-4.5V; on text its multimodal RoPE is RoPE.
  json of_images = file;
  of_images["rope_scaling"] = {{"rope_type", "default"}, {"mrope_section", {2, 1, 1}}};
  CHECK(routed_model("glm4v_moe_text", of_images) == model);
}

TEST_CASE("config.json: MiniMax-M2 has a norm over all heads and rotates a part of them", "[models][moe]") {
  const ModelConfig model = routed_model("minimax_m2", {{"rotary_dim", 8}});
  CHECK((model.norms_all_heads() && model.block.rotary_dim == 8 && model.moe.route_bias));
  CHECK(model.moe.expert_ffn == 96);
  CHECK(route_bias_name(model, 2) == "model.layers.2.block_sparse_moe.e_score_correction_bias");
  CHECK(routed_model("minimax_m2", {{"partial_rotary_factor", 0.25}}).block.rotary_dim == 4);
  CHECK(contains(routed_error("minimax_m2", {{"scoring_func", "softmax"}}), "scoring_func: "));
  CHECK(contains(routed_error("minimax_m2", {{"use_routing_bias", false}}), "use_routing_bias: "));
}

TEST_CASE("config.json: ERNIE 4.5's experts begin behind its dense layers", "[models][moe]") {
  const ModelConfig model = routed_model("ernie4_5_moe", {{"moe_layer_start_index", 2}});
  CHECK((model.moe.dense_layers == 2 && model.moe.shared_ffn == 3072 && model.moe.rule.normalise));
  CHECK(model.block.rope_pairs == RopePairs::interleaved);
  CHECK(route_bias_name(model, 3) == "model.layers.3.mlp.moe_statics.e_score_correction_bias");
  CHECK(routed_model("ernie4_5_moe", {{"num_experts", 8}, {"num_experts_per_tok", 2}}).moe.rule.experts == 8);
  CHECK(contains(routed_error("ernie4_5_moe", {{"moe_layer_end_index", 2}}), "moe_layer_end_index: "));
}

TEST_CASE("config.json: experts in every second layer, behind the layers without", "[models][moe]") {
  using Layers = std::vector<std::int64_t>;
  for (const auto& [model_type, interval] :
       {std::pair{"qwen2_moe", "decoder_sparse_step"}, std::pair{"qwen3_moe", "decoder_sparse_step"},
        std::pair{"ernie4_5_moe", "moe_layer_interval"}}) {
    INFO(model_type);
    CHECK(routed_model(model_type, {{interval, 2}}).layers_with_experts() == Layers{1, 3});
    CHECK(contains(routed_error(model_type, {{interval, 5}}),
                   std::string(interval) + ": 5 leaves none of 4 layers"));
  }
  CHECK(routed_model("qwen3_moe", {{"decoder_sparse_step", 2}, {"mlp_only_layers", {0, 1}}})
            .layers_with_experts() == Layers{3});
  CHECK(routed_model("ernie4_5_moe", {{"moe_layer_interval", 2}, {"moe_layer_start_index", 2}})
            .layers_with_experts() == Layers{3});
  CHECK(routed_model("qwen3_moe", {{"mlp_only_layers", {0}}}).ffn == 96);
}

TEST_CASE("config.json: DeepSeek-MoE has plain attention", "[models][moe]") {
  const ModelConfig model = routed_model(
      "deepseek", {{"n_routed_experts", 64}, {"first_k_dense_replace", 1}, {"n_shared_experts", 2}});
  CHECK((model.moe.dense_layers == 1 && model.moe.shared_ffn == 2 * 1407 && !model.moe.rule.normalise));
  CHECK(model.not_modelled.empty());
}

}  // namespace
}  // namespace precbench
