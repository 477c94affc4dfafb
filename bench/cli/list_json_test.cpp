// list --json, and standard input in place of files.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/cli/cli_testing.h"
#include "bench/cli/recipe_sets.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "models/config/config.h"

using namespace precbench;
using namespace precbench::testing;
using nlohmann::json;

namespace {

json listed(const std::string& arguments) {
  const Answer answer =
      output_of("(" PRECBENCH_BINARY_DIR "/precbench list " + arguments + " --json 2>/dev/null)");
  INFO(answer.text);
  REQUIRE(answer.status == 0);
  return json::parse(answer.text);
}

Answer fed(const std::string& text, const std::string& arguments) {
  return output_of("printf '%s' '" + text + "' | " PRECBENCH_BINARY_DIR "/precbench " + arguments);
}

}  // namespace

TEST_CASE("list recipes --json: formats, support and sets", "[cli]") {
  const json all = listed("recipes");
  CHECK(all.at("recipes").size() == listed_recipes().size() + control_recipes().size());
  const json one = listed("recipes --recipe mxfp8").at("recipes").at(0);
  CHECK(recipe_from_json([&] {
          json file = one;
          file.erase("devices");
          return file;
        }()) == find_recipe("mxfp8"));
  CHECK(one.at("devices").at(0).at("device") == "cpu");
  CHECK(one.at("devices").at(0).at("execution") == "emulated");
  CHECK(one.at("devices").at(0).at("gemms").at("wgrad").at("reason").is_string());
  CHECK(all.at("sets").at("mx") == json(recipes_in("mx").value()));
  CHECK(all.at("sets").at("native").is_array());
}

TEST_CASE("list models --json: counts, hub names and the model itself", "[cli]") {
  CHECK(listed("models").at("models").size() == model_presets().size());
  const json one = listed("models --model Qwen/Qwen3-8B").at("models").at(0);
  CHECK(one.at("name") == "qwen3-8b");
  CHECK(one.at("parameters") == 8'190'735'360);
  const json& names = one.at("hub_names");
  CHECK(std::find(names.begin(), names.end(), "Qwen/Qwen3-8B") != names.end());
  CHECK(model_from_json(one.at("config")) == find_model("qwen3-8b"));
}

TEST_CASE("list devices --json: recipes by how they run", "[cli]") {
  const json devices = listed("devices");
  const json& cpu = devices.at("devices").at(0);
  CHECK(cpu.at("device") == "cpu");
  CHECK(cpu.at("recipes").at("native") == json(native_recipes("cpu")));
  std::size_t recipes = 0;
  for (const char* kind : {"native", "emulated", "unsupported"}) recipes += cpu.at("recipes").at(kind).size();
  CHECK(recipes == listed_recipes().size());
  CHECK(devices.at("no_gpu").is_string() == (devices.at("devices").size() == 1));
}

TEST_CASE("standard input: a model, a recipe or a sweep file", "[cli]") {
  const std::string model =
      R"({"layers": 1, "width": 64, "ffn": 96, "heads": 4, "kv_heads": 2, "vocab": 96})";
  CHECK(contains(fed(model, "list models --model -").text, "standard-input"));
  CHECK(contains(fed(model, "sweep --dry-run --device cpu --seq 32 --model -").text, "1 case"));
  const Answer run = fed(model, "run --device cpu --seq 32 --batch 1 --steps 1 --model -");
  CHECK(run.status == 0);
  CHECK(contains(run.text, "\"status\": \"ok\""));
  const Answer recipe = output_of(
      "(" PRECBENCH_BINARY_DIR "/precbench list recipes --recipe mxfp8 2>/dev/null) | " PRECBENCH_BINARY_DIR
      "/precbench list recipes --recipe -");
  CHECK(recipe.status == 0);
  CHECK(contains(recipe.text, "\"name\": \"mxfp8\""));
  CHECK(
      contains(fed("seq = \"32-64*2\"\nrecipe = \"mxfp8\"\n", "sweep --dry-run --device cpu --config -").text,
               "2 cases"));
  CHECK(refusal_in(fed("seq = 0\n", "sweep --dry-run --device cpu --config -")) ==
        "precbench: standard input:1: --seq: must be at least 1, not 0");
  CHECK(
      refusal_in(fed("{", "list models --model -")).starts_with("precbench: standard input: not valid JSON"));
  CHECK(refusal_in(fed(model, "sweep --dry-run --device cpu --recipe - --model -"))
            .ends_with("--recipe -: standard input is read once, and --model has read it"));
  CHECK(
      refusal_in(fed(model, "sweep --device cpu --model -")) ==
      "precbench: --model -: cases run in processes of their own, which cannot read standard input: use a file, or "
      "--dry-run or run");
  CHECK(contains(refusal_in(fed(model, "study --device cpu --recipe mxfp8 --model -")),
                 "--model -: a study runs in"));
}
