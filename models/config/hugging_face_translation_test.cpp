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
  // LLaVA's text_config leaves out the dimensions of Llama 7B.
  CHECK(parameter_count(model_from_json(
            {{"model_type", "llava"}, {"text_config", {{"model_type", "llama"}, {"vocab_size", 32064}}}})) ==
        6738939904);
}

}  // namespace
}  // namespace precbench
