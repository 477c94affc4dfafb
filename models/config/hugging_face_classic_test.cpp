// Families with LayerNorm in a config.json, and what our own keys refuse about them.
#include <nlohmann/json.hpp>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "models/config/block.h"
#include "models/config/config.h"

namespace precbench {
namespace {

using nlohmann::json;

json classic_file(const std::string& model_type, const json& more = json::object()) {
  json object = {{"model_type", model_type}, {"num_hidden_layers", 4},   {"hidden_size", 64},
                 {"intermediate_size", 96},  {"num_attention_heads", 4}, {"vocab_size", 96}};
  object.update(more);
  return object;
}

ModelConfig classic_model(const std::string& model_type, const json& more = json::object()) {
  return model_from_json(classic_file(model_type, more));
}

std::string classic_refusal(const std::string& model_type, const json& more) {
  return refusal_of([&] { classic_model(model_type, more); });
}

std::vector<std::string> vectors_of(const ModelConfig& model) {
  std::vector<std::string> names;
  for (const VectorSpec& vector : block_of(model, 0).vectors)
    for (const ParameterPart& part : vector.parts) names.push_back(part.name);
  return names;
}

TEST_CASE("config.json: GPT-2's own names of the dimensions, with their defaults", "[models]") {
  const json file = {{"model_type", "gpt2"},
                     {"n_layer", 2},
                     {"n_embd", 64},
                     {"n_head", 4},
                     {"n_positions", 128},
                     {"n_ctx", 128},
                     {"vocab_size", 96},
                     {"attn_pdrop", 0.1},
                     {"embd_pdrop", 0.0},
                     {"n_inner", json()},
                     {"layer_norm_epsilon", 1e-6}};
  const ModelConfig model = model_from_json(file);
  CHECK(model.width == 64);
  CHECK(model.ffn == 256);
  CHECK(model.heads == 4);
  CHECK(model.kv_heads == 4);
  CHECK(model.learned_positions == 128);
  CHECK(model.norm_eps == 1e-6);
  CHECK(model.tied);
  CHECK(!model.has_rope(0));
  CHECK(model.block.activation == Activation::gelu_tanh);
  CHECK(model.not_modelled == std::vector<std::string>{"attn_pdrop 0.1 is left out"});
  CHECK(parameter_count(model_from_json({{"model_type", "gpt2"}})) == 124'439'808);
  json bad = file;
  bad["n_layer"] = 0;
  CHECK(contains(refusal_of([&] { model_from_json(bad); }), "n_layer: "));
  bad = file;
  bad["hidden_size"] = 32;
  CHECK(contains(refusal_of([&] { model_from_json(bad); }), "n_embd"));
  bad = file;
  bad["scale_attn_by_inverse_layer_idx"] = true;
  CHECK(contains(refusal_of([&] { model_from_json(bad); }), "scale_attn_by_inverse_layer_idx: "));
  bad = file;
  bad["activation_function"] = "tanh";
  CHECK(
      contains(refusal_of([&] { model_from_json(bad); }), "activation_function: \"tanh\" is not supported"));
}

TEST_CASE("config.json: GPT-BigCode has one key head, GPT-J has interleaved RoPE", "[models]") {
  const json shape = {{"n_layer", 2}, {"n_embd", 64}, {"n_head", 4}, {"vocab_size", 96}};
  json file = shape;
  file["model_type"] = "gpt_bigcode";
  CHECK(model_from_json(file).kv_heads == 1);
  file["multi_query"] = false;
  CHECK(contains(refusal_of([&] { model_from_json(file); }), "multi_query: "));
  file = shape;
  file["model_type"] = "gptj";
  file["rotary_dim"] = 8;
  const ModelConfig gptj = model_from_json(file);
  CHECK(gptj.rotary_dim() == 8);
  CHECK(gptj.block.rope_pairs == RopePairs::interleaved);
  CHECK(gptj.block.residual == Residual::parallel_one_norm);
  CHECK(gptj.head_bias);
  CHECK(!gptj.qkv_bias);
  file["rotary_dim"] = json();
  CHECK(model_from_json(file).rotary_dim() == 16);
}

TEST_CASE("config.json: GPT-NeoX with its quarter of RoPE and parallel residual", "[models]") {
  const ModelConfig model = classic_model("gpt_neox");
  CHECK(model.rotary_dim() == 4);
  CHECK(model.block.residual == Residual::parallel);
  CHECK(model.block.activation == Activation::gelu);
  CHECK(vectors_of(model) ==
        std::vector<std::string>{"mlp.up_proj.bias", "mlp.down_proj.bias", "input_layernorm.weight",
                                 "input_layernorm.bias", "post_attention_layernorm.weight",
                                 "post_attention_layernorm.bias", "self_attn.q_proj.bias",
                                 "self_attn.k_proj.bias", "self_attn.v_proj.bias", "self_attn.o_proj.bias"});
  const ModelConfig other = classic_model("gpt_neox", {{"rotary_pct", 1.0},
                                                       {"rotary_emb_base", 5000},
                                                       {"use_parallel_residual", false},
                                                       {"attention_bias", false},
                                                       {"hidden_act", "gelu_fast"}});
  CHECK(other.rotary_dim() == 16);
  CHECK(other.rope_theta == 5000);
  CHECK(other.block.residual == Residual::sequential);
  CHECK(!other.qkv_bias);
  CHECK(!other.block.o_bias);
  CHECK(other.block.ffn_bias);
  CHECK(other.block.activation == Activation::gelu_tanh);
}

TEST_CASE("config.json: Phi-2, StarCoder2, StableLM and Nemotron", "[models]") {
  const ModelConfig phi = classic_model("phi", {{"partial_rotary_factor", 0.5}, {"layer_norm_eps", 1e-6}});
  CHECK(phi.block.residual == Residual::parallel_one_norm);
  CHECK(phi.rotary_dim() == 8);
  CHECK(phi.head_bias);
  CHECK(phi.norm_eps == 1e-6);
  CHECK(contains(classic_refusal("phi", {{"qk_layernorm", true}}), "qk_layernorm: "));

  const ModelConfig starcoder = classic_model("starcoder2", {{"sliding_window", 8},
                                                             {"norm_epsilon", 1e-6},
                                                             {"activation_function", "gelu"},
                                                             {"num_key_value_heads", 2}});
  CHECK(starcoder.window(1) == 8);
  CHECK(starcoder.tied);
  CHECK(starcoder.norm_eps == 1e-6);
  CHECK(starcoder.block.activation == Activation::gelu_tanh);
  CHECK(!classic_model("starcoder2", {{"use_bias", false}, {"num_key_value_heads", 2}}).block.ffn_bias);
  CHECK(contains(classic_refusal("starcoder2", {{"norm_type", "rms_norm"}, {"num_key_value_heads", 2}}),
                 "norm_type: "));

  const ModelConfig stablelm =
      classic_model("stablelm", {{"use_qkv_bias", true}, {"num_key_value_heads", 4}});
  CHECK(stablelm.block.gated);
  CHECK(stablelm.qkv_bias);
  CHECK(!stablelm.block.o_bias);
  CHECK(stablelm.rotary_dim() == 4);
  CHECK(classic_model("stablelm", {{"use_parallel_residual", true}, {"num_key_value_heads", 4}})
            .block.residual == Residual::parallel_one_norm);

  const ModelConfig nemotron = classic_model("nemotron", {{"norm_eps", 1e-6}});
  CHECK(nemotron.block.gains_minus_one);
  CHECK(nemotron.block.activation == Activation::relu2);
  CHECK(nemotron.rotary_dim() == 8);
  CHECK(!nemotron.block.ffn_bias);
  CHECK(contains(classic_refusal("stablelm", {{"hidden_act", "relu2"}, {"num_key_value_heads", 4}}),
                 "hidden_act: \"relu2\" is not supported"));
}

TEST_CASE("config.json: Command R, and Command R7B's windows with RoPE", "[models]") {
  const ModelConfig cohere = classic_model("cohere", {{"layer_norm_eps", 1e-6}, {"logit_scale", 0.25}});
  CHECK(!cohere.block.norm_bias);
  CHECK(cohere.logit_scale == 0.25);
  CHECK(cohere.tied);
  CHECK(cohere.rope_theta == 500000);
  CHECK(contains(classic_refusal("cohere", {{"use_qk_norm", true}}), "use_qk_norm: "));
  using Layers = std::vector<std::int64_t>;
  const ModelConfig later = classic_model("cohere2", {{"sliding_window", 8}, {"layer_switch", 4}});
  CHECK(later.block.local_layers == Layers{0, 1, 2});
  CHECK(later.block.layers_without_rope == Layers{3});
  CHECK(later.window(3) == 0);
  CHECK(classic_model("cohere2", {{"sliding_window", nullptr}}).block.layers_without_rope ==
        Layers{0, 1, 2, 3});
}

TEST_CASE("config.json: keys of heads that Transformers does not read for GPT-2, GPT-J and GPT-NeoX",
          "[models]") {
  for (const char* model_type : {"gpt2", "gptj", "gpt_neox"}) {
    INFO(model_type);
    const json small = std::string(model_type) == "gptj" ? json{{"rotary_dim", 8}} : json::object();
    const auto with = [&](const char* key, int value) {
      json more = small;
      more[key] = value;
      return classic_refusal(model_type, more);
    };
    CHECK(with("num_key_value_heads", 4).empty());
    CHECK(contains(with("num_key_value_heads", 2), "num_key_value_heads: "));
    CHECK(with("head_dim", 16).empty());
    CHECK(contains(with("head_dim", 32), "head_dim: "));
  }
}

TEST_CASE("our own keys: LayerNorm and parallel residuals refuse what they do not combine with", "[models]") {
  const auto refused = [](const json& more) {
    json object = {{"layers", 2}, {"width", 64}, {"ffn", 96}, {"heads", 4}, {"vocab", 96}};
    object.update(more);
    return refusal_of([&] { model_from_json(object); });
  };
  CHECK(refused({{"norm", "layer"}, {"norm_bias", true}, {"gated", false}, {"ffn_bias", true}}).empty());
  CHECK(contains(refused({{"norm_bias", true}}), "norm_bias: "));
  CHECK(contains(refused({{"norm", "layer"}, {"norms", "after"}}), "norms: "));
  CHECK(contains(refused({{"norm", "layer"}, {"qk_norm", true}}), "qk_norm: "));
  CHECK(contains(refused({{"residual", "parallel"}, {"norms", "both"}}), "residual: "));
  CHECK(contains(refused({{"residual", "parallel"}, {"residual_scale", 0.5}}), "residual_scale: "));
  CHECK(contains(refused({{"ffn_bias", true}}), "ffn_bias: "));
  CHECK(contains(refused({{"activation", "relu2"}}), "activation: "));
  CHECK(contains(refused({{"gated", false}, {"fused_tensors", "gate_up"}}), "fused_tensors: "));
  CHECK(contains(refused({{"fused_tensors", "gpt2"}}), "fused_tensors: "));
  CHECK(contains(refused({{"gated", false}, {"fused_tensors", "gpt_neox"}, {"kv_heads", 2}}),
                 "fused_tensors: "));
  CHECK(refused({{"gated", false}, {"fused_tensors", "gpt_neox"}}).empty());
  CHECK(contains(refused({{"norm", "batch"}}), "norm: \"batch\" is neither rms nor layer"));
}

}  // namespace
}  // namespace precbench
