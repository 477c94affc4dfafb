// Keys of config.json by model_type: aliases, keys that ask for another model, and ignored keys.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "models/config/block.h"
#include "models/config/config.h"
#include "models/config/hugging_face_testing.h"

namespace precbench {
namespace {

using testing::config_refusal;

using nlohmann::json;
using Lines = std::vector<std::string>;

/// Returns a small config.json of a model_type that causes no warnings besides those that the model_type
/// always has.
json accepted(const std::string& model_type) {
  json object = {{"model_type", model_type}, {"num_hidden_layers", 4},   {"hidden_size", 64},
                 {"intermediate_size", 96},  {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"head_dim", 16},           {"vocab_size", 96}};
  if (model_type == "mistral") object["sliding_window"] = nullptr;
  if (model_type.starts_with("deepseek")) object["num_key_value_heads"] = 4;
  return object;
}

json with(json object, const json& more) {
  object.update(more);
  return object;
}

Lines warnings_of(const json& object) { return model_from_json(object).not_modelled; }

constexpr const char* kFamilies[] = {"llama",     "mistral", "qwen2",       "qwen3",       "smollm3",
                                     "granite",   "olmo2",   "ministral3",  "phi3",        "mixtral",
                                     "qwen3_moe", "olmoe",   "deepseek_v2", "deepseek_v3", "llama4_text"};

TEST_CASE("config.json: complete files of published models equal the presets", "[models]") {
  // Keys that all of these files have and that have no effect.
  const json common = {{"architectures", {"AnyForCausalLM"}},
                       {"attention_dropout", 0.0},
                       {"bos_token_id", 1},
                       {"eos_token_id", {2, 3}},
                       {"hidden_act", "silu"},
                       {"initializer_range", 0.02},
                       {"torch_dtype", "bfloat16"},
                       {"use_cache", true},
                       {"transformers_version", "4.51.0"}};
  struct File {
    const char* preset;
    const char* keys;
    Lines warnings;
  };
  const std::vector<File> files = {
      {"llama3.2-1b",
       R"({"model_type": "llama", "attention_bias": false, "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192,
           "max_position_embeddings": 131072, "mlp_bias": false, "num_attention_heads": 32, "num_hidden_layers": 16,
           "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
           "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                            "original_max_position_embeddings": 8192, "rope_type": "llama3"},
           "tie_word_embeddings": true, "vocab_size": 128256})",
       {}},
      {"qwen2.5-0.5b",
       R"({"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768,
           "max_window_layers": 24, "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
           "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
           "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})",
       {}},
      {"qwen3-4b",
       R"({"model_type": "qwen3", "attention_bias": false, "head_dim": 128, "hidden_size": 2560, "intermediate_size": 9728,
           "max_position_embeddings": 40960, "max_window_layers": 36, "num_attention_heads": 32,
           "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
           "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false,
           "vocab_size": 151936})",
       {}},
      {"mixtral-8x7b",
       R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
           "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
           "num_local_experts": 8, "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
           "router_aux_loss_coef": 0.02, "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32000})",
       {"router_aux_loss_coef 0.02 is not read: --aux sets the coefficient of the balance loss"}},
      {"qwen3-30b-a3b",
       R"({"model_type": "qwen3_moe", "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128,
           "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
           "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
           "num_local_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
           "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 1000000.0,
           "rope_type": "default"}, "router_aux_loss_coef": 0.001, "sliding_window": null,
           "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936})",
       {"router_aux_loss_coef 0.001 is not read: --aux sets the coefficient of the balance loss"}},
      {"olmoe-1b-7b",
       R"({"model_type": "olmoe", "attention_bias": false, "clip_qkv": null, "hidden_size": 2048,
           "intermediate_size": 1024, "max_position_embeddings": 4096, "norm_topk_prob": false,
           "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16,
           "num_key_value_heads": 16, "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_scaling": null,
           "rope_theta": 10000.0, "router_aux_loss_coef": 0.01, "tie_word_embeddings": false, "vocab_size": 50304})",
       {"router_aux_loss_coef 0.01 is not read: --aux sets the coefficient of the balance loss"}},
      {"llama4-scout",
       R"({"model_type": "llama4_text", "attention_bias": false, "attention_chunk_size": 8192, "attn_scale": 0.1,
           "attn_temperature_tuning": 4, "floor_scale": 8192, "head_dim": 128, "hidden_size": 5120,
           "interleave_moe_layer_step": 1, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
           "max_position_embeddings": 10485760, "no_rope_layers": [], "num_attention_heads": 40,
           "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16,
           "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
           "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
                            "original_max_position_embeddings": 8192, "rope_type": "llama3"},
           "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "tie_word_embeddings": false,
           "use_qk_norm": true, "vocab_size": 202048})",
       {"router_aux_loss_coef 0.001 is not read: --aux sets the coefficient of the balance loss"}},
      {"llama4-maverick",
       R"({"model_type": "llama4_text", "attention_bias": false, "attention_chunk_size": 8192, "attn_scale": 0.1,
           "attn_temperature_tuning": true, "floor_scale": 8192, "head_dim": 128, "hidden_size": 5120,
           "interleave_moe_layer_step": 2, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
           "max_position_embeddings": 1048576, "num_attention_heads": 40, "num_experts_per_tok": 1,
           "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 128,
           "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "rope_scaling": null,
           "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "tie_word_embeddings": false,
           "use_qk_norm": false, "vocab_size": 202048})",
       {"router_aux_loss_coef 0.001 is not read: --aux sets the coefficient of the balance loss"}},
  };
  for (const File& file : files) {
    INFO(file.preset);
    ModelConfig model = model_from_json(with(common, json::parse(file.keys)));
    CHECK(model.not_modelled == file.warnings);
    // A preset has no warnings and not always a number of positions.
    ModelConfig preset = find_model(file.preset);
    model.name = preset.name, model.not_modelled = {}, preset.max_positions = model.max_positions;
    CHECK(model_to_json(model) == model_to_json(preset));
  }
}

