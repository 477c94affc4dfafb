// Presets against published parameter counts, models of files and folders, and cuts. Files of all families: families_test.cpp.
#include "models/config/config.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

using nlohmann::json;
using Lines = std::vector<std::string>;

constexpr const char* kSmall =
    R"({"layers": 2, "width": 64, "ffn": 96, "heads": 4, "kv_heads": 2, "vocab": 96})";
constexpr const char* kLlama =
    R"({"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96})";

std::string refusal_of_model(const std::string& name) {
  return refusal_of([&] { find_model(name); });
}

TEST_CASE("parameter_count: presets have the published number of parameters", "[models][moe]") {
  // Totals of the safetensors files on the Hugging Face hub; for models with tied weights num_parameters() of transformers,
  // because some files hold the head a second time. Of multimodal models the language model, without multi-token prediction.
  std::ifstream file(PRECBENCH_SOURCE_DIR "/models/config/presets.json");
  int published = 0;
  for (const json& row : json::parse(file)) {
    if (!row.contains("parameters")) continue;
    INFO(row.at("name"));
    CHECK(parameter_count(find_model(row.at("name"))) == row.at("parameters"));
    ++published;
  }
  CHECK(published > 100);
  // DeepSeek-V3: 671 billion, including the routers' biases, which no optimizer updates.
  const ModelConfig v3 = find_model("deepseek-v3");
  const std::int64_t biases = (v3.layers - v3.moe.dense_layers) * v3.moe.rule.experts;
  CHECK(parameter_count(v3) + biases == 671'026'419'200);
}

TEST_CASE("active_parameter_count: mixtures of experts have the published total and active parameters",
          "[models][moe]") {
  // In units of 1e7: model cards round so. gpt-oss counts active parameters without the embedding.
  for (const auto& [name, total, active] : {std::tuple{"qwen3-30b-a3b", 3053, 335},
                                            {"qwen3-235b-a22b", 23509, 2219},
                                            {"mixtral-8x7b", 4670, 1288},
                                            {"deepseek-v2-lite-gqa", 1579, 274},
                                            {"llama4-scout", 10777, 1717},
                                            {"moe-4b-a1b", 365, 124},
                                            {"deepseek-v2-lite", 1571, 266},
                                            {"olmoe-1b-7b", 692, 128},
                                            {"gpt-oss-20b", 2091, 361},
                                            {"gpt-oss-120b", 11683, 513}}) {
    INFO(name);
    const ModelConfig model = find_model(name);
    const std::int64_t embedding = model.name.starts_with("gpt-oss") ? model.vocab * model.width : 0;
    CHECK(std::round(static_cast<double>(parameter_count(model)) / 1e7) == total);
    CHECK(std::round(static_cast<double>(active_parameter_count(model) - embedding) / 1e7) == active);
  }
  const ModelConfig dense = find_model("llama3.1-8b");
  CHECK(active_parameter_count(dense) == parameter_count(dense));
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
  for (const auto& [name, parameters, tolerance] : {std::tuple{"15m", 15e6, 0.06},
                                                    {"36m", 36e6, 0.01},
                                                    {"125m", 125e6, 0.02},
                                                    {"tiny-moe", 1.8e6, 0.03},
                                                    {"tiny-moe-shared", 2e6, 0.025}}) {
    INFO(name);
    const ModelConfig config = find_model(name);
    CHECK(std::abs(static_cast<double>(parameter_count(config)) / parameters - 1) < tolerance);
    for (std::int64_t size : {config.width, config.ffn, config.q_width(), config.vocab})
      CHECK(size % 128 == 0);
  }
}

TEST_CASE("model_to_json: every preset is valid, has no warnings and survives a round trip", "[models]") {
  for (const ModelConfig& preset : model_presets()) {
    INFO(preset.name);
    CHECK_NOTHROW(validate(preset));
    CHECK(preset.not_modelled.empty());
    CHECK(model_from_json(json::parse(model_to_json(preset).dump())) == preset);
  }
  // A dense model of Llama's form has no other keys, because ids hash the JSON.
  for (const char* key : {"experts", "cuts", "norms"})
    CHECK_FALSE(model_to_json(find_model("tiny")).contains(key));
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
  // Layers with a window, without RoPE or with experts beyond the cut go, and what only they have.
  const ModelConfig gemma = cut_to(find_model("gemma-3-1b"), 6);
  CHECK(gemma.block.local_layers == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  CHECK_NOTHROW(validate(gemma));
  CHECK(cut_to(find_model("smollm3-3b"), 4).block.layers_without_rope == std::vector<std::int64_t>{3});
  const ModelConfig maverick = cut_to(find_model("llama4-maverick"), 3);
  CHECK(maverick.layers_with_experts() == std::vector<std::int64_t>{1});
  CHECK(maverick.layer_of_each_kind() == std::vector<std::int64_t>{0, 1});
  CHECK((maverick.block.temperature == 0 && maverick.block.temperature_positions == 0));
}

TEST_CASE("find_model: a file is named after its path and errors name the file", "[models]") {
  const TempDirectory folder;
  CHECK(find_model(folder.write("mine.json", kSmall)).name == "mine");
  CHECK(find_model(folder.write("Qwen3-4B/config.json", kLlama)).name == "Qwen3-4B");
  CHECK_THROWS_AS(find_model(folder.write("broken.json", "{\"layers\": 2")), InvalidInput);
  CHECK_THROWS_AS(find_model(folder / "no_such_model.json"), InvalidInput);
  const std::string twice = folder.write("twice.json", R"({"layers": 2, "width": 64, "layers": 4})");
  CHECK(refusal_of_model(twice) == twice + ": layers: given twice; remove one of the two");
  json odd = json::parse(kSmall);
  odd["head_dim"] = 7;
  CHECK(contains(refusal_of_model(folder.write("odd.json", odd.dump())), "odd.json: head_dim: 7 is odd"));
}

TEST_CASE("find_model: a byte order mark and Python constants in unread keys are accepted", "[models]") {
  const TempDirectory folder;
  const std::string text = kLlama;
  CHECK(find_model(folder.write("mark.json", "\xEF\xBB\xBF" + text)).layers == 4);
  const auto with_text = [&](const std::string& member) {
    return folder.write("python.json", "{" + member + "," + text.substr(1));
  };
  CHECK(find_model(with_text(R"("time_step_limit": [0.0, Infinity])")).not_modelled ==
        Lines{"keys that are not known here were left out: time_step_limit"});
  const std::string path = with_text(R"("initializer_range": NaN)");
  CHECK(refusal_of_model(path) == path + ": initializer_range: expected a number, got NaN");
  with_text(R"("rope_theta": -Infinity)");
  CHECK(refusal_of_model(path) == path + ": rope_theta: expected a number, got -Infinity");
  with_text("\n\"rope_theta\": nan");
  CHECK(refusal_of_model(path) == path + ": not valid JSON in line 2, column 16");
  const std::string wide = folder.write("wide.json", std::string("\xFF\xFE{\0}\0", 6));
  CHECK(refusal_of_model(wide) == wide + ": not valid JSON: the file is UTF-16; save it as UTF-8");
}

TEST_CASE("find_model: config.json is named after its cache repository or its folder", "[models]") {
  const TempDirectory folder;
  const auto name_of = [&](const std::string& path) { return find_model(folder.write(path, kLlama)).name; };
  const std::string snapshot = "snapshots/0123456789abcdef0123456789abcdef01234567/config.json";
  CHECK(name_of("hub/models--meta-llama--Llama-3.2-1B/" + snapshot) == "Llama-3.2-1B");
  CHECK(name_of("hub/models--gpt2/" + snapshot) == "gpt2");
  CHECK(name_of("other/" + snapshot) == "0123456789abcdef0123456789abcdef01234567");
  CHECK(name_of("here/./config.json") == "here");
  CHECK(name_of("here/more/../config.json") == "here");
}

TEST_CASE("find_model: a folder with a config.json is a model", "[models]") {
  const TempDirectory folder;
  const std::string config = folder.write("mine/config.json", kLlama);
  CHECK(find_model(folder / "mine") == find_model(config));
  CHECK(find_model(folder / "mine/").name == "mine");
  const std::string weights = folder.write("mine/model.safetensors", "");
  CHECK(refusal_of_model(weights) ==
        weights + ": the name of a model's file ends in .json; did you mean " + config + "?");
  const std::string cached = folder.write("models--a--b/snapshots/01/config.json", kLlama);
  CHECK(find_model(folder / "models--a--b").name == "b");
  const std::string second = folder.write("models--a--b/snapshots/02/config.json", "{}");
  CHECK(refusal_of_model(folder / "models--a--b") ==
        folder / "models--a--b" + ": has several snapshots; give one of " + cached + ", " + second);
  CHECK(refusal_of_model(folder / ".") ==
        folder / "." + ": a folder without a config.json; a model is a preset or a .json file");
}

}  // namespace
}  // namespace precbench
