// Partial RoPE, the order of a head in checkpoints, and biases of attention in a config.json.
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "models/config/block.h"
#include "models/config/config.h"
#include "models/config/hugging_face_testing.h"
#include "models/config/stored_order.h"

namespace precbench {
namespace {

using nlohmann::json;

json rotary_file(const std::string& model_type, const json& more = json::object()) {
  return testing::small_config_json(model_type, 8, more);
}

ModelConfig rotary_model(const std::string& model_type, const json& more = json::object()) {
  return model_from_json(rotary_file(model_type, more));
}

std::string rotary_error(const std::string& model_type, const json& more) {
  return refusal_of([&] { rotary_model(model_type, more); });
}

TEST_CASE("config.json: the part of a head that RoPE rotates", "[models]") {
  CHECK(rotary_model("phi3").rotary_dim() == 16);
  CHECK(rotary_model("phi3", {{"partial_rotary_factor", 0.75}}).block.rotary_dim == 12);
  CHECK(rotary_model("glm").block.rotary_dim == 8);
  CHECK(rotary_model("glm4", {{"partial_rotary_factor", 1.0}}).block.rotary_dim == 0);
  const json in_rope = {{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.25}}}};
  CHECK(rotary_model("glm", in_rope).block.rotary_dim == 4);
  const json factors = {1, 1.5, 2, 2.5, 3, 3.5};
  const json rope = {{"type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}};
  const ModelConfig phi = rotary_model("phi3", {{"partial_rotary_factor", 0.75}, {"rope_scaling", rope}});
  CHECK(phi.rope_scaling.pair_factors.size() == 6);
  CHECK(model_from_json(model_to_json(phi)) == phi);
  CHECK(contains(rotary_error("phi3", {{"rope_scaling", rope}}), "has 6 numbers, a head of 16 has 8 pairs"));
  CHECK(contains(rotary_error("llama", {{"partial_rotary_factor", 0.5}}), "partial_rotary_factor: 0.5"));
  CHECK(contains(rotary_error("glm", {{"partial_rotary_factor", 0.0}}), "must be above 0 and at most 1"));
  CHECK(contains(rotary_error("glm", {{"partial_rotary_factor", 0.1875}}),
                 "partial_rotary_factor: 3 is not an even number below head_dim 16"));
}

TEST_CASE("config.json: GLM and ERNIE rotate neighbouring elements", "[models]") {
  for (const char* model_type : {"glm", "glm4", "ernie4_5"})
    CHECK(rotary_model(model_type).block.rope_pairs == RopePairs::interleaved);
  CHECK(rotary_model("glm").block.fusion == TensorFusion::gate_up);
  CHECK(contains(rotary_error("ernie4_5", {{"use_bias", true}}), "use_bias: a bias in linear layers"));
  std::set<std::string> names;
  for (const VectorSpec& vector : block_of(rotary_model("glm4"), 0).vectors)
    names.insert(vector.parts[0].name);
  for (const char* name : {"input", "post_self_attn", "post_attention", "post_mlp"})
    CHECK(names.count(name + std::string("_layernorm.weight")) == 1);
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
        const bool rotates = i % 8 < rotated / 2;
        CHECK((place - 16 < rotated) == rotates);
      }
      CHECK(places.size() == 16);
      // The first pair here, elements 0 and 8, and in a checkpoint.
      CHECK(order.stored(0) == 0);
      CHECK(order.stored(8) == (pairs == RopePairs::interleaved ? 1 : rotated / 2));
    }
  const ModelConfig glm = rotary_model("glm");
  for (const char* name : {"q_proj.weight", "k_proj.bias"})
    CHECK_FALSE(stored_order(glm, std::string("model.layers.3.self_attn.") + name).plain());
  for (const char* name : {"v_proj.weight", "o_proj.weight"})
    CHECK(stored_order(glm, std::string("model.layers.3.self_attn.") + name).plain());
  CHECK(stored_order(rotary_model("llama"), "model.layers.3.self_attn.q_proj.weight").plain());
}

TEST_CASE("config.json: biases of attention, and of its output where the model_type has one", "[models]") {
  const json on = {{"attention_bias", true}}, off = {{"attention_bias", false}};
  for (const char* model_type : {"llama", "qwen3", "smollm3", "granite", "gemma", "gemma2", "gemma3_text"}) {
    INFO(model_type);
    CHECK_FALSE(rotary_model(model_type).qkv_bias);
    CHECK(rotary_model(model_type, on).qkv_bias);
    CHECK(rotary_model(model_type, on).block.o_bias);
  }
  for (const char* model_type : {"glm", "glm4"}) {
    INFO(model_type);
    CHECK(rotary_model(model_type).qkv_bias);
    CHECK_FALSE(rotary_model(model_type).block.o_bias);
    CHECK_FALSE(rotary_model(model_type, off).qkv_bias);
  }
  CHECK((rotary_model("seed_oss").qkv_bias && !rotary_model("seed_oss").block.o_bias));
  CHECK(rotary_model("seed_oss", {{"attention_out_bias", true}}).block.o_bias);
  for (const char* model_type : {"olmo2", "olmo3", "phi3"})
    CHECK(contains(rotary_error(model_type, on), "attention_bias: a bias in attention"));
  const ModelConfig llama = rotary_model("llama", on);
  CHECK(parameter_count(llama) - parameter_count(rotary_model("llama")) == 8 * (64 + 32 + 32 + 64));
  CHECK(model_from_json(model_to_json(llama)) == llama);
}

TEST_CASE("config.json: EXAONE 4 has RoPE in its layers with a window", "[models]") {
  using Layers = std::vector<std::int64_t>;
  const ModelConfig mixed = rotary_model("exaone4", {{"sliding_window_pattern", "LLG"}});
  CHECK(mixed.sliding_window == 4096);
  CHECK(mixed.block.norms == NormPlace::after);
  CHECK(mixed.block.layers_without_rope == Layers{2, 5, 7});  // the last layer has no window in any pattern
  CHECK(rotary_model("exaone4").block.layers_without_rope == Layers{3, 7});
  const ModelConfig full = rotary_model("exaone4", {{"sliding_window", nullptr}});
  CHECK(full.block.layers_without_rope.empty());
  CHECK(full.sliding_window == 0);
  CHECK(contains(rotary_error("exaone4", {{"sliding_window_pattern", "LX"}}), "sliding_window_pattern: "));
}

}  // namespace
}  // namespace precbench
