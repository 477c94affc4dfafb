// Files of model_types that are read as another's.
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "models/config/config.h"
#include "models/config/hugging_face_testing.h"

namespace precbench {
namespace {

using nlohmann::json;

json published(const char* model_type, std::int64_t width, std::int64_t ffn, std::int64_t layers,
               std::int64_t heads, std::int64_t vocab, const json& more) {
  json object = {{"model_type", model_type},    {"hidden_size", width},         {"intermediate_size", ffn},
                 {"num_hidden_layers", layers}, {"num_attention_heads", heads}, {"vocab_size", vocab},
                 {"tie_word_embeddings", false}};
  object.update(more);
  return object;
}

TEST_CASE("config.json: models of other model_types have their published sizes", "[models]") {
  const auto count = [](const json& file) { return parameter_count(model_from_json(file)); };
  CHECK(count(published("internlm", 4096, 11008, 32, 32, 103168, {{"bias", true}})) == 7321948160);
  CHECK(count(published("internlm2", 4096, 14336, 32, 32, 92544,
                        {{"bias", false}, {"num_key_value_heads", 8}})) == 7737708544);
  CHECK(count(published("minicpm", 2304, 5760, 40, 36, 122753,
                        {{"scale_emb", 12},
                         {"dim_model_base", 256},
                         {"scale_depth", 1.4},
                         {"tie_word_embeddings", true}})) == 2724880896);
  CHECK(count(published("orion", 5120, 15360, 40, 40, 84608, {{"rms_norm_eps", 1e-5}})) == 14498703360);
  CHECK(count(published("qwen", 2048, 11008, 24, 16, 151936, {{"kv_channels", 128}, {"no_bias", true}})) ==
        1836828672);
  const json phi = {
      {"model_type", "phi-msft"},    {"n_embd", 2560},   {"n_head", 32},         {"n_layer", 32},
      {"n_inner", nullptr},          {"rotary_dim", 32}, {"n_head_kv", nullptr}, {"vocab_size", 51200},
      {"tie_word_embeddings", false}};
  CHECK(count(phi) == 2779683840);
}

/// The count of Hugging Face Transformers 5.24 of the same file.
TEST_CASE("config.json: families that are another's have the sizes of Transformers", "[models][moe]") {
  const auto count = [](const json& file) { return parameter_count(model_from_json(file)); };
  // Files without dimensions have the defaults of transformers, which are the published model's.
  CHECK(count({{"model_type", "glm4_moe_lite"}}) == 29943390976);
  CHECK(count({{"model_type", "solar_open"}}) == 102651793408);
  CHECK(count({{"model_type", "cwm"}}) == 32581097472);
  CHECK(count({{"model_type", "internlm3"}}) == 8804241408);
  CHECK(count({{"model_type", "exaone"}, {"num_layers", 32}}) == 7818448896);
  CHECK(count(published("dots1", 4096, 10944, 62, 32, 152064,
                        {{"n_routed_experts", 128},
                         {"n_shared_experts", 2},
                         {"num_experts_per_tok", 6},
                         {"moe_intermediate_size", 1408},
                         {"first_k_dense_replace", 1},
                         {"sliding_window", nullptr}})) == 142774373888);
  CHECK(count(published("granitemoehybrid", 2560, 8192, 40, 40, 100352,
                        {{"num_key_value_heads", 8},
                         {"shared_intermediate_size", 8192},
                         {"num_local_experts", 0},
                         {"layer_types", std::vector<std::string>(40, "attention")},
                         {"position_embedding_type", "rope"},
                         {"tie_word_embeddings", true}})) == 3402836480);
  CHECK(count(published("hunyuan_v1_dense", 4096, 14336, 32, 32, 128167,
                        {{"num_key_value_heads", 8}, {"head_dim", 128}})) == 8029540352);
}

/// Defaults of the configuration classes of Hugging Face Transformers 5.24: those that the families share, unless
/// `defaults` has another value, and each family's own. `required`: keys without which a file is refused.
TEST_CASE("config.json: absent keys of these families have the defaults of Transformers", "[models][moe]") {
  struct Family {
    const char *model_type, *required, *defaults;
  };
  constexpr const char* kShared =
      R"({"hidden_act": "silu", "tie_word_embeddings": false, "attention_bias": false,
          "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}})";
  constexpr Family kTranslated[] = {
      {"glm4_moe_lite", "{}",
       R"({"vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240,
          "moe_intermediate_size": 1536, "num_hidden_layers": 47, "num_attention_heads": 20,
          "num_key_value_heads": 20, "n_shared_experts": 1, "n_routed_experts": 64,
          "routed_scaling_factor": 1.8, "kv_lora_rank": 512, "q_lora_rank": 768, "qk_rope_head_dim": 64,
          "v_head_dim": 256, "qk_nope_head_dim": 192, "n_group": 1, "topk_group": 1,
          "num_experts_per_tok": 4, "norm_topk_prob": true, "max_position_embeddings": 202752,
          "rms_norm_eps": 1e-05, "rope_interleave": true})"},
      {"dots1", R"({"n_routed_experts": 128, "num_experts_per_tok": 6})",
       R"({"vocab_size": 152064, "hidden_size": 4608, "intermediate_size": 10944,
          "moe_intermediate_size": 1408, "num_hidden_layers": 62, "num_attention_heads": 32,
          "num_key_value_heads": 32, "n_shared_experts": null, "n_group": 1, "topk_group": 1,
          "first_k_dense_replace": 0, "norm_topk_prob": false, "max_position_embeddings": 2048,
          "rms_norm_eps": 1e-06, "routed_scaling_factor": 1.0, "sliding_window": 4096,
          "max_window_layers": 62})"},
      {"solar_open", "{}",
       R"({"vocab_size": 196608, "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 64,
          "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
          "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
          "moe_intermediate_size": 1280, "num_experts_per_tok": 8, "n_shared_experts": 1,
          "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
          "norm_topk_prob": true, "head_dim": 128})"},
      {"cwm", "{}",
       R"({"vocab_size": 128256, "hidden_size": 6144, "intermediate_size": 21504, "num_hidden_layers": 64,
          "num_attention_heads": 48, "num_key_value_heads": 8, "max_position_embeddings": 131072,
          "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 1000000.0, "factor": 16.0,
          "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
          "rope_type": "llama3"}, "mlp_bias": false, "head_dim": 128, "sliding_window": 8192})"},
      {"granitemoehybrid",
       R"({"layer_types": ["attention", "attention"], "num_hidden_layers": 2, "num_local_experts": 0,
          "position_embedding_type": "rope"})",
       R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
          "num_key_value_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
          "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
          "attention_multiplier": 1.0, "shared_intermediate_size": 1024})"},
      {"exaone", "{}",
       R"({"vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
          "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096,
          "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
          "mlp_bias": false, "head_dim": 128})"},
      {"internlm3", "{}",
       R"({"vocab_size": 128512, "hidden_size": 4096, "intermediate_size": 10240, "num_hidden_layers": 48,
          "num_attention_heads": 32, "num_key_value_heads": 2, "max_position_embeddings": 32768,
          "rms_norm_eps": 1e-05, "mlp_bias": false, "head_dim": 128})"},
      {"hunyuan_v1_dense", "{}",
       R"({"vocab_size": 290943, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
          "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 2048,
          "rms_norm_eps": 1e-05, "head_dim": null})"},
  };
  for (const Family& family : kTranslated) {
    INFO(family.model_type);
    json file = json::parse(family.required);
    file["model_type"] = family.model_type;
    json full = json::parse(kShared);
    full.update(json::parse(family.defaults));
    full.update(file);
    CHECK(model_to_json(model_from_json(file)) == model_to_json(model_from_json(full)));
  }
}