TEST_CASE("config.json: the number of experts is read under every name transformers accepts",
          "[models][moe]") {
  const std::map<std::string, Lines> names = {{"mixtral", {"num_local_experts", "num_experts"}},
                                              {"qwen3_moe", {"num_experts", "num_local_experts"}},
                                              {"olmoe", {"num_experts", "num_local_experts"}},
                                              {"deepseek_v2", {"n_routed_experts", "num_experts"}},
                                              {"deepseek_v3", {"n_routed_experts", "num_local_experts"}},
                                              {"llama4_text", {"num_local_experts"}}};
  for (const auto& [model_type, keys] : names)
    for (const std::string& key : keys) {
      INFO(model_type << " " << key);
      const json object = with(accepted(model_type), {{key, 16}});
      CHECK(model_from_json(object).moe.rule.experts == 16);
      CHECK(warnings_of(object) == warnings_of(accepted(model_type)));
      CHECK(config_refusal(with(object, {{key, 5000}})) == key + ": must be at most 4096, got 5000");
      json both = object;
      for (const std::string& other : keys) both[other] = 16;
      CHECK(model_from_json(both).moe.rule.experts == 16);
    }
  CHECK(config_refusal(with(accepted("qwen3_moe"), {{"num_experts", 128}, {"num_local_experts", 8}})) ==
        "num_experts 128 and num_local_experts 8: a qwen3_moe has both names for one number; leave one out");
  // A name that transformers does not accept for this model_type belongs to another one.
  CHECK(contains(
      config_refusal(with(accepted("llama4_text"), {{"num_experts", 4}, {"num_local_experts", 5000}})),
      "num_local_experts: must be at most 4096"));
  CHECK(model_from_json(with(accepted("llama4_text"), {{"num_experts", 4}})).moe.rule.experts == 16);
}

