// Cases with adapters: what the flags mean, and that other cases do not notice.
#include <string>

#include "bench/case/case_testing.h"
#include "bench/case/plan.h"
#include "kernels/testing/catch.h"

using namespace precbench;
using namespace precbench::testing;

TEST_CASE("validate: adapters have a rank and an alpha, and the recipe no wgrad", "[lora]") {
  Case c = case_of_flags("--lora 8 --recipe mxfp8 --steps 4");
  const nlohmann::ordered_json json = case_to_json(c);
  Plan plan = validate(c);
  CHECK((plan.parameters.lora.rank == 8 && plan.parameters.lora.alpha == 16));
  CHECK(plan.recipe.fprop.b.quantized());
  CHECK(!plan.recipe.wgrad.a.quantized());
  CHECK(definition_record(plan).recipe->at("wgrad").dump().find("e4m3") == std::string::npos);
  CHECK(plan.parameters.frozen_formats.size() == static_cast<std::size_t>(plan.model.layers));
  c.lora_alpha = 4;
  CHECK(validate(c).parameters.lora.scale() == 0.5);
  CHECK(validate(c).id != plan.id);
  c.switch_recipe = "bf16@2";
  CHECK(validate(c).parameters.frozen_formats.empty());
  CHECK(json.at("lora_rank") == 8);
  CHECK(!json.contains("lora_alpha"));
  CHECK(!case_to_json(Case{}).contains("lora_rank"));
  CHECK(!validate(Case{}).parameters.lora);
}