TEST_CASE("config.json: families of other names have the form of the nearest", "[models][moe]") {
  const auto small = [](const char* model_type, const json& more) {
    return model_from_json(testing::small_config_json(model_type, 4, more));
  };
  const json experts = {{"n_routed_experts", 8},
                        {"n_shared_experts", 1},
                        {"num_experts_per_tok", 2},
                        {"moe_intermediate_size", 32},
                        {"first_k_dense_replace", 1},
                        {"n_group", 1},
                        {"topk_group", 1}};
  const auto with = [](json object, const json& more) {
    object.update(more);
    return object;
  };
  const json latent = with(experts, {{"num_key_value_heads", 4},
                                     {"rms_norm_eps", 1e-5},
                                     {"max_position_embeddings", 512},
                                     {"routed_scaling_factor", 1.8}});
  const json sizes = {{"q_lora_rank", 24},
                      {"kv_lora_rank", 32},
                      {"qk_nope_head_dim", 16},
                      {"qk_rope_head_dim", 8},
                      {"v_head_dim", 32}};
  CHECK(small("glm4_moe_lite", with(latent, sizes)) == small("deepseek_v3", with(latent, sizes)));
  CHECK(small("glm4_moe_lite",
              with(with(latent, sizes), {{"mlp_layer_types", {"dense", "dense", "sparse", "sparse"}}}))
            .moe.dense_layers == 2);
  const json glm = with(experts, {{"use_qk_norm", true},
                                  {"partial_rotary_factor", 1.0},
                                  {"rms_norm_eps", 1e-6},
                                  {"norm_topk_prob", true},
                                  {"max_position_embeddings", 512}});
  const json dots = with(experts, {{"norm_topk_prob", true},
                                   {"max_position_embeddings", 512},
                                   {"sliding_window", 4096},
                                   {"max_window_layers", 62},
                                   {"scoring_func", "noaux_tc"}});
  CHECK(small("dots1", dots) == small("glm4_moe", glm));
  const ModelConfig solar = small("solar_open", {{"first_k_dense_replace", 0}, {"attention_bias", true}});
  CHECK((solar.moe.in_all_layers() && solar.moe.rule.experts == 128 && solar.block.rotary_dim == 0));
  CHECK((solar.rope_theta == 1e6 && !solar.qk_norm && solar.qkv_bias && !solar.block.o_bias));

  const ModelConfig cwm = small("cwm", json::object());
  CHECK((cwm.sliding_window == 8192 && cwm.block.local_layers == std::vector<std::int64_t>{1, 2, 3}));
  CHECK((cwm.rope_scaling.kind == RopeScaling::Kind::llama3 && cwm.rope_scaling.factor == 16));
  CHECK(small("cwm", {{"sliding_window", nullptr}}).block.local_layers.empty());

  const json factors = {{"embedding_multiplier", 12.0},
                        {"residual_multiplier", 0.22},
                        {"attention_multiplier", 0.1},
                        {"logits_scaling", 8.0}};
  ModelConfig granite =
      small("granitemoehybrid",
            with(factors, {{"shared_intermediate_size", 96},
                           {"intermediate_size", 512},
                           {"num_local_experts", 0},
                           {"layers_block_type", {"attention", "attention", "attention", "attention"}},
                           {"position_embedding_type", "rope"},
                           {"mamba_d_state", 256}}));
  CHECK(granite.block.fusion == TensorFusion::granite_hybrid);
  granite.block.fusion = TensorFusion::none;
  CHECK(granite == small("granite", factors));

  ModelConfig exaone = small("exaone", {{"num_layers", 4},
                                        {"layer_norm_epsilon", 1e-6},
                                        {"rope_theta", 1e6},
                                        {"activation_function", "silu"}});
  CHECK(exaone.block.fusion == TensorFusion::exaone);
  exaone.block.fusion = TensorFusion::none;
  CHECK(exaone ==
        small("llama", {{"rms_norm_eps", 1e-6}, {"rope_theta", 1e6}, {"max_position_embeddings", 4096}}));
  CHECK(small("internlm3", {{"bias", false}, {"qkv_bias", false}}) ==
        small("llama", {{"rms_norm_eps", 1e-5}, {"max_position_embeddings", 32768}}));

  const json stretched = {{"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}};
  ModelConfig hunyuan = small("hunyuan_v1_dense", {{"rope_scaling", stretched}, {"rope_theta", 10000.0}});
  CHECK((hunyuan.block.fusion == TensorFusion::hunyuan && hunyuan.block.qk_norm_after_rope &&
         !hunyuan.dynamic_rope));
  CHECK(model_from_json(model_to_json(hunyuan)) == hunyuan);
  hunyuan.block.fusion = TensorFusion::none;
  hunyuan.block.qk_norm_after_rope = false;
  CHECK(hunyuan == small("qwen3", {{"rms_norm_eps", 1e-5},
                                   {"rope_theta", 10000 * std::pow(1000.0, 16.0 / 14)},
                                   {"max_position_embeddings", 2048}}));
}

TEST_CASE("config.json: variants of these families that are not supported are refused with the reason",
          "[models][moe]") {
  const auto refusal = [](const char* model_type, const json& more) {
    return refusal_of([&] { model_from_json(testing::small_config_json(model_type, 4, more)); });
  };
  CHECK(
      contains(refusal("granitemoehybrid", json::object()), "\"mamba\" layers (Mamba-2) are not supported"));
  CHECK(contains(refusal("granitemoehybrid", {{"layer_types", {"attention", "mamba", "mamba", "mamba"}}}),
                 "Mamba-2"));
  const json attention = {"attention", "attention", "attention", "attention"};
  CHECK(contains(refusal("granitemoehybrid", {{"layer_types", attention}}),
                 "num_local_experts: 8: experts beside"));
  CHECK(contains(refusal("granitemoehybrid", {{"layer_types", attention}, {"num_local_experts", 0}}),
                 "position_embedding_type: null"));
  CHECK(contains(refusal("glm4_moe_lite", {{"mlp_layer_types", {"dense", "sparse", "dense", "sparse"}}}),
                 "mlp_layer_types: "));
  const json experts = {{"n_routed_experts", 8}, {"num_experts_per_tok", 2}};
  json windows = experts;
  windows.update({{"max_window_layers", 2}});
  CHECK(contains(refusal("dots1", windows), "sliding_window: windows of this model_type"));
  CHECK(contains(refusal("dots1", json::object()), "n_routed_experts: missing"));
  CHECK(contains(refusal("solar_open", {{"use_qk_norm", true}}), "use_qk_norm: "));
  CHECK(contains(refusal("internlm3", {{"qkv_bias", true}}), "qkv_bias: biases on q, k and v alone"));
  CHECK(contains(refusal("internlm3", {{"qkv_bias", true}, {"bias", true}}), "mlp_bias: a bias in the MLP"));
  CHECK(contains(refusal("hunyuan_v1_dense", {{"use_cla", true}}), "use_cla: attention across layers"));
  CHECK(contains(refusal("hunyuan_v1_dense",
                         {{"rope_scaling",
                           {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}}}}),
                 "qk_norm_after_rope: not supported together with a factor on RoPE's output"));
}

TEST_CASE("config.json: the refusal of a model_type names what is missing and what is nearest", "[models]") {
  const auto refusal = [](const char* model_type, const json& more) {
    return refusal_of([&] { model_from_json(testing::small_config_json(model_type, 4, more)); });
  };
  CHECK(
      refusal("qwen3_next", json::object()) ==
      "model_type: \"qwen3_next\" is not supported: it needs gated DeltaNet layers (linear attention); the nearest "
      "that is supported is \"qwen3_moe\"");
  CHECK(contains(refusal("nemotron_h", json::object()),
                 "it needs Mamba-2 layers; the nearest that is supported is"));
  CHECK(contains(refusal("gemma3n", json::object()), "AltUp"));
  CHECK(
      refusal(
          "mine",
          {{"num_experts", 8}, {"use_qk_norm", true}, {"decoder_sparse_step", 1}, {"my_key", 3}}) ==
      "model_type: \"mine\" is not supported; the nearest by its keys is \"qwen3_moe\", which does not read my_key");
  CHECK(refusal("mine", json::object()) ==
        "model_type: \"mine\" is not supported; the nearest by its keys is \"llama\"");
}

TEST_CASE("config.json: a translated file is the other model_type's", "[models]") {
  const auto small = [](const char* model_type, const json& more) {
    return model_from_json(testing::small_config_json(model_type, 4, more));
  };
  CHECK(small("internlm", {{"bias", true}}) == small("llama", {{"attention_bias", true}}));
  CHECK(small("internlm", {{"bias", false}}) == small("llama", json::object()));
  CHECK(small("minicpm", {{"scale_emb", 12}, {"scale_depth", 1.4}, {"dim_model_base", 16}}) ==
        small("granite", {{"embedding_multiplier", 12.0},
                          {"residual_multiplier", 1.4 / std::sqrt(4.0)},
                          {"attention_multiplier", 0.25},
                          {"logits_scaling", 4.0},
                          {"tie_word_embeddings", true}}));
  CHECK(small("orion", {{"rms_norm_eps", 1e-4}}) ==
        small("stablelm", {{"layer_norm_eps", 1e-4}, {"partial_rotary_factor", 1.0}}));
  const ModelConfig qwen =
      small("qwen", {{"seq_length", 2048}, {"layer_norm_epsilon", 1e-5}, {"use_logn_attn", true}});
  CHECK((qwen.ffn == 48 && qwen.kv_heads == 4 && qwen.qkv_bias && !qwen.block.o_bias));
  CHECK((qwen.max_positions == 2048 && qwen.dynamic_rope && qwen.norm_eps == 1e-5));
  for (const char* model_type : {"internlm2", "qwen"}) {
    const ModelConfig model = small(model_type, json::object());
    CHECK(contains(model.not_modelled.back(), "other tensors"));
  }
}

TEST_CASE("config.json: what a translated file cannot say is refused", "[models]") {
  const auto refusal = [](const char* model_type, const json& more) {
    return refusal_of([&] { model_from_json(testing::small_config_json(model_type, 4, more)); });
  };
  CHECK(contains(refusal("minicpm", {{"num_experts", 8}}), "num_experts: a mixture of experts"));
  CHECK(contains(refusal("minicpm", {{"dim_model_base", -1}}), "dim_model_base: "));
  CHECK(contains(refusal("orion", {{"attention_bias", true}}), "attention_bias: a bias in attention"));
  CHECK(contains(refusal("qwen", {{"no_bias", false}}), "no_bias: a bias in all linear layers"));
  CHECK(contains(refusal("baichuan", json::object()), "divides the rows of lm_head by their length"));
  json headless = testing::small_config_json("qwen", 4);
  headless.erase("num_attention_heads");
  CHECK(contains(refusal_of([&] { model_from_json(headless); }), "num_attention_heads: missing"));
}

TEST_CASE("config.json: a wrapper's text_config may leave out its type and dimensions", "[models]") {
  json text = testing::small_config_json("qwen3", 4);
  text.erase("model_type");
  const ModelConfig model =
      model_from_json({{"architectures", {"Qwen3VLForConditionalGeneration"}}, {"text_config", text}});
  CHECK((model.qk_norm && model.layers == 4 && model.not_modelled.size() == 2));
  // InternVL and DeepSeek-VL2 call it otherwise.
  const json qwen2 = testing::small_config_json("qwen2", 4);
  for (const char* key : {"llm_config", "language_config"}) {
    const ModelConfig other = model_from_json({{"model_type", "internvl_chat"}, {key, qwen2}});
    ModelConfig expected = model_from_json(qwen2);
    expected.not_modelled = {std::string(key) + " alone is read: the model without images, sound and video"};
    CHECK(other == expected);
  }
  // LLaVA's text_config leaves out the dimensions of Llama 7B.
  CHECK(parameter_count(model_from_json(
            {{"model_type", "llava"}, {"text_config", {{"model_type", "llama"}, {"vocab_size", 32064}}}})) ==
        6738939904);
}

}  // namespace
}  // namespace precbench