TEST_CASE("config.json: keys of other model_types are never ignored silently", "[models]") {
  using Families = std::set<std::string>;
  struct Key {
    json value;  ///< has an effect
    Families readers;
  };
  const Families moe = {"mixtral", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "llama4_text"};
  const Families deepseek = {"deepseek_v2", "deepseek_v3"}, llama4 = {"llama4_text"},
                 qwen3_moe = {"qwen3_moe"};
  const Families windows = {"qwen2", "qwen3", "smollm3", "qwen3_moe"};
  const std::map<std::string, Key> keys = {
      {"attention_bias",
       {true,
        {"llama", "qwen2", "qwen3", "smollm3", "granite", "olmo2", "phi3", "qwen3_moe", "olmoe",
         "deepseek_v2", "deepseek_v3", "llama4_text"}}},
      {"mlp_bias", {true, {"llama", "smollm3", "granite", "deepseek_v2"}}},
      {"pretraining_tp", {2, {"llama", "smollm3", "deepseek_v2", "deepseek_v3"}}},
      {"sliding_window",
       {64, {"mistral", "qwen2", "qwen3", "smollm3", "ministral3", "phi3", "mixtral", "qwen3_moe"}}},
      {"layer_types", {{"sliding_attention"}, {"qwen2", "qwen3", "smollm3", "llama4_text"}}},
      {"max_window_layers", {2, windows}},
      {"use_sliding_window", {true, windows}},
      {"num_experts_per_tok", {2, moe}},
      {"num_local_experts", {32, {"mixtral", "qwen3_moe", "olmoe", "deepseek_v3", "llama4_text"}}},
      {"num_experts", {32, {"mixtral", "qwen3_moe", "olmoe", "deepseek_v2"}}},
      {"output_router_logits", {true, moe}},
      {"router_aux_loss_coef", {0.01, moe}},
      {"router_jitter_noise", {0.1, {"mixtral", "llama4_text"}}},
      {"decoder_sparse_step", {2, qwen3_moe}},
      {"mlp_only_layers", {{1}, qwen3_moe}},
      {"moe_intermediate_size", {32, {"qwen3_moe", "deepseek_v2", "deepseek_v3"}}},
      {"norm_topk_prob", {true, {"mixtral", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3"}}},
      {"clip_qkv", {8.0, {"olmoe"}}},
      {"aux_loss_alpha", {0.001, deepseek}},
      {"seq_aux", {true, deepseek}},
      {"ep_size", {2, deepseek}},
      {"first_k_dense_replace", {1, deepseek}},
      {"moe_layer_freq", {2, deepseek}},
      {"n_group", {4, deepseek}},
      {"n_routed_experts", {16, deepseek}},
      {"n_shared_experts", {2, deepseek}},
      {"routed_scaling_factor", {2.0, deepseek}},
      {"scoring_func", {"other", deepseek}},
      {"topk_group", {1, deepseek}},
      {"topk_method", {"other", deepseek}},
      {"kv_lora_rank", {512, deepseek}},
      {"q_lora_rank", {512, deepseek}},
      {"qk_head_dim", {192, deepseek}},
      {"qk_nope_head_dim", {128, deepseek}},
      {"qk_rope_head_dim", {64, deepseek}},
      {"rope_interleave", {true, deepseek}},
      {"v_head_dim", {16, deepseek}},
      {"num_nextn_predict_layers", {1, {"deepseek_v3"}}},
      {"num_mtp_layers", {1, {"deepseek_v3"}}},
      {"attention_chunk_size", {64, llama4}},
      {"attn_temperature_tuning", {true, llama4}},
      {"attn_scale", {0.1, llama4}},
      {"floor_scale", {8192, llama4}},
      {"interleave_moe_layer_step", {2, llama4}},
      {"intermediate_size_mlp", {192, llama4}},
      {"moe_layers", {{1, 3}, llama4}},
      {"no_rope_layers", {{1, 1, 1, 0}, {"smollm3", "llama4_text"}}},
      {"no_rope_layer_interval", {4, {"smollm3", "llama4_text"}}},
      {"use_qk_norm", {true, {"qwen3", "qwen3_moe", "olmoe", "llama4_text"}}}};
  for (const char* model_type : kFamilies)
    for (const auto& [key, one] : keys) {
      INFO(model_type << " " << key);
      const json object = with(accepted(model_type), {{key, one.value}});
      const std::string error = config_refusal(object);
      const std::string said = error.empty() ? fmt::format("{}", fmt::join(warnings_of(object), "\n")) : "";
      if (one.readers.count(model_type)) {
        if (!error.empty()) CHECK(contains(error, key));
        CHECK_FALSE(contains(said, key + " (of "));
      } else {
        CHECK(error.empty());
        CHECK(contains(said, key + " (of "));
      }
    }
  for (const char* key :
       {"router_aux_loss_coef", "aux_loss_alpha", "num_nextn_predict_layers", "num_mtp_layers"})
    for (const std::string& model_type : keys.at(key).readers) {
      INFO(model_type << " " << key);
      CHECK(contains(fmt::format("{}", fmt::join(warnings_of(with(accepted(model_type), {{key, 1}})), "\n")),
                     std::string(key) + " 1 is "));
    }
}

TEST_CASE("config.json: keys of other model_types and router losses cause warnings", "[models][moe]") {
  CHECK(warnings_of(with(accepted("mixtral"), {{"n_shared_experts", 2},
                                               {"first_k_dense_replace", 1},
                                               {"use_qk_norm", true},
                                               {"kv_lora_rank", 512},
                                               {"attention_chunk_size", 64}})) ==
        Lines{"keys that a mixtral does not read were left out: attention_chunk_size (of llama4_text), "
              "first_k_dense_replace (of deepseek_v2), kv_lora_rank (of deepseek_v2), "
              "n_shared_experts (of deepseek_v2), use_qk_norm (of qwen3)"});
  CHECK(warnings_of(with(accepted("qwen3_moe"), {{"router_aux_loss_coef", 0.001}})) ==
        Lines{"router_aux_loss_coef 0.001 is not read: --aux sets the coefficient of the balance loss"});
  CHECK(warnings_of(with(accepted("qwen3_moe"), {{"router_aux_loss_coef", 0.0}})).empty());
  CHECK(
      warnings_of(with(accepted("llama"), {{"quantization_config", {{"quant_method", "fp8"}}}})) ==
      Lines{
          "quantization_config says how weights are stored, which --init-from reads: --recipe says what is quantized"});
  // Disabled windows and full-attention layers have no effect.
  CHECK(warnings_of(with(accepted("llama"), {{"sliding_window", 64}})) ==
        Lines{"keys that a llama does not read were left out: sliding_window (of mistral)"});
  CHECK(warnings_of(with(accepted("llama"), {{"sliding_window", 64},
                                             {"use_sliding_window", false},
                                             {"layer_types", {"full_attention"}}}))
            .empty());
}

TEST_CASE("config.json: all keys of another architecture are refused in one error", "[models]") {
  const std::map<std::string, json> asking = {{"attn_logit_softcapping", 50.0},
                                              {"final_logit_softcapping", 30.0},
                                              {"embedding_multiplier", 12.0},
                                              {"scale_emb", 12},
                                              {"residual_multiplier", 0.22},
                                              {"logits_scaling", 8.0},
                                              {"logit_scale", 0.0625},
                                              {"lm_head_multiplier", 0.04},
                                              {"key_multiplier", 0.4},
                                              {"attention_in_multiplier", 0.5},
                                              {"attention_out_multiplier", 0.9},
                                              {"mlp_multipliers", {0.9, 0.6}},
                                              {"attention_multiplier", 0.015625},
                                              {"query_pre_attn_scalar", 144},
                                              {"use_parallel_residual", true},
                                              {"parallel_attn", true},
                                              {"alibi", true},
                                              {"rotary_pct", 0.25},
                                              {"rotary_dim", 8},
                                              {"partial_rotary_factor", 0.5},
                                              {"hidden_act", "gelu"},
                                              {"hidden_activation", "gelu"},
                                              {"swiglu_limit", 7.0},
                                              {"scale_depth", 1.4},
                                              {"dim_model_base", 256},
                                              {"qkv_bias", true},
                                              {"num_shared_experts", 1}};
  json all = accepted("llama"), bare = all;
  for (const auto& [key, value] : asking) {
    INFO(key);
    const std::string error = config_refusal(with(bare, {{key, value}}));
    CHECK(error.starts_with(key + ": "));
    CHECK(contains(error, " is not supported; set it to "));
    CHECK(config_refusal(with(bare, {{key, nullptr}})).empty());
    all[key] = value;
  }
  const std::string error = config_refusal(all);
  for (const auto& [key, value] : asking) {
    INFO(key);
    CHECK(contains(error, key + ": "));
    CHECK(contains(error, key + " to "));
  }
  CHECK(
      config_refusal(with(bare, {{"embedding_multiplier", 12.0}, {"residual_multiplier", 0.22}})) ==
      "embedding_multiplier: a multiplier of embeddings; residual_multiplier: a multiplier of residual branches: "
      "none of these is supported; set embedding_multiplier to 1, residual_multiplier to 1 to measure the model "
      "without");
}

TEST_CASE("config.json: keys with neutral values are accepted silently", "[models]") {
  CHECK(warnings_of(with(accepted("llama"), {{"attn_logit_softcapping", nullptr},
                                             {"final_logit_softcapping", 0.0},
                                             {"embedding_multiplier", 1.0},
                                             {"logits_scaling", 1},
                                             {"attention_multiplier", 0.25},
                                             {"query_pre_attn_scalar", 16},
                                             {"rotary_dim", 16},
                                             {"scale_depth", 2.0},
                                             {"dim_model_base", 64},
                                             {"use_parallel_residual", false},
                                             {"rotary_pct", 1.0}}))
            .empty());
  CHECK(warnings_of(with(accepted("qwen2"), {{"qkv_bias", true}})).empty());
  CHECK(warnings_of(with(accepted("qwen3_moe"), {{"use_qk_norm", true}, {"qkv_bias", false}})).empty());
}

TEST_CASE("config.json: a router or norm that contradicts model_type is refused", "[models][moe]") {
  CHECK(contains(config_refusal(with(accepted("mixtral"), {{"norm_topk_prob", false}})), "norm_topk_prob: "));
  for (const char* model_type : {"qwen3", "qwen3_moe", "olmoe"})
    CHECK(contains(config_refusal(with(accepted(model_type), {{"use_qk_norm", false}})), "use_qk_norm: "));
  CHECK(config_refusal(with(accepted("qwen3"), {{"layer_types", {"full_attention", "linear_attention"}}})) ==
        "layer_types: \"linear_attention\" is not supported; set it to null to measure the model without");
}

TEST_CASE("config.json: latent attention of DeepSeek", "[models][moe]") {
  json v3 = {{"model_type", "deepseek_v3"},
             {"hidden_size", 7168},
             {"intermediate_size", 18432},
             {"moe_intermediate_size", 2048},
             {"num_hidden_layers", 61},
             {"num_attention_heads", 128},
             {"num_key_value_heads", 128},
             {"n_routed_experts", 256},
             {"vocab_size", 129280},
             {"max_position_embeddings", 163840},
             {"rope_scaling",
              {{"type", "yarn"},
               {"factor", 40},
               {"mscale", 1.0},
               {"mscale_all_dim", 1.0},
               {"original_max_position_embeddings", 4096},
               {"beta_fast", 32},
               {"beta_slow", 1}}}};
  const auto named = [](json object, const char* name) {
    ModelConfig model = model_from_json(object);
    model.name = name;
    model.not_modelled = {};
    return model;
  };
  CHECK(named(v3, "deepseek-v3") == find_model("deepseek-v3"));
  // Widths that the model_type has by default; transformers 5 writes the width of the RoPE part as head_dim.
  const json widths = {{"kv_lora_rank", 512},    {"q_lora_rank", 1536},    {"qk_nope_head_dim", 128},
                       {"qk_rope_head_dim", 64}, {"v_head_dim", 128},      {"qk_head_dim", 192},
                       {"head_dim", 64},         {"rope_interleave", true}};
  CHECK(named(with(v3, widths), "deepseek-v3") == find_model("deepseek-v3"));
  CHECK(warnings_of(with(v3, {{"num_nextn_predict_layers", 1}})) ==
        Lines{"num_nextn_predict_layers 1 is left out: no multi-token prediction"});
  json k2 = with(v3, {{"model_type", "kimi_k2"},
                      {"num_attention_heads", 64},
                      {"num_key_value_heads", 64},
                      {"n_routed_experts", 384},
                      {"n_group", 1},
                      {"topk_group", 1},
                      {"vocab_size", 163840},
                      {"first_k_dense_replace", 1},
                      {"routed_scaling_factor", 2.827},
                      {"rope_theta", 50000.0},
                      {"max_position_embeddings", 131072}});
  k2["rope_scaling"]["factor"] = 32;
  k2["rope_scaling"]["beta_fast"] = 1.0;
  CHECK(named(k2, "kimi-k2") == find_model("kimi-k2"));
  k2["rope_scaling"]["factor"] = 64.0;
  k2["max_position_embeddings"] = 262144;
  CHECK(named(k2, "kimi-k2-0905") == find_model("Kimi-K2-Thinking"));
  CHECK(model_from_json(with(v3, {{"rope_interleave", false}})).block.rope_pairs == RopePairs::halves);
  const ModelConfig direct = model_from_json(with(v3, {{"q_lora_rank", nullptr}}));
  CHECK(block_of(direct, 0).linears.front().parts.front().name == "self_attn.q_proj.weight");
  CHECK(model_from_json(model_to_json(direct)).latent == direct.latent);
  CHECK(config_refusal(with(v3, {{"kv_lora_rank", nullptr}})) ==
        "kv_lora_rank: null, but a deepseek_v3 has latent attention (MLA)");
  CHECK(config_refusal(with(v3, {{"kv_lora_rank", 0}})) == "kv_lora_rank: must be from 1 to 16777216, got 0");
  CHECK(config_refusal(with(v3, {{"qk_rope_head_dim", 63}})) ==
        "qk_rope_head_dim: 63 is odd; RoPE rotates pairs");
  CHECK(config_refusal(with(v3, {{"num_key_value_heads", 8}})) ==
        "num_key_value_heads: 8, but latent attention has a key for each of 128 heads");
  CHECK(
      contains(config_refusal(with(v3, {{"attention_bias", true}})), "attention_bias: a bias in attention"));
}

TEST_CASE("own keys: latent attention is refused with what it lacks", "[models]") {
  json model = {{"layers", 2},        {"width", 64},           {"ffn", 96},
                {"heads", 4},         {"head_dim", 24},        {"vocab", 96},
                {"kv_lora_rank", 16}, {"qk_rope_head_dim", 8}, {"v_head_dim", 16}};
  CHECK(config_refusal(model).empty());
  CHECK(model_from_json(model_to_json(model_from_json(model))) == model_from_json(model));
  for (const char* key : {"kv_lora_rank", "qk_rope_head_dim", "v_head_dim"}) {
    json without = model;
    without.erase(key);
    CHECK(config_refusal(without) == std::string(key) + ": missing; latent attention needs it");
  }
  for (const char* key : {"qk_norm", "qkv_bias", "o_bias"})
    CHECK(config_refusal(with(model, {{key, true}})) ==
          std::string(key) + ": not supported together with latent attention");
  CHECK(contains(config_refusal(with(model, {{"qk_rope_head_dim", 24}})), "leaves no elements without RoPE"));
}
TEST_CASE("config.json: unsupported RoPE types are refused and dynamic RoPE limits the length", "[models]") {
  CHECK(config_refusal(with(accepted("llama"), {{"rope_scaling", {{"type", "ntk"}, {"factor", 2.0}}}})) ==
        "type: RoPE of type \"ntk\" is not supported; set it to \"default\" to measure the model without");
  CHECK(contains(
      config_refusal(with(accepted("llama"), {{"rope_parameters", {{"rope_type", "proportional"}}}})),
      "rope_type: RoPE of type \"proportional\""));
  const json dynamic = with(accepted("llama"), {{"max_position_embeddings", 4096},
                                                {"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}});
  const ModelConfig model = model_from_json(dynamic);
  CHECK(model.dynamic_rope);
  CHECK(model.max_positions == 4096);
  CHECK(model.rope_scaling == RopeScaling{});
  CHECK(model.not_modelled == Lines{"rope_scaling \"dynamic\" is not applied: longer sequences than 4096 "
                                    "(max_position_embeddings) are unsupported"});
  // Up to that length it is plain RoPE, and so is the definition that the id hashes.
  CHECK(model_to_json(model) ==
        model_to_json(model_from_json(with(accepted("llama"), {{"max_position_embeddings", 4096}}))));
}

TEST_CASE("config.json: an absent or empty model_type is reported as missing", "[models]") {
  json object = accepted("llama");
  object.erase("model_type");
  for (const json& value : {json("absent"), json(), json("")}) {
    json changed = object;
    if (value != "absent") changed["model_type"] = value;
    CHECK(config_refusal(changed).starts_with("model_type: missing; known: llama, mistral, qwen2, "));
  }
}

TEST_CASE("config.json: use_sliding_window applies to every layer of Qwen3-MoE", "[models][moe]") {
  const json window = {{"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 28}};
  CHECK(model_from_json(with(accepted("qwen3_moe"), window)).sliding_window == 64);
  // Its 4 layers are among the 28 without.
  CHECK(model_from_json(with(accepted("qwen2"), window)).sliding_window == 0);
}

TEST_CASE("find_model: a byte order mark and Python constants in unread keys are accepted", "[models]") {
  const TempDirectory folder;
  const std::string text = accepted("llama").dump();
  CHECK(find_model(folder.write("mark.json", "\xEF\xBB\xBF" + text)).layers == 4);
  const auto with_text = [&](const std::string& member) {
    return folder.write("python.json", "{" + member + "," + text.substr(1));
  };
  CHECK(find_model(with_text(R"("time_step_limit": [0.0, Infinity])")).not_modelled ==
        Lines{"keys that are not known here were left out: time_step_limit"});
  const std::string path = with_text(R"("initializer_range": NaN)");
  CHECK(refusal_of([&] { find_model(path); }) == path + ": initializer_range: expected a number, got NaN");
  with_text(R"("rope_theta": -Infinity)");
  CHECK(refusal_of([&] { find_model(path); }) == path + ": rope_theta: expected a number, got -Infinity");
  with_text("\n\"rope_theta\": nan");
  CHECK(refusal_of([&] { find_model(path); }) == path + ": not valid JSON in line 2, column 16");
  const std::string wide = folder.write("wide.json", std::string("\xFF\xFE{\0}\0", 6));
  CHECK(refusal_of([&] { find_model(wide); }) ==
        wide + ": not valid JSON: the file is UTF-16; save it as UTF-8");
}

TEST_CASE("find_model: config.json is named after its cache repository or its folder", "[models]") {
  const TempDirectory folder;
  const std::string text = accepted("llama").dump();
  const auto name_of = [&](const std::string& path) { return find_model(folder.write(path, text)).name; };
  const std::string snapshot = "snapshots/0123456789abcdef0123456789abcdef01234567/config.json";
  CHECK(name_of("hub/models--meta-llama--Llama-3.2-1B/" + snapshot) == "Llama-3.2-1B");
  CHECK(name_of("hub/models--gpt2/" + snapshot) == "gpt2");
  CHECK(name_of("other/" + snapshot) == "0123456789abcdef0123456789abcdef01234567");
  CHECK(name_of("here/./config.json") == "here");
  CHECK(name_of("here/more/../config.json") == "here");
}

TEST_CASE("config.json: a Llama 4 without experts is refused with the reason", "[models]") {
  json guard = accepted("llama4_text");
  guard["num_local_experts"] = 0;
  guard["moe_layers"] = json::array();
  CHECK(refusal_of([&] { model_from_json(guard); }) ==
        "num_local_experts: 0 is a Llama 4 without experts (Llama Guard 4), all of whose layers have "
        "intermediate_size_mlp, which is not supported");
}

TEST_CASE("find_model: a folder with a config.json is a model", "[models]") {
  const TempDirectory folder;
  const auto refusal = [](const std::string& name) { return refusal_of([&] { find_model(name); }); };
  const std::string config = folder.write("mine/config.json", accepted("llama").dump());
  CHECK(find_model(folder / "mine") == find_model(config));
  CHECK(find_model(folder / "mine/").name == "mine");
  const std::string weights = folder.write("mine/model.safetensors", "");
  CHECK(refusal(weights) ==
        weights + ": the name of a model's file ends in .json; did you mean " + config + "?");
  const std::string cached = folder.write("models--a--b/snapshots/01/config.json", accepted("llama").dump());
  CHECK(find_model(folder / "models--a--b").name == "b");
  const std::string second = folder.write("models--a--b/snapshots/02/config.json", "{}");
  CHECK(refusal(folder / "models--a--b") ==
        folder / "models--a--b" + ": has several snapshots; give one of " + cached + ", " + second);
  CHECK(refusal(folder / ".") ==
        folder / "." + ": a folder without a config.json; a model is a preset or a .json file");
}

}  // namespace
}  // namespace precbench
