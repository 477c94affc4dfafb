// Tests held-out losses: averages over seeds, and pairs with BF16.
#include "tools/analysis/held_out_gap.h"

#include <deque>

#include "kernels/testing/catch.h"
#include "results/record/record_samples.h"

using namespace precbench;

namespace {

/// Runs of one recipe; owns the records.
class Runs {
 public:
  Runs& add(int seed, const std::vector<Evaluation>& evaluations) {
    Record record = samples::gpu_record("blockwise", 200, 0, seed);
    record.training->evaluations = evaluations;
    rows_.push_back({std::move(record), {"here", 1}});
    return *this;
  }
  RecipeLosses recipe() const {
    RecipeLosses recipe;
    for (const LocatedRecord& row : rows_) recipe.members.push_back(&row);
    return recipe;
  }

 private:
  std::deque<LocatedRecord> rows_;
};

Evaluation at(std::int64_t step, std::optional<double> loss) {
  return {step, 640, loss, std::nullopt, std::nullopt};
}

}  // namespace

TEST_CASE("held_out_curve: only steps that every seed has are included", "[held_out]") {
  Runs runs;
  runs.add(1, {at(10, 4.0), at(20, 3.0), at(30, 2.0)})
      .add(2, {at(10, 5.0), at(20, std::nullopt), at(30, 2.5)});
  const auto curve = held_out_curve(runs.recipe());
  REQUIRE(curve.size() == 2);
  CHECK((curve[0].step == 10 && curve[0].mean == 4.5));
  CHECK((curve[1].step == 30 && curve[1].mean == 2.25));
  REQUIRE(curve[1].interval);
  CHECK((curve[1].interval->low < 2.25 && curve[1].interval->high > 2.25));
}

TEST_CASE("held_out_difference: seeds are paired however far they lie apart", "[held_out]") {
  Runs bf16, other;
  bf16.add(1, {at(10, 4.0)}).add(2, {at(10, 9.0)}).add(3, {at(10, 1.0)});
  other.add(2, {at(10, 9.25)}).add(1, {at(10, 4.25)}).add(7, {at(10, 99.0)});  // BF16 lacks this seed
  const auto difference = held_out_difference(other.recipe(), bf16.recipe());
  REQUIRE(difference.size() == 1);
  CHECK(difference[0].mean == 0.25);
  REQUIRE(difference[0].interval);
  CHECK(difference[0].interval->low == 0.25);
  Runs alone;
  alone.add(1, {at(10, 4.5)});
  const auto single = held_out_difference(alone.recipe(), bf16.recipe());
  REQUIRE(single.size() == 1);
  CHECK((single[0].mean == 0.5 && !single[0].interval));
}
