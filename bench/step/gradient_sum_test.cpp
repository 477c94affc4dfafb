// E4M3 gradients whose sums over ranks are rounded to E4M3 as the recipe asks: in the case, its record and
// its training.
#include "bench/step/rank_setup_testing.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

/// Writes a recipe like msamp_o1 with another gradients.sum and returns its path.
std::string with_sum(const TempDirectory& directory, const char* sum) {
  nlohmann::json row = recipe_to_json(find_recipe("msamp_o1"));
  row["name"] = "mine";
  row["gradients"]["sum"] = sum;
  return directory.write(std::string(sum) + ".json", row.dump());
}

}  // namespace

TEST_CASE("Rank: E4M3 gradients of several ranks are summed in the recipe's dtype", "[rank][fp8_gradients]") {
  const TempDirectory directory;
  const std::string rounded = with_sum(directory, "e4m3"), plain = with_sum(directory, "f32");
  const auto trained = [](const std::string& recipe, int ranks, const char* parallel = "ddp",
                          int accumulation = 1) {
    return train({.recipe = recipe, .ranks = ranks, .parallel = parallel, .accumulation = accumulation});
  };
  for (const int accumulation : {1, 2})
    check_same_bits(trained(rounded, 1, "ddp", accumulation), trained("msamp_o1", 1, "ddp", accumulation));
  for (const int ranks : {2, 4}) {
    INFO(ranks << " ranks");
    const Trained replicas = trained(rounded, ranks), before = trained("msamp_o1", ranks);
    check_same_bits(trained(plain, ranks), before);
    check_same_bits(trained(rounded, ranks, "fsdp"), replicas);
    // With two ranks, the one addition is rounded once either way, with scales that differ by powers of two.
    if (ranks > 2) CHECK(first_difference(replicas.gradients, before.gradients) != "");
    CHECK(replicas.losses[0] == before.losses[0]);
    for (std::size_t step = 0; step < replicas.losses.size(); ++step)
      CHECK(std::fabs(replicas.losses[step] / before.losses[step] - 1) < 1e-3);
  }
}

TEST_CASE("validate: gradients.sum comes from the recipe and applies to E4M3 gradients only",
          "[case][fp8_gradients]") {
  const TempDirectory directory;
  Case c;
  c.recipe = with_sum(directory, "f32");
  const Plan plain = validate(c);
  CHECK(!plain.parameters.round_gradient_sums);
  c.recipe = with_sum(directory, "e4m3");
  const Plan rounded = validate(c);
  CHECK(rounded.parameters.round_gradient_sums);
  CHECK(rounded.id != plain.id);
  CHECK((*definition_record(plain).recipe)["gradients"] == nlohmann::ordered_json{{"format", "e4m3"}});
  CHECK((*definition_record(rounded).recipe)["gradients"] ==
        nlohmann::ordered_json{{"format", "e4m3"}, {"sum", "e4m3"}});
  c.grads = "bf16";
  CHECK(!validate(c).parameters.round_gradient_sums);
  c = {};
  c.recipe = "msamp_o1";
  c.switch_recipe = with_sum(directory, "e4m3") + "@5";
  c.steps = 10;
  CHECK(contains(refusal_of([&] { validate(c); }),
                 "gradients e4m3 summed in e4m3, but the run has fp16, bf16, e4m3"));
}
