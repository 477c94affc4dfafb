// MoE models: presets against published counts, our own keys, and config.json with its refusals.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "models/config/block.h"
#include "models/config/config.h"
#include "models/config/hugging_face_testing.h"

namespace precbench {
namespace {

using testing::config_refusal, testing::small_config_json;

using nlohmann::json;

json small_moe() {
  return json::parse(R"({"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "vocab": 96,
                         "experts": 8, "top_k": 2, "expert_ffn": 32})");
}

std::string moe_error_with(const char* key, const json& value) {
  json object = small_moe();
  object[key] = value;
  return config_refusal(object);
}

json deepseek_v3() {
  return small_config_json("deepseek_v3", 4,
                           {{"num_key_value_heads", 4},
                            {"n_routed_experts", 16},
                            {"num_experts_per_tok", 4},
                            {"moe_intermediate_size", 32},
                            {"n_shared_experts", 2},
                            {"first_k_dense_replace", 1}});
}

json llama4() { return small_config_json("llama4_text", 4, {{"num_local_experts", 4}}); }

}  // namespace

TEST_CASE("parameter_count: MoE presets have the published total and active parameters", "[models][moe]") {
  struct Count {
    double total, active;  // billions
  };
  const std::map<std::string, Count> published = {
      {"qwen3-30b-a3b", {30.532, 3.353}},    {"qwen3-235b-a22b", {235.094, 22.191}},
      {"mixtral-8x7b", {46.703, 12.880}},    {"deepseek-v2-lite-gqa", {15.788, 2.743}},
      {"llama4-scout", {107.770, 17.173}},   {"moe-4b-a1b", {3.653, 1.237}},
      {"deepseek-v2-lite", {15.706, 2.661}}, {"olmoe-1b-7b", {6.919, 1.282}}};
  for (const auto& [name, count] : published) {
    INFO(name);
    const ModelConfig model = find_model(name);
    CHECK(std::round(static_cast<double>(parameter_count(model)) / 1e6) == std::round(count.total * 1e3));
    CHECK(std::round(static_cast<double>(active_parameter_count(model)) / 1e6) ==
          std::round(count.active * 1e3));
  }
  // Exact: the index files of Qwen3 and Mixtral give the number of bytes of their BF16 tensors.
  CHECK(parameter_count(find_model("qwen3-30b-a3b")) == 30'532'122'624);
  CHECK(parameter_count(find_model("qwen3-235b-a22b")) == 235'093'634'560);
  CHECK(parameter_count(find_model("mixtral-8x7b")) == 46'702'792'704);
  // The library's Llama4ForCausalLM without tensors.
  CHECK(parameter_count(find_model("llama4-scout")) == 107'769'861'120);
  CHECK(parameter_count(find_model("llama4-maverick")) == 400'711'848'960);
  // DeepSeek-V3: 671 billion, including the routers' biases, which no optimizer updates.
  const ModelConfig v3 = find_model("deepseek-v3");
  const std::int64_t biases = (v3.layers - v3.moe.dense_layers) * v3.moe.rule.experts;
  CHECK(parameter_count(v3) + biases == 671'026'419'200);
  for (const auto& [name, total, active] :
       {std::tuple{"tiny-moe", 1.8e6, 0.6e6}, {"tiny-moe-shared", 2.0e6, 0.8e6}}) {
    INFO(name);
    const ModelConfig model = find_model(name);
    CHECK(std::abs(static_cast<double>(parameter_count(model)) - total) < 0.05e6);
    CHECK(std::abs(static_cast<double>(active_parameter_count(model)) - active) < 0.05e6);
    for (std::int64_t size : {model.width, model.moe.expert_ffn, model.q_width(), model.vocab})
      CHECK(size % 128 == 0);
  }
  // gpt-oss's model card: 20.91 and 116.83 billion, of which 3.61 and 5.13 are active without the embedding.
  for (const auto& [name, total, active] :
       {std::tuple{"gpt-oss-20b", 20.91, 3.61}, {"gpt-oss-120b", 116.83, 5.13}}) {
    INFO(name);
    const ModelConfig model = find_model(name);
    CHECK(std::round(static_cast<double>(parameter_count(model)) / 1e7) == std::round(total * 100));
    CHECK(std::round(static_cast<double>(active_parameter_count(model) - model.vocab * model.width) / 1e7) ==
          std::round(active * 100));
  }
  // In a dense model every parameter is active.
  const ModelConfig dense = find_model("llama3.1-8b");
  CHECK(active_parameter_count(dense) == parameter_count(dense));
}

TEST_CASE("model_from_json: gpt-oss as published and with the defaults of its model_type", "[models][moe]") {
  for (const auto& [name, layers, experts] : {std::tuple{"gpt-oss-20b", 24, 32}, {"gpt-oss-120b", 36, 128}}) {
    INFO(name);
    json types = json::array();
    for (int layer = 0; layer < layers; ++layer)
      types.push_back(layer % 2 == 0 ? "sliding_attention" : "full_attention");
    const json published = {{"model_type", "gpt_oss"},
                            {"num_hidden_layers", layers},
                            {"hidden_size", 2880},
                            {"intermediate_size", 2880},
                            {"num_attention_heads", 64},
                            {"num_key_value_heads", 8},
                            {"head_dim", 64},
                            {"vocab_size", 201088},
                            {"num_local_experts", experts},
                            {"num_experts_per_tok", 4},
                            {"experts_per_token", 4},
                            {"initial_context_length", 4096},
                            {"layer_types", types},
                            {"attention_bias", true},
                            {"rms_norm_eps", 1e-5},
                            {"rope_theta", 150000},
                            {"rope_scaling",
                             {{"beta_fast", 32.0},
                              {"beta_slow", 1.0},
                              {"factor", 32.0},
                              {"original_max_position_embeddings", 4096},
                              {"rope_type", "yarn"},
                              {"truncate", false}}},
                            {"sliding_window", 128},
                            {"swiglu_limit", 7.0},
                            {"tie_word_embeddings", false}};
    ModelConfig model = model_from_json(published);
    CHECK(model.not_modelled.empty());
    model.name = name;
    CHECK((model == find_model(name)));
    ModelConfig again = model_from_json(model_to_json(model));
    CHECK((again == model));
    json short_file = {
        {"model_type", "gpt_oss"}, {"num_hidden_layers", layers}, {"num_local_experts", experts}};
    ModelConfig by_default = model_from_json(short_file);
    by_default.name = name;
    CHECK((by_default == model));
  }
  CHECK(model_from_json(small_config_json("gpt_oss", 4, {{"sliding_window", nullptr}})).sliding_window == 0);
  CHECK(
      contains(config_refusal(small_config_json("gpt_oss", 4, {{"swiglu_limit", -1.0}})), "swiglu_limit: "));
  CHECK(contains(
      config_refusal(small_config_json("gpt_oss", 4, {{"num_experts_per_tok", 4}, {"experts_per_token", 3}})),
      "experts_per_token 3"));
}

TEST_CASE("cut_to: name and cuts of a model record the remaining layers", "[models][moe]") {
  const ModelConfig cut = cut_to(find_model("qwen3-30b-a3b"), 6);
  CHECK(cut.layers == 6);
  CHECK(cut.name == "qwen3-30b-a3b-6-layers");
  CHECK(cut.cuts == "6 of 48 layers");
  CHECK(model_from_json(json::parse(model_to_json(cut).dump())) == cut);
  CHECK(cut_to(find_model("tiny"), 0) == find_model("tiny"));
  CHECK(contains(cut_to(find_model("deepseek-v2-lite-gqa"), 3).cuts, "(MLA), no YaRN; 3 of 27 layers"));
  CHECK(refusal_of([] { cut_to(find_model("tiny"), 5); }) == "tiny has 4 layers, not 5");
  CHECK(contains(refusal_of([] { cut_to(find_model("deepseek-v2-lite-gqa"), 1); }),
                 "deepseek-v2-lite-gqa begins with 1 layer without experts"));
}

TEST_CASE("model_from_json: own MoE keys have defaults and survive a round trip", "[models][moe]") {
  const ModelConfig model = model_from_json(small_moe());
  CHECK(model.moe.rule == RoutingRule{.experts = 8, .top_k = 2});
  CHECK(model.moe.expert_ffn == 32);
  CHECK(model.ffn == 32);  // no block is dense
  CHECK(model.has_experts(0));
  json all = small_moe();
  all.update(
      json::parse(R"({"ffn": 96, "shared_ffn": 64, "dense_layers": 1, "score": "sigmoid", "normalise": false,
      "route_scale": 2.5, "route_bias": true, "groups": 4, "group_top_k": 2, "group_score": "top2",
      "weight_at": "input", "expert_names": "mixtral"})"));
  const ModelConfig other = model_from_json(all);
  CHECK(other.ffn == 96);
  CHECK_FALSE(other.has_experts(0));
  CHECK(other.has_experts(1));
  CHECK(other.moe.rule.group_score == GroupScore::top2);
  CHECK(other.moe.weight_at == WeightAt::input);
  CHECK(model_from_json(json::parse(model_to_json(other).dump())) == other);
  // A dense model has no MoE keys, because its ids hash the JSON.
  CHECK_FALSE(model_to_json(find_model("tiny")).contains("experts"));
  CHECK_FALSE(model_to_json(find_model("tiny")).contains("cuts"));
}

TEST_CASE("model_from_json: a wrong MoE key is refused by name", "[models][moe]") {
  REQUIRE(config_refusal(small_moe()).empty());
  CHECK(contains(moe_error_with("top_k", 9), "top_k: must be from 1 to the 8 experts, got 9"));
  CHECK(contains(moe_error_with("top_k", 0), "top_k: must be from 1 to the 8 experts, got 0"));
  CHECK(contains(moe_error_with("experts", 5000), "experts: must be at most 4096"));
  CHECK(contains(moe_error_with("expert_ffn", 0), "expert_ffn: missing"));
  CHECK(contains(moe_error_with("dense_layers", 2), "dense_layers: 2 of 2 layers leave none with experts"));
  for (const char* key : {"qkv_bias", "qk_norm"}) {
    json named = small_moe();
    named[key] = true;
    CHECK(config_refusal(named).empty());
    named["expert_names"] = "llama4";
    CHECK(config_refusal(named) ==
          std::string(key) + ": not of a model with Llama 4's names of tensors (expert_names)");
  }
  CHECK(contains(moe_error_with("score", "tanh"), "score: \"tanh\" is neither softmax nor sigmoid"));
  CHECK(contains(moe_error_with("groups", 3), "groups: 3 do not divide 8 experts"));
  CHECK(contains(moe_error_with("groups", 4), "top_k: 2 experts are more") == false);
  CHECK(contains(moe_error_with("groups", 8), "top_k: 2 experts are more than 1 groups of 1 have"));
  CHECK(contains(moe_error_with("group_top_k", 2), "group_top_k: must be from 1 to the 1 groups"));
  CHECK(contains(moe_error_with("route_scale", 0), "route_scale: must be a positive number"));
  CHECK(contains(moe_error_with("expert", 8), "expert: unknown key; did you mean experts?"));
  json without = small_moe();
  without.erase("experts");
  without["ffn"] = 64;
  CHECK(contains(config_refusal(without),
                 "experts: missing, but the model has other keys of a mixture of experts"));
}

TEST_CASE("model_from_json: config.json of every MoE model_type is read", "[models][moe]") {
  const ModelConfig mixtral = model_from_json(
      small_config_json("mixtral", 4, {{"num_local_experts", 4}, {"num_experts_per_tok", 3}}));
  CHECK(mixtral.moe.rule == RoutingRule{.experts = 4, .top_k = 3});
  CHECK(mixtral.moe.expert_ffn == 96);
  CHECK(mixtral.moe.names == ExpertNames::mixtral);
  CHECK(mixtral.rope_theta == 1e6);
  CHECK(block_of(mixtral, 0).linears[3].parts[1].name == "block_sparse_moe.experts.0.w3.weight");

  const ModelConfig qwen3 = model_from_json(small_config_json(
      "qwen3_moe", 4, {{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 48}}));
  CHECK_FALSE(qwen3.moe.rule.normalise);  // default of an absent norm_topk_prob
  CHECK(qwen3.moe.expert_ffn == 48);
  CHECK(qwen3.qk_norm);
  CHECK(qwen3.not_modelled.empty());
  CHECK(block_of(qwen3, 0).linears[3].parts[2].name == "mlp.experts.1.gate_proj.weight");

  const ModelConfig olmoe =
      model_from_json(small_config_json("olmoe", 4, {{"num_experts", 16}, {"clip_qkv", nullptr}}));
  CHECK(olmoe.moe.rule == RoutingRule{.experts = 16, .top_k = 8, .normalise = false});
  CHECK(olmoe.moe.expert_ffn == 96);
  CHECK(olmoe.norms_all_heads());
  CHECK(block_of(olmoe, 0).vectors[2].size() == 64);
  CHECK(block_of(olmoe, 0).vectors[3].size() == 32);
  CHECK(olmoe.not_modelled.empty());
  CHECK(block_of(olmoe, 0).linears[3].parts[2].name == "mlp.experts.1.gate_proj.weight");
  CHECK(model_from_json(model_to_json(olmoe)) == olmoe);

  const ModelConfig v3 = model_from_json(deepseek_v3());
  CHECK(v3.moe.rule == RoutingRule{.experts = 16,
                                   .top_k = 4,
                                   .score = RouterScore::sigmoid,
                                   .normalise = true,
                                   .scale = 2.5,
                                   .groups = 8,
                                   .group_top_k = 4,
                                   .group_score = GroupScore::top2});
  CHECK(v3.moe.route_bias);
  CHECK(v3.moe.shared_ffn == 64);
  CHECK(v3.moe.dense_layers == 1);
  CHECK(v3.ffn == 96);

  const ModelConfig v2 = model_from_json(small_config_json(
      "deepseek_v2", 4,
      {{"num_key_value_heads", 4}, {"moe_intermediate_size", 32}, {"routed_scaling_factor", 16.0}}));
  CHECK(v2.moe.rule == RoutingRule{.experts = 64, .top_k = 6, .normalise = false, .scale = 16});

  const ModelConfig scout = model_from_json(llama4());
  CHECK(scout.moe.weight_at == WeightAt::input);
  CHECK(scout.moe.names == ExpertNames::llama4);
  CHECK(scout.moe.rule.top_k == 1);
  CHECK(scout.moe.shared_ffn == 96);
  CHECK(scout.moe.in_all_layers());
  CHECK(scout.ffn == 96);
}

TEST_CASE("model_from_json: attention of Llama 4 by its config.json", "[models][moe]") {
  const auto with = [](const json& more) {
    json object = llama4();
    object.update(more);
    return model_from_json(object);
  };
  const ModelConfig scout = with(json::object());  // the defaults of transformers
  const std::int64_t layers = scout.layers;
  REQUIRE(layers == 4);
  CHECK(scout.block.layers_without_rope == std::vector<std::int64_t>{3});
  CHECK(scout.block.unit_queries_and_keys);
  CHECK((scout.norms_queries_and_keys(0) && !scout.norms_queries_and_keys(3)));
  CHECK((scout.block.temperature == 0.1 && scout.block.temperature_positions == 8192));
  CHECK(scout.unchunked_positions == 8192);
  CHECK(model_from_json(json::parse(model_to_json(scout).dump())) == scout);
  // Published files have an empty list of layers, and 4 for true.
  CHECK(with({{"no_rope_layers", json::array()}, {"attn_temperature_tuning", 4}}) == scout);

  CHECK_FALSE(with({{"use_qk_norm", false}}).block.unit_queries_and_keys);
  CHECK(with({{"attention_chunk_size", nullptr}}).unchunked_positions == 0);
  CHECK(with({{"attention_chunk_size", 64}}).unchunked_positions == 64);
  const json full = json(std::vector<std::string>(4, "full_attention"));
  CHECK(with({{"layer_types", full}}).unchunked_positions == 0);
  json mixed = full;
  mixed[1] = "chunked_attention";
  CHECK(with({{"layer_types", mixed}}).unchunked_positions == 8192);
  for (const ModelConfig& plain : {with({{"attn_temperature_tuning", false}}), with({{"attn_scale", 0.0}}),
                                   with({{"no_rope_layers", {1, 1, 1, 1}}}), cut_to(scout, 3)}) {
    CHECK(plain.block.temperature == 0);
    CHECK(plain.block.temperature_positions == 0);
  }
  const ModelConfig without =
      with({{"no_rope_layers", {0, 0, 0, 0}}, {"floor_scale", 100}, {"attn_scale", 0.5}});
  CHECK(without.unchunked_positions == 0);
  CHECK((without.block.temperature == 0.5 && without.block.temperature_positions == 100));

  const auto error_having = [](const char* key, const json& value) {
    json object = llama4();
    object[key] = value;
    return config_refusal(object);
  };
  CHECK(error_having("no_rope_layers", {1, 2, 1, 1}) == "no_rope_layers: 2 is neither 0 nor 1");
  CHECK(
      contains(error_having("no_rope_layers", {1}), "no_rope_layers: expected 0 or 1 for each of 4 layers"));
  CHECK(contains(error_having("layer_types", {"full_attention"}),
                 "layer_types: expected the type of each of 4"));
  CHECK(contains(error_having("layer_types", std::vector<std::string>(4, "sliding_attention")),
                 "layer_types: \"sliding_attention\" is neither chunked_attention nor full_attention"));
  CHECK(contains(error_having("attn_scale", -1.0), "attn_scale: must be a positive number"));
  CHECK(contains(error_having("floor_scale", 0), "floor_scale: "));
  CHECK(contains(error_having("rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}),
                 "use_qk_norm: not supported together with a factor"));
  CHECK(contains(error_having("attention_chunk_size", 0), "attention_chunk_size: "));
}

TEST_CASE("model_from_json: experts in every second layer of Llama 4", "[models][moe]") {
  json object = llama4();
  object.update({{"interleave_moe_layer_step", 2}, {"intermediate_size_mlp", 160}});
  const ModelConfig model = model_from_json(object);
  CHECK((model.ffn == 160 && model.moe.expert_ffn == 96));
  CHECK(model.layers_with_experts() == std::vector<std::int64_t>{1, 3});
  CHECK(model.layer_of_each_kind() == std::vector<std::int64_t>{0, 1});
  CHECK(model_from_json(json::parse(model_to_json(model).dump())) == model);
  CHECK(contains(refusal_of([&] { cut_to(model, 1); }), "begins with 1 layer without experts"));
  CHECK(cut_to(model, 3).layers_with_experts() == std::vector<std::int64_t>{1});
  // Two blocks of each kind.
  ModelConfig one = cut_to(model, 2), dense = one;
  dense.moe = {};
  const std::int64_t attention_and_edges = parameter_count(dense) - 2 * 3 * 160 * model.width;
  const std::int64_t experts = (4 + 1) * 3 * 96 * model.width + 4 * model.width;
  CHECK(parameter_count(one) == attention_and_edges + 3 * 160 * model.width + experts);

  object["moe_layers"] = {1, 3};
  CHECK(model_from_json(object) == model);
  object["moe_layers"] = {0, 3};
  CHECK(contains(config_refusal(object), "moe_layers: [0,3]: only every n-th layer"));
  object.erase("moe_layers");
  object["interleave_moe_layer_step"] = 5;
  CHECK(config_refusal(object) == "interleave_moe_layer_step: 5 leaves none of 4 layers with experts");
  json own = small_moe();
  own["layer_interval"] = 2;
  own["ffn"] = 64;
  CHECK(model_from_json(own).layers_with_experts() == std::vector<std::int64_t>{1});
  own["layer_interval"] = 0;
  CHECK(contains(config_refusal(own), "layer_interval: "));
}

TEST_CASE("model_from_json: errors of a MoE config.json use the file's own keys", "[models][moe]") {
  const auto error_of_type = [](const char* model_type, const json& more) {
    return config_refusal(small_config_json(model_type, 4, more));
  };
  CHECK(error_of_type("qwen3_moe", {{"num_experts", 8}, {"num_experts_per_tok", 9}}) ==
        "num_experts_per_tok: must be from 1 to the 8 experts, got 9");
  CHECK(error_of_type("mixtral", {{"num_local_experts", 2}, {"num_experts_per_tok", 3}}) ==
        "num_experts_per_tok: must be from 1 to the 2 experts, got 3");
  CHECK(error_of_type("qwen3_moe", {{"num_experts", 5000}}) == "num_experts: must be at most 4096, got 5000");
  CHECK(error_of_type("mixtral", {{"num_local_experts", 5000}}) ==
        "num_local_experts: must be at most 4096, got 5000");
  CHECK(contains(error_of_type("qwen3_moe", {{"moe_intermediate_size", 0}}), "moe_intermediate_size: "));
  for (const char* model_type : {"mixtral", "llama4_text"}) {
    INFO(model_type);
    json object = std::string(model_type) == "mixtral" ? small_config_json("mixtral", 4) : llama4();
    object.erase("intermediate_size");
    CHECK(config_refusal(object) == "intermediate_size: missing; a mixture of experts needs it");
  }
  const auto error_of_v3 = [](const char* key, const json& value) {
    json object = deepseek_v3();
    object[key] = value;
    return config_refusal(object);
  };
  CHECK(error_of_v3("n_routed_experts", 5000) == "n_routed_experts: must be at most 4096, got 5000");
  CHECK(error_of_v3("num_experts_per_tok", 17) ==
        "num_experts_per_tok: must be from 1 to the 16 experts, got 17");
  CHECK(error_of_v3("num_experts_per_tok", 9) ==
        "num_experts_per_tok: 9 experts are more than 4 groups of 2 have");
  CHECK(error_of_v3("first_k_dense_replace", 4) ==
        "first_k_dense_replace: 4 of 4 layers leave none with experts");
  CHECK(error_of_v3("n_group", 3) == "n_group: 3 do not divide 16 experts");
  CHECK(error_of_v3("n_group", 16) == "n_group: top2 needs groups of two experts and more");
  CHECK(error_of_v3("topk_group", 9) == "topk_group: must be from 1 to the 8 groups, got 9");
  CHECK(
      contains(error_of_v3("routed_scaling_factor", 0), "routed_scaling_factor: must be a positive number"));
  CHECK(error_of_v3("num_key_value_heads", 3) ==
        "num_attention_heads: 4 is not a multiple of num_key_value_heads 3");
  CHECK(contains(error_of_v3("rms_norm_eps", 0), "rms_norm_eps: must be a positive number"));
  json no_head_dim = small_config_json("mixtral", 4, {{"hidden_size", 66}});
  no_head_dim.erase("head_dim");
  CHECK(config_refusal(no_head_dim) ==
        "head_dim: missing, and hidden_size 66 is not a multiple of num_attention_heads 4");
  CHECK(contains(
      error_of_type("qwen3_moe",
                    {{"num_experts", 4096}, {"moe_intermediate_size", 1 << 24}, {"hidden_size", 1 << 24}}),
      "num_hidden_layers, hidden_size, intermediate_size, num_experts: "));
}

TEST_CASE("model_from_json: unsupported MoE settings of config.json are refused by key", "[models][moe]") {
  const auto error_having = [](json object, const char* key, const json& value) {
    object[key] = value;
    return config_refusal(object);
  };
  REQUIRE(config_refusal(deepseek_v3()).empty());
  REQUIRE(config_refusal(llama4()).empty());
  CHECK(contains(error_having(deepseek_v3(), "moe_layer_freq", 2), "moe_layer_freq: "));
  CHECK(contains(error_having(deepseek_v3(), "scoring_func", "softmax"), "scoring_func: another score"));
  CHECK(error_having(deepseek_v3(), "scoring_func", "sigmoid").empty());
  CHECK(contains(error_having(deepseek_v3(), "topk_method", "greedy"), "topk_method: "));
  const json qwen3 = small_config_json("qwen3_moe", 4);
  CHECK(contains(error_having(qwen3, "mlp_only_layers", {1}), "mlp_only_layers: "));
  CHECK(contains(error_having(small_config_json("gpt_oss", 4), "swiglu_alpha", 1.0), "swiglu_alpha: "));
  CHECK(contains(error_having(small_config_json("olmoe", 4), "clip_qkv", 8.0), "clip_qkv: "));
}

}  // namespace precbench
