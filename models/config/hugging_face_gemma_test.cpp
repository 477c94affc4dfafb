// Gemma 1, 2 and 3 in a config.json: defaults, activations, softcaps, windows by layer, and the angles of local
// layers.
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "models/config/block.h"
#include "models/config/config.h"

namespace precbench {
namespace {

using nlohmann::json;
using LayerList = std::vector<std::int64_t>;

ModelConfig gemma_of(const char* model_type, const json& more = json::object()) {
  json object = {{"model_type", model_type}};
  object.update(more);
  return model_from_json(object);
}

std::string gemma_error(const char* model_type, const json& more) {
  return refusal_of([&] { gemma_of(model_type, more); });
}

TEST_CASE("config.json: absent keys of Gemma have the defaults of its classes", "[models]") {
  const ModelConfig first = gemma_of("gemma"), second = gemma_of("gemma2"), third = gemma_of("gemma3_text");
  CHECK(parameter_count(first) == parameter_count(find_model("gemma-7b")));
  CHECK(parameter_count(second) == parameter_count(find_model("gemma-2-2b")));
  CHECK((third.width == 2304 && third.heads == 8 && third.kv_heads == 4 && third.head_dim == 256));
  CHECK(third.vocab == 262208);
  for (const ModelConfig& model : {first, second, third}) {
    CHECK(model.tied);
    CHECK(model.norm_eps == 1e-6);
    CHECK(model.embedding_scale == std::sqrt(static_cast<double>(model.width)));
    CHECK(model.embedding_scale_rounded);
    CHECK(model.block.gains_minus_one);
    CHECK(model.block.activation == Activation::gelu_tanh);
    CHECK(model.not_modelled.empty());
  }
  CHECK(first.block.norms == NormPlace::before);
  CHECK(first.sliding_window == 0);
  CHECK(second.block.norms == NormPlace::both);
  CHECK((second.block.attention_softcap == 50 && second.logit_softcap == 30));
  CHECK((second.sliding_window == 4096 && second.window(0) == 4096 && second.window(1) == 0));
  CHECK(second.block.local_rope_theta == 0);
  CHECK(third.qk_norm);
  CHECK((third.block.attention_softcap == 0 && third.logit_softcap == 0));
  CHECK((third.rope_theta == 1e6 && third.block.local_rope_theta == 1e4));
  CHECK((third.window(4) == 4096 && third.window(5) == 0));
  std::vector<std::string> names;
  for (const VectorSpec& vector : block_of(second, 0).vectors) {
    CHECK(vector.kind == ParameterKind::gain_minus_one);
    for (const ParameterPart& part : vector.parts) names.push_back(part.name);
  }
  CHECK(names == std::vector<std::string>{"input_layernorm.weight", "post_attention_layernorm.weight",
                                          "pre_feedforward_layernorm.weight",
                                          "post_feedforward_layernorm.weight"});
}

TEST_CASE("config.json: activations of Gemma", "[models]") {
  // Older files of the first Gemma mean tanh's approximation by "gelu".
  for (const char* name : {"gelu", "gelu_pytorch_tanh"})
    CHECK(gemma_of("gemma", {{"hidden_act", name}}).block.activation == Activation::gelu_tanh);
  CHECK(gemma_of("gemma", {{"hidden_activation", nullptr}}).block.activation == Activation::gelu_tanh);
  CHECK(contains(gemma_error("gemma", {{"hidden_activation", "relu"}}), "hidden_activation: "));
  CHECK(gemma_of("gemma3_text", {{"hidden_activation", "gelu"}}).block.activation == Activation::gelu);
  CHECK(gemma_of("gemma2", {{"hidden_act", "relu"}}).block.activation == Activation::gelu_tanh);  // not read
  CHECK(gemma_error("gemma2", {{"hidden_activation", "relu"}}) ==
        "hidden_activation: \"relu\" is not supported; gelu_pytorch_tanh, gelu and silu are");
}

TEST_CASE("config.json: softcaps, scale of scores and windows of Gemma", "[models]") {
  const ModelConfig off =
      gemma_of("gemma2", {{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", nullptr}});
  CHECK((off.block.attention_softcap == 0 && off.logit_softcap == 0));
  CHECK(gemma_of("gemma3_text", {{"final_logit_softcapping", 20.0}}).logit_softcap == 20);
  CHECK(contains(gemma_error("gemma2", {{"final_logit_softcapping", -1.0}}),
                 "final_logit_softcapping: must be"));
  CHECK(gemma_of("gemma2").block.attention_scale == 0);  // 1 / sqrt(head_dim)
  CHECK(gemma_of("gemma2", {{"query_pre_attn_scalar", 144}}).block.attention_scale == 1 / std::sqrt(144.0));
  CHECK(contains(gemma_error("gemma2", {{"query_pre_attn_scalar", 0}}), "query_pre_attn_scalar: must be"));

  const json four = {{"num_hidden_layers", 4}, {"sliding_window", 64}};
  const auto local = [&](const json& more) {
    json object = four;
    object.update(more);
    return gemma_of("gemma3_text", object).block.local_layers;
  };
  CHECK(local({{"sliding_window_pattern", 3}}) == LayerList{0, 1, 3});
  CHECK(local({{"layer_types",
                {"full_attention", "sliding_attention", "full_attention", "sliding_attention"}}}) ==
        LayerList{1, 3});
  const ModelConfig full = gemma_of(
      "gemma3_text", {{"num_hidden_layers", 2}, {"layer_types", {"full_attention", "full_attention"}}});
  CHECK((full.block.local_layers.empty() && full.sliding_window == 0 && full.block.local_rope_theta == 0));
  for (const std::size_t count : {1, 25, 27})
    CHECK(contains(
        gemma_error("gemma3_text", {{"layer_types", std::vector<std::string>(count, "full_attention")}}),
        "layer_types: expected the type of each of 26 layers"));
  CHECK(
      contains(gemma_error("gemma3_text", {{"num_hidden_layers", 1}, {"layer_types", {"chunked_attention"}}}),
               "layer_types: \"chunked_attention\" is neither"));
  CHECK(contains(gemma_error("gemma3_text", {{"use_bidirectional_attention", true}}),
                 "use_bidirectional_attention: attention to later tokens"));
  const ModelConfig cut = cut_to(find_model("gemma-3-1b"), 6);
  CHECK(cut.block.local_layers == LayerList{0, 1, 2, 3, 4});
  CHECK_NOTHROW(validate(cut));
}

TEST_CASE("config.json: angles of Gemma 3 by the type of a layer", "[models]") {
  const ModelConfig old =
      gemma_of("gemma3_text", {{"rope_theta", 5e5},
                               {"rope_local_base_freq", 2e4},
                               {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  CHECK((old.rope_theta == 5e5 && old.block.local_rope_theta == 2e4));
  CHECK(old.rope_scaling.kind == RopeScaling::Kind::linear);
  const json by_type = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}}},
                        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}};
  CHECK(gemma_of("gemma3_text", {{"rope_parameters", by_type}}) == old);
  json scaled = by_type;
  scaled["sliding_attention"]["rope_type"] = "linear";
  CHECK(contains(gemma_error("gemma3_text", {{"rope_parameters", scaled}}),
                 "rope_parameters: sliding_attention: rope_type \"linear\" is not supported"));
}

TEST_CASE("config.json: the language model of a multimodal Gemma 3", "[models]") {
  // Files of 4b and larger leave out most keys.
  const json text = {
      {"model_type", "gemma3_text"}, {"hidden_size", 2560},
      {"intermediate_size", 10240},  {"num_hidden_layers", 34},
      {"sliding_window", 1024},      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}};
  ModelConfig read = model_from_json({{"model_type", "gemma3"}, {"text_config", text}});
  CHECK(read.not_modelled.size() == 1);
  read.not_modelled.clear();
  read.name = "gemma-3-4b";
  CHECK(read == find_model("gemma-3-4b"));
}

TEST_CASE("validate: windows and their angles need each other", "[models]") {
  json own = {{"layers", 2}, {"width", 64}, {"ffn", 96}, {"heads", 4}, {"vocab", 96}};
  const auto error_own = [&](const json& more) {
    json object = own;
    object.update(more);
    return refusal_of([&] { model_from_json(object); });
  };
  CHECK(error_own({{"local_layers", {0}}}) == "local_layers: the model has no sliding_window");
  CHECK(error_own({{"local_layers", {2}}, {"sliding_window", 8}}) ==
        "local_layers: 2 is not a layer after -1 of 2");
  CHECK(error_own({{"local_rope_theta", 1e4}}) == "local_rope_theta: the model has no sliding_window");
  CHECK(error_own({{"activation", "relu"}}) ==
        "activation: \"relu\" is none of silu, gelu_tanh, gelu, relu2");
  CHECK(error_own({{"logit_softcap", -3}}) == "logit_softcap: must be a positive number, got -3");
  own.update({{"experts", 4}, {"top_k", 2}, {"expert_ffn", 32}});
  CHECK(error_own({{"activation", "gelu"}}) == "activation: not supported together with experts");
}

}  // namespace
}  // namespace precbench
