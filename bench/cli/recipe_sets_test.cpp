// Members of the sets of recipes, and --recipe with them.
#include "bench/cli/recipe_sets.h"

#include <algorithm>
#include <set>

#include "bench/cli/cli_testing.h"
#include "kernels/device/devices.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

using Words = std::vector<std::string>;

bool has(const std::string& set, const std::string& recipe) {
  const Words names = recipes_in(set).value();
  return std::count(names.begin(), names.end(), recipe) == 1;
}

}  // namespace

TEST_CASE("recipe sets: all has every built-in recipe and no control", "[cli]") {
  const Words all = recipes_in("all").value();
  CHECK(all.size() == listed_recipes().size());
  CHECK(all.front() == "bf16");
  CHECK(std::set<std::string>(all.begin(), all.end()).size() == all.size());
  for (const Recipe& control : control_recipes()) CHECK(!has("all", control.name));
}

TEST_CASE("recipe sets: fp8 and mx and fp4 follow the formats of the operands", "[cli]") {
  for (const char* recipe : {"tensorwise", "rowwise_gw_hp", "blockwise", "tensorwise_delayed", "msamp_o3"}) {
    INFO(recipe);
    CHECK(has("fp8", recipe));
    CHECK((!has("mx", recipe) && !has("fp4", recipe)));
  }
  for (const char* recipe : {"mxfp8", "mxfp8_floor", "mxfp8_w2d"}) {
    INFO(recipe);
    CHECK(has("mx", recipe));
    CHECK((!has("fp8", recipe) && !has("fp4", recipe)));
  }
  for (const char* recipe : {"mxfp4_bwd", "quartet"}) CHECK((has("mx", recipe) && has("fp4", recipe)));
  for (const char* recipe : {"nvfp4", "nvfp4_all", "quartet2"})
    CHECK((has("fp4", recipe) && !has("mx", recipe) && !has("fp8", recipe)));
  for (const char* set : {"fp8", "mx", "fp4"})
    for (const char* recipe : {"bf16", "coat", "bf16_moments"}) CHECK(!has(set, recipe));
  CHECK(!recipes_in("mxfp8"));
}

TEST_CASE("recipe sets: native asks the device", "[cli]") {
  const std::unique_ptr<Device> cpu = make_cpu_device(1);
  const Words native = native_recipes("cpu");
  CHECK(!native.empty());
  for (const Recipe& recipe : listed_recipes()) {
    INFO(recipe.name);
    bool all_native = true;
    for (const GemmRole role : kGemmRoles)
      all_native = all_native && recipe_support(*cpu, recipe, role).execution == Execution::native;
    CHECK((std::count(native.begin(), native.end(), recipe.name) == 1) == all_native);
  }
  Axes axes = {{"recipe", {"native,mxfp8"}}, {"device", {"cpu"}}};
  expand_native(axes);
  Words expected = native;
  expected.emplace_back("mxfp8");
  CHECK(axes.at("recipe") == expected);
  axes = {{"recipe", {"native"}}, {"device", {"cpu,cuda"}}};
  CHECK(refusal_of([&] { expand_native(axes); }) == "--recipe native: needs one device, not 2");
}

TEST_CASE("sweep: sets of recipes are lists without repetition", "[cli]") {
  const auto dry = [](const std::string& recipes) {
    const Answer answer = precbench_says("sweep --dry-run --device cpu --steps 100 --recipe " + recipes);
    INFO(answer.text);
    CHECK(answer.status == 0);
    return answer.text;
  };
  CHECK(contains(dry("all"), std::to_string(listed_recipes().size()) + " cases"));
  const std::size_t mx = recipes_in("mx")->size();
  CHECK(contains(dry("bf16,mx"), std::to_string(mx + 1) + " cases"));
  CHECK(contains(dry("bf16,mx,mxfp8"), std::to_string(mx + 1) + " cases"));
  CHECK(contains(dry("native"), std::to_string(native_recipes("cpu").size()) + " cases"));
  CHECK(contains(precbench_says("study --dry-run --device cpu --model tiny --recipe fp8").text, "forks"));
  const std::string list = precbench_says("list recipes").text;
  for (const RecipeSet& set : recipe_sets())
    CHECK(contains(list, "\n" + std::string(set.name) + ": " + set.what));
}

TEST_CASE("sweep: a model by its hub name is the preset", "[cli]") {
  const std::string dry = "sweep --dry-run --device cpu --seq 64 --batch 1 --model ";
  CHECK(precbench_says(dry + "HuggingFaceTB/SmolLM2-135M,smollm2-135m").text ==
        precbench_says(dry + "smollm2-135m").text);
  CHECK(contains(precbench_says("run --device cpu --steps 1 --seq 32 --batch 1 --model TINY").text,
                 "\"model\": \"tiny\""));
}
