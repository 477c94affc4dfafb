// Differences between definitions and their texts.
#include "results/record/definition_record.h"

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_samples.h"

using namespace precbench;
using samples::redefined;

namespace {

const Record kBase = samples::gpu_record("mxfp8", 250);

std::optional<DefinitionDifference> difference_to(const Record& record) {
  return first_difference(*kBase.definition, *record.definition);
}

}  // namespace

TEST_CASE("first_difference: names the first differing value of two definitions", "[definition]") {
  CHECK(!difference_to(kBase));
  const auto rounding =
      difference_to(redefined(kBase, &DefinitionRecord::recipe, "/fprop/a/scale_rounding", "floor"));
  REQUIRE(rounding);
  CHECK(rounding->field == "recipe.fprop.a.scale_rounding");
  CHECK((rounding->baseline == "rceil" && rounding->current == "floor"));
  const auto younger = difference_to(redefined(kBase, &DefinitionRecord::model, "/experts", 8));
  REQUIRE(younger);
  CHECK((younger->field == "model.experts" && younger->baseline == "none" && younger->current == "8"));
  CHECK(difference_to(samples::gpu_record("mxfp8", 250, 0, 2))->field == "data.seed");
}

TEST_CASE("first_difference: the reference of a recipe does not count", "[definition]") {
  const Record renamed = redefined(kBase, &DefinitionRecord::recipe, "/reference", "another paper");
  CHECK(!difference_to(renamed));
  CHECK(canonical_text(*renamed.definition) == canonical_text(*kBase.definition));
}

TEST_CASE("canonical_text: depends on every value but not on the order of keys", "[definition]") {
  const auto text = [](nlohmann::ordered_json model) {
    DefinitionRecord definition = *kBase.definition;
    definition.model = std::make_shared<const nlohmann::ordered_json>(std::move(model));
    return canonical_text(definition);
  };
  CHECK(text({{"layers", 2}, {"width", 4}}) == text({{"width", 4}, {"layers", 2}}));
  CHECK(text({{"layers", 2}, {"width", 4}}) != text({{"layers", 2}, {"width", 5}}));
  CHECK(contains(text({{"layers", 2}}), "model.layers=2\n"));
}
