// Presets against published parameter counts, and the errors for wrong model files.
#include "models/config/config.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

using nlohmann::json;

std::string error_of(const char* text) {
  return refusal_of([&] { model_from_json(json::parse(text)); });
}

constexpr const char* kSmall =
    R"({"layers": 2, "width": 64, "ffn": 96, "heads": 4, "kv_heads": 2, "vocab": 96})";

json small_with(const char* key, const json& value) {
  json object = json::parse(kSmall);
  object[key] = value;
  return object;
}

std::string error_with(const char* key, const json& value) {
  return error_of(small_with(key, value).dump().c_str());
}

TEST_CASE("parameter_count: presets have the published number of parameters", "[models]") {
  // Totals of the safetensors files on the Hugging Face hub; for models with tied weights num_parameters() of
  // transformers, because some files hold the head a second time.
  const std::map<std::string, std::int64_t> published = {
      {"llama2-7b", 6'738'415'616},
      {"llama2-13b", 13'015'864'320},
      {"llama2-70b", 68'976'648'192},
      {"mistral-7b-v0.1", 7'241'732'096},
      {"mistral-small-3.1-24b", 23'572'403'200},  // of the language model
      {"olmo2-32b", 32'234'279'936},
      {"olmo3-32b", 32'233'522'176},
      {"phi-4-reasoning", 14'659'507'200},
      {"qwen2.5-72b", 72'706'203'648},
      {"deepseek-r1-distill-qwen-7b", 7'615'616'512},
      {"qwen3-4b-2507", 4'022'468'096},
      {"qwen3-30b-a3b-2507", 30'532'122'624},
      {"glm-4.6", 352'797'814'784},  // this and the next without multi-token prediction
      {"kimi-k2-0905", 1'026'408'209'408},
      {"llama3.2-1b", 1'235'814'400},
      {"llama3.2-3b", 3'212'749'824},
      {"llama3.1-8b", 8'030'261'248},
      {"llama3-70b", 70'553'706'496},
      {"llama3.1-70b", 70'553'706'496},
      {"llama3.3-70b", 70'553'706'496},
      {"llama3.1-405b", 405'853'388'800},
      {"tinyllama-1.1b", 1'100'048'384},
      {"smollm2-135m", 134'515'008},
      {"smollm2-360m", 361'821'120},
      {"smollm2-1.7b", 1'711'376'384},
      {"mistral-7b-v0.3", 7'248'023'552},
      {"mistral-nemo-12b", 12'247'782'400},
      {"mistral-small-24b", 23'572'403'200},
      {"deepseek-llm-7b", 6'910'365'696},
      {"ministral3-3b", 3'429'006'336},  // of the language model
      {"smollm3-3b", 3'075'098'624},
      {"granite-3.1-2b", 2'533'531'648},
      {"granite-3.1-8b", 8'170'848'256},
      {"olmo2-1b", 1'484'916'736},
      {"olmo2-7b", 7'298'617'344},
      {"olmo3-7b", 7'298'011'136},
      {"phi-3-mini", 3'821'079'552},
      {"phi-4", 14'659'507'200},
      {"gemma-2b", 2'506'172'416},
      {"gemma-7b", 8'537'680'896},
      {"gemma-2-2b", 2'614'341'888},
      {"gemma-2-9b", 9'241'705'984},
      {"gemma-2-27b", 27'227'128'320},
      {"gemma-3-270m", 268'098'176},
      {"gemma-3-1b", 999'885'952},
      {"gemma-3-4b", 3'880'263'168},  // this and the next two of the language model
      {"gemma-3-12b", 11'766'034'176},
      {"gemma-3-27b", 27'009'346'304},
      {"qwen2.5-0.5b", 494'032'768},
      {"qwen2.5-1.5b", 1'543'714'304},
      {"qwen2.5-3b", 3'085'938'688},
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen2.5-14b", 14'770'033'664},
      {"qwen2.5-32b", 32'763'876'352},
      {"qwen3-0.6b", 596'049'920},
      {"qwen3-1.7b", 1'720'574'976},
      {"qwen3-4b", 4'022'468'096},
      {"qwen3-8b", 8'190'735'360},
      {"qwen3-14b", 14'768'307'200},
      {"qwen3-32b", 32'762'123'264},
      {"phi-4-mini", 3'836'021'760},
      {"glm-4-9b", 9'399'951'360},
      {"glm-4-9b-0414", 9'400'279'040},
      {"seed-oss-36b", 36'151'104'512},
      {"ernie-4.5-0.3b", 360'748'032},
      {"exaone-4.0-1.2b", 1'279'391'488},
      {"exaone-4.0-32b", 32'003'216'384},
      {"qwen1.5-moe-a2.7b", 14'315'784'192},
      {"qwen2-57b-a14b", 57'408'658'944},
      {"ernie-4.5-21b-a3b", 21'825'436'160},
      {"deepseek-moe-16b", 16'375'728'128},
      {"glm-4.5-air", 106'852'245'504},  // this and the next without multi-token prediction
      {"glm-4.5", 352'797'814'784},
      {"minimax-m2", 228'689'748'992},
      {"mixtral-8x22b", 140'620'634'112},
      {"mixtral-8x22b-v0.3", 140'630'071'296},
      {"gpt2", 124'439'808},
      {"gpt2-medium", 354'823'168},
      {"gpt2-large", 774'030'080},
      {"gpt2-xl", 1'557'611'200},
      {"starcoder", 15'517'456'384},
      {"gpt-j-6b", 6'050'882'784},
      {"pythia-70m", 70'426'624},
      {"pythia-160m", 162'322'944},
      {"pythia-410m", 405'334'016},
      {"pythia-1b", 1'011'781'632},
      {"pythia-1.4b", 1'414'647'808},
      {"pythia-2.8b", 2'775'208'960},
      {"pythia-6.9b", 6'857'302'016},
      {"pythia-12b", 11'846'072'320},
      {"phi-1.5", 1'418'270'720},
      {"phi-2", 2'779'683'840},
      {"starcoder2-3b", 3'030'371'328},
      {"starcoder2-7b", 7'173'923'840},
      {"starcoder2-15b", 15'957'889'024},
      {"stablelm-2-1.6b", 1'644'515'328},
      {"stablelm-3b-4e1t", 2'795'443'200},
      {"nemotron-mini-4b", 4'190'509'056},
      {"minitron-8b", 8'271'699'968},
      {"aya-23-8b", 8'028'033'024},
      {"command-r7b", 8'028'033'024},
      {"command-r-35b", 34'980'831'232},
  };
  for (const auto& [name, count] : published) {
    INFO(name);
    CHECK(parameter_count(find_model(name)) == count);
  }
}

TEST_CASE("model_presets: our own presets have the parameters their names say", "[models]") {
  const ModelConfig tiny = find_model("tiny");
  CHECK(tiny == ModelConfig{.name = "tiny",
                            .layers = 4,
                            .width = 128,
                            .ffn = 384,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 32,
                            .vocab = 256,
                            .tied = true});
  // Per block: q and o 128*128, k and v 64*128, three FFN matrices 384*128, two norms. Then the final norm
  // and the embedding.
  CHECK(parameter_count(tiny) == 4 * (2 * 16384 + 2 * 8192 + 3 * 49152 + 256) + 128 + 256 * 128);
  CHECK(std::abs(static_cast<double>(parameter_count(find_model("15m"))) / 15e6 - 1) < 0.06);
  CHECK(std::abs(static_cast<double>(parameter_count(find_model("125m"))) / 125e6 - 1) < 0.02);
  // Four attention matrices 512*512, three FFN matrices 1536*512, two norms; the final norm and the tied
  // embedding.
  CHECK(parameter_count(find_model("36m")) ==
        8 * (4 * 262144 + 3 * 786432 + 1024) + 512 + 16384 * 512);  // 35,660,288
  for (const char* name : {"tiny", "15m", "36m", "125m"}) {
    const ModelConfig config = find_model(name);
    for (std::int64_t size : {config.width, config.ffn, config.q_width(), config.vocab})
      CHECK(size % 128 == 0);
  }
}

TEST_CASE("model_to_json: every preset is valid and survives a round trip", "[models]") {
  for (const ModelConfig& preset : model_presets()) {
    INFO(preset.name);
    CHECK_NOTHROW(validate(preset));
    CHECK(model_from_json(json::parse(model_to_json(preset).dump())) == preset);
  }
}

TEST_CASE("model_from_json: own keys have defaults", "[models]") {
  const ModelConfig config =
      model_from_json(json::parse(R"({"layers":1,"width":64,"ffn":96,"heads":4,"vocab":96})"));
  CHECK(config.kv_heads == 4);
  CHECK(config.head_dim == 16);
  CHECK(config.rope_theta == 500000);
  CHECK(config.norm_eps == 1e-5);
  CHECK_FALSE(config.tied);
  CHECK_FALSE(config.qk_norm);
  CHECK_FALSE(config.qkv_bias);
  CHECK(config.rope_scaling == RopeScaling{});
}

TEST_CASE("model_from_json: a wrong own key is refused by name", "[models]") {
  REQUIRE(error_of(kSmall).empty());
  CHECK(contains(error_with("kv_heads", 3), "heads: 4 is not a multiple of kv_heads 3"));
  CHECK(contains(error_with("head_dim", 15), "head_dim: 15 is odd"));
  CHECK(contains(error_with("heads", 12), "head_dim: missing, and width 64 is not a multiple of heads 12"));
  CHECK(contains(error_with("layers", 0), "layers: must be from 1"));
  CHECK(contains(error_with("ffn", -128), "ffn: must be from 1"));
  CHECK(contains(error_with("width", 64.5), "width: expected a whole number, got 64.5"));
  CHECK(contains(error_with("vocab", 18446744073709551615ULL), "vocab: must be from 1"));
  CHECK(contains(error_with("tied", 1), "tied: expected true or false"));
  CHECK(contains(error_with("rope_theta", 0), "rope_theta: must be a positive number"));
  CHECK(contains(error_with("norm_eps", "x"), "norm_eps: expected a number"));
  CHECK(contains(error_with("vocabulary", 96), "vocabulary: unknown key; did you mean vocab?"));
  CHECK(contains(error_of(R"({"layers":1,"width":64,"ffn":96,"heads":4})"), "vocab: missing"));
  CHECK(contains(error_of("[1]"), "a model is a JSON object"));
  json both = small_with("qk_norm", true);
  both["qkv_bias"] = true;
  both["qk_norm_over"] = "heads";
  CHECK(contains(error_of(both.dump().c_str()),
                 "qkv_bias: not supported together with a qk_norm over all heads"));
  CHECK(contains(error_with("qk_norm_over", "heads"), "qk_norm_over: the model has no qk_norm"));
  CHECK(contains(error_with("qk_norm_over", "all"), "qk_norm_over: \"all\" is neither head nor heads"));
  CHECK(contains(
      error_of(R"({"layers":65536,"width":16777216,"ffn":16777216,"heads":2,"head_dim":2,"vocab":2})"),
      "more than any model"));
  CHECK(error_of(R"({"layers":65537,"width":64,"ffn":64,"heads":2,"vocab":64})") ==
        "layers: must be from 1 to 65536, got 65537");
}

constexpr const char* kHuggingFace = R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
  "hidden_act": "silu", "attention_bias": false, "hidden_size": 2560, "intermediate_size": 9728,
  "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
  "tie_word_embeddings": true, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "rope_scaling": null,
  "sliding_window": null, "use_sliding_window": false, "torch_dtype": "bfloat16", "use_cache": true})";

TEST_CASE("model_from_json: config.json of Qwen3 equals the preset", "[models]") {
  ModelConfig config = model_from_json(json::parse(kHuggingFace));
  CHECK(config.name.empty());
  config.name = "qwen3-4b";
  config.max_positions = 0;
  CHECK(config == find_model("qwen3-4b"));

  json newer = json::parse(kHuggingFace);
  newer.erase("rope_theta");
  newer["rope_parameters"] = {{"rope_theta", 5e6}, {"rope_type", "default"}};
  CHECK(model_from_json(newer).rope_theta == 5e6);
}

TEST_CASE("model_from_json: config.json of an unsupported model is refused", "[models]") {
  const auto error_if = [](const char* key, const json& value) {
    json object = json::parse(kHuggingFace);
    object[key] = value;
    return error_of(object.dump().c_str());
  };
  CHECK(contains(error_if("model_type", "gemma4"), "model_type: \"gemma4\" is not supported"));
  CHECK(contains(error_if("hidden_act", "gelu"), "hidden_act: \"gelu\" is not supported"));
  CHECK(
      error_if("use_qk_norm", false) ==
      "use_qk_norm: a model of this type without a QK-norm is not supported; set it to true to measure the model "
      "without");
  CHECK(contains(error_if("hidden_size", nullptr), "hidden_size: missing"));
  CHECK(error_if("num_key_value_heads", 5) ==
        "num_attention_heads: 32 is not a multiple of num_key_value_heads 5");
}

namespace {

/// Returns a config.json with the required keys of a model_type and `more`.
json hugging_face(const char* model_type, const json& more = json::object()) {
  json object = {{"model_type", model_type}, {"hidden_size", 4096},       {"intermediate_size", 8192},
                 {"num_hidden_layers", 30},  {"num_attention_heads", 64}, {"vocab_size", 512}};
  object.update(more);
  return object;
}

ModelConfig read_hugging_face(const char* model_type, const json& more = json::object()) {
  return model_from_json(hugging_face(model_type, more));
}

}  // namespace

TEST_CASE("model_from_json: absent config.json keys take the defaults of model_type", "[models]") {
  const auto shape = [](const ModelConfig& c) { return std::pair(c.kv_heads, c.head_dim); };
  CHECK(shape(read_hugging_face("llama")) == std::pair<std::int64_t, std::int64_t>(64, 64));
  CHECK(shape(read_hugging_face("mistral")) == std::pair<std::int64_t, std::int64_t>(8, 64));
  CHECK(shape(read_hugging_face("qwen2")) == std::pair<std::int64_t, std::int64_t>(32, 64));
  CHECK(shape(read_hugging_face("qwen3")) == std::pair<std::int64_t, std::int64_t>(32, 128));
  // Null is not absent: it means as many as heads.
  CHECK(read_hugging_face("qwen2", {{"num_key_value_heads", nullptr}}).kv_heads == 64);
  CHECK(read_hugging_face("qwen2").qkv_bias);
  for (const char* other : {"llama", "mistral", "qwen3"}) CHECK_FALSE(read_hugging_face(other).qkv_bias);
  CHECK(read_hugging_face("llama").max_positions == 2048);
  CHECK(read_hugging_face("qwen3", {{"max_position_embeddings", 40960}}).max_positions == 40960);
}

TEST_CASE("model_from_json: sliding_window is read if a layer uses it", "[models]") {
  const auto window = [](const char* model_type, const json& more) {
    return read_hugging_face(model_type, more).sliding_window;
  };
  CHECK(window("mistral", json::object()) == 4096);
  CHECK(window("mistral", {{"sliding_window", 1024}}) == 1024);
  CHECK(window("mistral", {{"sliding_window", nullptr}}) == 0);
  CHECK(window("qwen2", {{"sliding_window", 1024}}) == 0);
  CHECK(window("qwen2", {{"sliding_window", 1024}, {"use_sliding_window", true}}) ==
        1024);  // layers 28 and 29
  CHECK(window("qwen2", {{"use_sliding_window", true}, {"max_window_layers", 30}}) == 0);
  CHECK(window("qwen2", {{"use_sliding_window", true}, {"max_window_layers", 0}}) == 4096);
  const std::vector<std::string> full(30, "full_attention"), sliding(30, "sliding_attention");
  CHECK(window("qwen3", {{"use_sliding_window", true}, {"layer_types", full}}) == 0);
  CHECK(window("qwen3", {{"use_sliding_window", true}, {"layer_types", sliding}}) == 4096);
  CHECK(window("llama", {{"sliding_window", 64}}) == 0);
  // Layers that have it; without a list all.
  using Layers = std::vector<std::int64_t>;
  const ModelConfig some = read_hugging_face("qwen2", {{"use_sliding_window", true}});
  CHECK(some.block.local_layers == Layers{28, 29});
  CHECK((some.window(27) == 0 && some.window(28) == 4096));
  const ModelConfig all = read_hugging_face("mistral");
  CHECK(all.block.local_layers.empty());
  CHECK((all.window(0) == 4096 && all.window(29) == 4096));
}

TEST_CASE("model_from_json: config.json settings without effect are listed in not_modelled", "[models]") {
  const auto lines = [](const json& more) { return read_hugging_face("llama", more).not_modelled; };
  CHECK(lines({{"torch_dtype", "bfloat16"}, {"use_cache", true}, {"eos_token_id", {1, 2}}}).empty());
  CHECK(lines({{"quantization_config", nullptr}, {"embd_pdrop", 0.0}, {"is_decoder", false}}).empty());
  CHECK(lines({{"attention_dropout", 0.1}}) == std::vector<std::string>{"attention_dropout 0.1 is left out"});
  CHECK(lines({{"initializer_range", 0.01}}) ==
        std::vector<std::string>{"initializer_range 0.01: fresh weights are made with 0.02"});
  CHECK(lines({{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}) ==
        std::vector<std::string>{"rope_scaling \"dynamic\" is not applied: longer sequences than 2048 "
                                 "(max_position_embeddings) are unsupported"});
  CHECK(lines({{"mystery", 0.5}, {"another", 12}}) ==
        std::vector<std::string>{"keys that are not known here were left out: another, mystery"});
  const json yarn = {{"type", "yarn"}, {"factor", 4.0}, {"beta_fsat", 7}};
  CHECK(lines({{"rope_scaling", yarn}}) ==
        std::vector<std::string>{"rope_scaling: beta_fsat is not known here and was left out"});
  json complete = yarn;
  complete["original_max_position_embeddings"] = 64;
  CHECK(contains(error_with("rope_scaling", complete), "rope_scaling: beta_fsat: unknown key"));
  CHECK(contains(
      error_of(hugging_face("qwen3", {{"rope_parameters", {{"full_attention", {{"rope_theta", 5e5}}}}}})
                   .dump()
                   .c_str()),
      "full_attention: angles by the type of a layer are not supported"));
  // Biases that only some configurations have a key for.
  CHECK(read_hugging_face("qwen2", {{"attention_bias", true}}).not_modelled.empty());
  CHECK(contains(error_of(hugging_face("llama", {{"partial_rotary_factor", 0.5}}).dump().c_str()),
                 "partial_rotary_factor: 0.5 is not supported"));
}

TEST_CASE("model_from_json: RoPE scaling has defaults and wrong keys are refused by name", "[models]") {
  const auto scaling = [](const json& more) { return read_hugging_face("llama", more).rope_scaling; };
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  CHECK(scaling({{"rope_scaling", llama3}}) == find_model("llama3.1-8b").rope_scaling);
  CHECK(scaling({{"rope_parameters", llama3}}) == find_model("llama3.1-8b").rope_scaling);
  // If both exist the older key takes precedence, unless it is empty.
  CHECK(scaling({{"rope_scaling", llama3}, {"rope_parameters", {{"rope_type", "linear"}, {"factor", 2.0}}}})
            .kind == RopeScaling::Kind::llama3);
  CHECK(scaling({{"rope_scaling", json::object()}, {"rope_parameters", llama3}}).kind ==
        RopeScaling::Kind::llama3);
  const RopeScaling yarn =
      scaling({{"max_position_embeddings", 4096}, {"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}}});
  CHECK(yarn.original_context == 4096);
  CHECK(yarn.attention_factor == 0.1 * std::log(4.0) + 1);
  CHECK(scaling({{"max_position_embeddings", 8192},
                 {"rope_scaling",
                  {{"type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 2048}}}})
            .factor == 4);
  const auto refusal = [&](const char* key, const json& value) {
    json changed = llama3;
    changed[key] = value;
    return error_of(hugging_face("llama", {{"rope_scaling", changed}}).dump().c_str());
  };
  CHECK(contains(refusal("factor", nullptr), "rope_scaling: factor: missing"));
  CHECK(contains(refusal("factor", 0.5), "rope_scaling: factor: must be 1 or more, got 0.5"));
  CHECK(contains(refusal("factor", "8"), "rope_scaling: factor: expected a number"));
  CHECK(contains(refusal("high_freq_factor", 0.5),
                 "rope_scaling: high_freq_factor: 0.5 is below low_freq_factor 1"));
  CHECK(refusal("high_freq_factor", 1.0).empty());  // Llama 4 Scout's
  CHECK(contains(refusal("original_max_position_embeddings", 0),
                 "rope_scaling: original_max_position_embeddings"));
  CHECK(
      contains(error_of(hugging_face("llama", {{"rope_scaling", 8}}).dump().c_str()), "expected an object"));
}

TEST_CASE("find_model: a file is named after its path and errors name the file", "[models]") {
  const TempDirectory folder;
  CHECK(find_model(folder.write("mine.json", kSmall)).name == "mine");
  CHECK(find_model(folder.write("Qwen3-4B/config.json", kHuggingFace)).name == "Qwen3-4B");
  CHECK_THROWS_AS(find_model(folder.write("broken.json", "{\"layers\": 2")), InvalidInput);
  CHECK_THROWS_AS(find_model(folder / "no_such_model.json"), InvalidInput);
  const std::string twice = folder.write("twice.json", R"({"layers": 2, "width": 64, "layers": 4})");
  CHECK(refusal_of([&] { find_model(twice); }) == twice + ": layers: given twice; remove one of the two");
  const std::string odd = folder.write("odd.json", small_with("head_dim", 7).dump());
  CHECK(contains(refusal_of([&] { find_model(odd); }), "odd.json: head_dim: 7 is odd"));
}

}  // namespace
}  // namespace precbench
