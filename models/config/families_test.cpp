// Rows of families: files of all of them against golden results, names of parameters, and that the rows are complete.
#include "models/config/families.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "kernels/base/xz_testing.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "models/config/block.h"
#include "models/config/config.h"
#include "models/config/model_keys.h"
#include "models/config/stored_order.h"
#include "models/config/tensor_layout.h"

namespace precbench {
namespace {

using config_keys::families, config_keys::family_file, config_keys::rule_of;
using nlohmann::json;
using Names = std::vector<std::string>;

constexpr const char* kGolden = PRECBENCH_SOURCE_DIR "/models/config/golden/configs.jsonl.xz";

/// Returns a file with width 64, four heads of 16 that share two of keys and values, and `more` keys, which replace those.
json small_file(const std::string& model_type, const json& more = json::object()) {
  json object = {{"model_type", model_type}, {"num_hidden_layers", 4},   {"hidden_size", 64},
                 {"intermediate_size", 96},  {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"head_dim", 16},           {"vocab_size", 96}};
  object.update(more);
  return object;
}

std::string refusal_of_file(const json& object) {
  return refusal_of([&] { model_from_json(object); });
}

/// Returns the names of a block's parameters, of an expert those of the first alone.
Names names_of(const BlockSpec& block) {
  Names names;
  for (const LinearSpec& linear : block.linears)
    for (const ParameterPart& part : linear.parts)
      if (!contains(part.name, ".experts.") || contains(part.name, ".experts.0.")) names.push_back(part.name);
  for (const VectorSpec& vector : block.vectors)
    for (const ParameterPart& part : vector.parts) names.push_back(part.name);
  return names;
}

TEST_CASE("config.json: files of every family have the golden model, warnings or refusal", "[models][moe]") {
  std::istringstream lines(testing::unpacked_file(kGolden));
  std::set<std::string> seen;
  for (std::string line; std::getline(lines, line);) {
    const json expected = json::parse(line), file = expected.at("config");
    INFO(file.dump());
    json found = {{"config", file}};
    const std::string refused = refusal_of([&] {
      const ModelConfig model = model_from_json(file);
      found["model"] = model_to_json(model);
      found["parameters"] = parameter_count(model);
      if (!model.not_modelled.empty()) found["warnings"] = model.not_modelled;
      CHECK(model_to_json(model_from_json(found["model"])) == found["model"]);
      seen.insert(file.value("model_type", ""));
    });
    if (!refused.empty()) found["refused"] = refused;
    CHECK(found == expected);
  }
  for (const char* rows : {"families", "same"})
    for (const json& row : family_file().at(rows)) {
      INFO(row.at("model_type"));
      if (!row.contains("refused")) CHECK(seen.count(row.at("model_type")) == 1);
    }
}

TEST_CASE("families.json: rows refer to what there is", "[models]") {
  std::set<std::string> own, types, classes, layouts;
  const ModelConfig any;
  for (const config_keys::Keys group : config_keys::kAllKeys)
    config_keys::each_key(group, any, [&](const char* key, const auto&) { own.insert(key); });
  for (const TensorLayout& layout : tensor_layouts()) CHECK(layouts.insert(layout.name).second);
  for (const config_keys::Family& family : families()) {
    INFO(family.model_type);
    CHECK(types.insert(family.model_type).second);
    for (const auto& [ours, theirs] : family.names) CHECK(own.count(ours) == 1);
    for (const auto& [ours, value] : family.model.items()) CHECK(own.count(ours) == 1);
    if (family.row.contains("class")) CHECK(classes.insert(family.row.at("class")).second);
  }
  for (const json& row : family_file().at("same"))
    for (const char* target : {"same_as", "language_model"})
      if (row.contains(target)) CHECK(types.count(row.at(target)) == 1);
  for (const json& row : family_file().at("missing")) {
    INFO(row.at("model_type"));
    if (row.contains("nearest"))
      CHECK((types.count(row.at("nearest")) == 1 || row.at("nearest") == "hunyuan_v1_dense"));
    if (row.contains("preset")) CHECK(find_model(row.at("preset")).name == row.at("preset").get<std::string>());
  }
}

TEST_CASE("config.json: an absent or unknown model_type is refused with what is known", "[models]") {
  json object = small_file("llama");
  object.erase("model_type");
  for (const json& value : {json("absent"), json(), json("")}) {
    if (value != "absent") object["model_type"] = value;
    CHECK(refusal_of_file(object).starts_with("model_type: missing; known: llama, mistral, cwm, qwen2, "));
  }
  CHECK(refusal_of_file(small_file("mine")) ==
        "model_type: \"mine\" is not supported; the nearest by its keys is \"llama\"");
  const json mine = {{"num_experts", 8}, {"use_qk_norm", true}, {"decoder_sparse_step", 1}, {"my_key", 3}};
  CHECK(
      refusal_of_file(small_file("mine", mine)) ==
      "model_type: \"mine\" is not supported; the nearest by its keys is \"qwen3_moe\", which does not read my_key");
  CHECK(config_keys::missing_family_of_type("llama") == nullptr);
  CHECK(config_keys::missing_family_of_name("qwen3-8b") == nullptr);
  CHECK(config_keys::missing_family_of_name("") == nullptr);
}

TEST_CASE("config.json: keys that only other families read are never ignored silently", "[models]") {
  for (const config_keys::Family& family : families())
    for (const std::string& key : family.keys) {
      INFO(family.model_type << " " << key);
      json object = small_file("llama");
      if (config_keys::find_family("llama")->reads(key) || config_keys::every_family_reads(key)) continue;
      object[key] = 3;
      const std::string refused = refusal_of_file(object);
      if (refused.empty()) {
        const Names warnings = model_from_json(object).not_modelled;
        CHECK(std::any_of(warnings.begin(), warnings.end(),
                          [&](const std::string& warning) { return contains(warning, key); }));
      } else {
        CHECK(contains(refused, key));
      }
    }
}

TEST_CASE("block_of: parameters have the names of the family's checkpoints", "[models][moe]") {
  const auto names = [](const char* model_type, std::int64_t layer, const json& more = json::object()) {
    return names_of(block_of(model_from_json(small_file(model_type, more)), layer));
  };
  const Names attention = {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
                           "self_attn.o_proj.weight"};
  const auto with_attention = [&](Names all, const Names& more) {
    all.insert(all.begin(), attention.begin(), attention.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Names gated = {"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"};
  CHECK(names("olmo2", 0) ==
        with_attention(gated, {"post_attention_layernorm.weight", "post_feedforward_layernorm.weight",
                               "self_attn.q_norm.weight", "self_attn.k_norm.weight"}));
  CHECK(names("gemma2", 0) ==
        with_attention(gated, {"input_layernorm.weight", "post_attention_layernorm.weight",
                               "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"}));
  CHECK(names("glm4", 0, {{"attention_bias", false}}) ==
        with_attention(gated, {"input_layernorm.weight", "post_self_attn_layernorm.weight",
                               "post_attention_layernorm.weight", "post_mlp_layernorm.weight"}));
  CHECK(names("gpt_neox", 0, {{"num_key_value_heads", 4}}) ==
        with_attention(
            {"mlp.up_proj.weight", "mlp.down_proj.weight"},
            {"mlp.up_proj.bias", "mlp.down_proj.bias", "input_layernorm.weight", "input_layernorm.bias",
             "post_attention_layernorm.weight", "post_attention_layernorm.bias", "self_attn.q_proj.bias",
             "self_attn.k_proj.bias", "self_attn.v_proj.bias", "self_attn.o_proj.bias"}));
  const Names norms = {"input_layernorm.weight", "post_attention_layernorm.weight"};
  CHECK(names("mixtral", 0) ==
        with_attention({"block_sparse_moe.gate.weight", "block_sparse_moe.experts.0.w1.weight",
                        "block_sparse_moe.experts.0.w3.weight", "block_sparse_moe.experts.0.w2.weight"},
                       norms));
  CHECK(names("qwen2_moe", 1, {{"qkv_bias", false}}) ==
        with_attention({"mlp.gate.weight", "mlp.shared_expert_gate.weight",
                        "mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight",
                        "mlp.shared_expert.down_proj.weight", "mlp.experts.0.gate_proj.weight",
                        "mlp.experts.0.up_proj.weight", "mlp.experts.0.down_proj.weight"},
                       norms));
  const json direct = {{"num_key_value_heads", 4}, {"q_lora_rank", nullptr}};
  CHECK(names("deepseek_v3", 0, direct).front() == "self_attn.q_proj.weight");
  CHECK(route_bias_name(model_from_json(small_file("minimax_m2")), 2) ==
        "model.layers.2.block_sparse_moe.e_score_correction_bias");
  CHECK(route_bias_name(model_from_json(small_file("ernie4_5_moe")), 3) ==
        "model.layers.3.mlp.moe_statics.e_score_correction_bias");
}

TEST_CASE("stored_order: every element of a head has one place in a checkpoint", "[models]") {
  for (const RopePairs pairs : {RopePairs::halves, RopePairs::interleaved})
    for (const std::int64_t rotated : {4, 12, 16}) {
      const StoredOrder order{16, rotated, pairs};
      std::set<std::int64_t> places;
      for (std::int64_t i = 16; i < 32; ++i) {
        const std::int64_t place = order.stored(i);
        CHECK((place >= 16 && place < 32));
        places.insert(place);
        CHECK((place - 16 < rotated) == (i % 8 < rotated / 2));
      }
      CHECK(places.size() == 16);
      // The first pair here, elements 0 and 8, and in a checkpoint.
      CHECK(order.stored(0) == 0);
      CHECK(order.stored(8) == (pairs == RopePairs::interleaved ? 1 : rotated / 2));
    }
  const ModelConfig glm = model_from_json(small_file("glm"));
  for (const char* name : {"q_proj.weight", "k_proj.bias"})
    CHECK_FALSE(stored_order(glm, std::string("model.layers.3.self_attn.") + name).plain());
  for (const char* name : {"v_proj.weight", "o_proj.weight"})
    CHECK(stored_order(glm, std::string("model.layers.3.self_attn.") + name).plain());
  CHECK(stored_order(model_from_json(small_file("llama")), "model.layers.3.self_attn.q_proj.weight").plain());
}

}  // namespace
}  // namespace precbench
