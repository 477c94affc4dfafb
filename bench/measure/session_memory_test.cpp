// On the CPU a case takes exactly the memory that a dry run predicts, including the scratch memory of its
// ops.
#include "bench/case/case_testing.h"
#include "bench/case/plan.h"
#include "bench/measure/session_testing.h"
#include "kernels/numerics/recipe.h"

using namespace precbench;

namespace {

void check_memory(const Case& c) {
  const Record record = run_case(validate(c));
  INFO(c.model << " " << c.recipe << ": " << record.error.value_or("no error"));
  REQUIRE(record.status == Status::ok);
  const nlohmann::ordered_json memory = nlohmann::ordered_json(record).at("memory");
  CHECK(memory.at("measured") == memory.at("predicted"));
  CHECK(memory.at("measured").at("workspace") > 0);
}

}  // namespace

TEST_CASE("run_case: memory on the CPU is as predicted with every recipe", "[session]") {
  Case c = testing::with_flags(tiny_case(), "--batch 2 --seq 64 --steps 2");
  for (const char* model : {"tiny", "tiny-moe"}) {
    c.model = model;
    std::vector<Recipe> recipes = builtin_recipes();
    if (c.model == "tiny") recipes.insert(recipes.end(), fp4_recipes().begin(), fp4_recipes().end());
    for (const Recipe& recipe : recipes) {
      c.recipe = recipe.name;
      c.switch_recipe = "none";
      if (!unsupported_reason(validate(c))) check_memory(c);
    }
  }
}

TEST_CASE("run_case: memory on the CPU is as predicted in shards and with other optimizers and recomputation",
          "[session]") {
  Case c = testing::with_flags(tiny_case(),
                               "--steps 2 --model tiny-moe --recipe rowwise --gpus 2 --parallel fsdp");
  check_memory(c);
  c.ep = 2;
  check_memory(c);
  c = tiny_case();
  c.steps = 2;
  c.recipe = "quartet";
  c.head = "recipe";
  c.recompute = "block";
  c.optimizer = "muon";
  check_memory(c);
}
