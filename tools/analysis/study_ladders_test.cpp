// Tests ladders on rows with a known truth.
#include "tools/analysis/study_ladders.h"

#include <optional>
#include <tuple>
#include <utility>

#include "kernels/testing/catch.h"
#include "tools/analysis/study_samples.h"

using namespace precbench;
using namespace precbench::study_samples;

namespace {

constexpr double kLadderMargin = 0.01;

StudyRows study_of(const Rows& rows) { return study_rows(rows.refs()).at(0); }

Fidelity under(const std::string& stress, double error) {
  return {stress, 2, 4.0, {}, {{error, {}, {}}, {0.99, {}, {}}, {-0.01, {}, {}}}, {}, {}};
}

/// Adds a fork at `factor` times a rate of 3e-4; factor 1 is the study's own rate. The batches of its second
/// half are harder by 0.1 nats for every recipe.
Record& add_rate(Rows& rows, const std::string& recipe, double factor, double difference) {
  Record& row = factor == 1 ? rows.add(recipe, StudyPart::fork, 1, 200, difference)
                            : rows.add(recipe, StudyPart::learning_rate, 1, 200, difference, factor);
  for (int step = kSteps / 2; step < kSteps; ++step) row.training->loss[step] += 0.1;
  row.training->lr = std::vector<double>(kSteps, 3e-4 * factor);
  return row;
}

/// Adds a trunk of 200 steps whose last step has this learning rate.
Record& add_trunk(Rows& rows, double last_rate) {
  Record& row = rows.add("bf16", StudyPart::trunk, 1, 0, 0);
  row.training->lr = std::vector<double>(200, 1e-2);
  row.training->lr[199] = last_rate;
  return row;
}

/// Returns the highest factor at which BF16 is stable.
std::optional<double> stable_in(const Rows& rows) {
  return bf16_rates(study_of(rows), kLadderMargin).holds();
}

}  // namespace

TEST_CASE("outlier_ladder: a rung breaks if its gradient error exceeds the limit", "[study]") {
  Rows rows;
  rows.add_forks("bf16", 0, 0);
  rows.add_forks("blockwise", 0.0012, 1e-5, [](Record& row) {
    row.fidelity = {under("none", 0.06),      under("ffn:8:4", 0.07), under("ffn:12:4", 0.19),
                    under("ffn:16:4", 0.21),  under("norm:-16:4", 9), under("norm:-8:4", 0.07),
                    under("norm:-12:4", 0.23)};
  });
  const Ladder ffn = outlier_ladder(study_of(rows), "blockwise", "ffn");
  CHECK((ffn.rungs.size() == 4 && ffn.holds() == 12 && ffn.breaks() == 16));
  CHECK((ffn.rungs[0].at == 0 && *ffn.rungs[0].value == Approx(0.06)));
  // Shrinking channels: the lower the exponent, the harder.
  const Ladder norm = outlier_ladder(study_of(rows), "blockwise", "norm");
  CHECK((norm.rungs.size() == 4 && norm.holds() == -8 && norm.breaks() == -12));
  CHECK(outlier_ladder(study_of(rows), "blockwise", "vo").rungs.empty());
}

TEST_CASE("outlier_ladder: recipes with equal error under an outlier both hold or both break", "[study]") {
  Rows rows;
  rows.add_forks("bf16", 0, 0);
  for (const auto& [recipe, plain, far] :
       {std::tuple("mxfp8", 0.06, 0.19), std::tuple("mxfp8_floor", 0.18, 0.19),
        std::tuple("rowwise", 0.06, 0.21), std::tuple("tensorwise", 0.18, 0.21)})
    rows.add_forks(recipe, 0.001, 1e-5, [&](Record& row) {
      row.fidelity = {under("none", plain), under("ffn:8:4", far)};
    });
  for (const char* recipe : {"mxfp8", "mxfp8_floor"})
    CHECK(outlier_ladder(study_of(rows), recipe, "ffn").holds() == 8);
  for (const char* recipe : {"rowwise", "tensorwise"})
    CHECK(outlier_ladder(study_of(rows), recipe, "ffn").breaks() == 8);
}

TEST_CASE("outlier_ladder: a recipe beyond the limit without outliers breaks at the first rung", "[study]") {
  Rows rows;
  rows.add_forks("bf16", 0, 0);
  rows.add_forks("nvfp4", 0.006, 1e-5, [](Record& row) {
    row.fidelity = {under("none", 0.21), under("ffn:8:4", 0.19)};
  });
  const Ladder ladder = outlier_ladder(study_of(rows), "nvfp4", "ffn");
  CHECK((!ladder.holds() && ladder.breaks() == 0));
}

TEST_CASE("loss_ladder: learning rates count only where BF16 is stable", "[study]") {
  Rows rows;
  for (const auto& [factor, cost] : {std::pair(1.0, 0.0), {3.0, 0.009}, {10.0, -0.5}, {30.0, 0.011}}) {
    add_rate(rows, "bf16", factor, cost);
    add_rate(rows, "blockwise", factor, cost + (factor == 10 ? 0.02 : 0.001));
  }
  const Ladder ladder = loss_ladder(study_of(rows), StudyPart::learning_rate, "blockwise", kLadderMargin);
  CHECK((ladder.rungs.size() == 2 && ladder.holds() == 3 && ladder.breaks() == 10));
  const Ladder bf16 = bf16_rates(study_of(rows), kLadderMargin);
  CHECK((bf16.holds() == 10 && bf16.breaks() == 30));
  CHECK(*bf16.rungs[0].value == Approx(0.009));
  // Nothing counts beyond a rung at which BF16 is unstable.
  add_rate(rows, "bf16", 40, 0);
  add_rate(rows, "blockwise", 40, 0.001);
  CHECK(loss_ladder(study_of(rows), StudyPart::learning_rate, "blockwise", kLadderMargin).rungs.size() == 2);
}

TEST_CASE("bf16_rates: BF16 is stable at the trunk's rate even if a lower rate ends lower", "[study]") {
  Rows rows;
  add_rate(rows, "bf16", 1, 0);
  Record& fast = add_rate(rows, "bf16", 3, 0.06);
  SECTION("without the trunk's row nobody knows") { CHECK(!stable_in(rows)); }
  SECTION("the trunk's rate is no lower") {
    add_trunk(rows, 9e-4);
    CHECK(stable_in(rows) == 3);
    fast.status = Status::diverged;
    CHECK(!stable_in(rows));
  }
  SECTION("the trunk's rate had fallen by then") {
    add_trunk(rows, 8e-4);
    CHECK(!stable_in(rows));
  }
  SECTION("the trunk's row ends before the fork's age") {
    add_trunk(rows, 9e-4).training->lr.resize(199);
    CHECK(!stable_in(rows));
  }
  SECTION("a trunk that did not end shows nothing") {
    add_trunk(rows, 9e-4).status = Status::crashed;
    CHECK(!stable_in(rows));
  }
}

TEST_CASE("bf16_rates: above the trunk's rate BF16 is not stable without a fork at the study's own rate",
          "[study]") {
  Rows rows;
  add_rate(rows, "bf16", 3, 0);
  const Ladder bf16 = bf16_rates(study_of(rows), kLadderMargin);
  CHECK((bf16.rungs.size() == 1 && !bf16.rungs[0].value && !bf16.holds()));
}

TEST_CASE("loss_ladder: a diverged run breaks its rung and a crashed or unpaired one is left out",
          "[study]") {
  Rows rows;
  for (const double factor : {1.0, 3.0, 10.0, 20.0, 30.0}) {
    add_rate(rows, "bf16", factor, 0);
    add_rate(rows, "blockwise", factor, 0.001);
  }
  RecordRefs refs = rows.refs();
  const auto row = [&](const std::string& recipe, double factor) -> Record& {
    for (const LocatedRecord* located : refs)
      if (located->record.study->rung == factor && located->record.case_fields["recipe"] == recipe)
        return const_cast<Record&>(located->record);
    throw std::runtime_error("no such row");
  };
  row("blockwise", 10).status = Status::diverged;
  row("blockwise", 20).status = Status::crashed;
  row("bf16", 30).status = Status::crashed;
  row("bf16", 30).training.reset();
  const Ladder ladder = loss_ladder(study_of(rows), StudyPart::learning_rate, "blockwise", kLadderMargin);
  REQUIRE(ladder.rungs.size() == 2);
  CHECK((ladder.holds() == 3 && ladder.breaks() == 10));
  CHECK(!ladder.rungs[1].value);
  CHECK(stable_in(rows) == 20);
}

TEST_CASE("loss_ladder: a recipe with fewer bits is compared with the plain BF16 fork", "[study]") {
  Rows rows;
  rows.add_forks("bf16", 0, 0);
  for (const int bits : {1, 2})
    rows.add("blockwise_minus", StudyPart::bits, 1, 200, bits == 1 ? 0.004 : 0.03, bits).study->base =
        "blockwise";
  rows.add("blockwise_minus_exponent", StudyPart::exponent_bits, 1, 200, 0.02, 1).study->base = "blockwise";
  const Ladder ladder = loss_ladder(study_of(rows), StudyPart::bits, "blockwise", kLadderMargin);
  CHECK((ladder.holds() == 1 && ladder.breaks() == 2));
  CHECK(*ladder.rungs[0].value == Approx(0.004));
  const Ladder exponents = loss_ladder(study_of(rows), StudyPart::exponent_bits, "blockwise", kLadderMargin);
  REQUIRE(exponents.rungs.size() == 1);
  CHECK((!exponents.holds() && exponents.breaks() == 1));
  CHECK(*exponents.rungs[0].value == Approx(0.02));
}

TEST_CASE("loss_ladder: equal rungs of batch and learning rate are kept separate", "[study]") {
  Rows rows;
  add_rate(rows, "bf16", 1, 0);
  add_rate(rows, "bf16", 2, 1);  // not stable
  rows.add("bf16", StudyPart::batch, 1, 200, 0, 2);
  rows.add("blockwise", StudyPart::batch, 1, 200, 0.001, 2);
  CHECK(loss_ladder(study_of(rows), StudyPart::batch, "blockwise", kLadderMargin).holds() == 2);
}

TEST_CASE("loss_ladder: a small batch with harder last batches is compared with BF16 on the same batches",
          "[study]") {
  Rows rows;
  for (const auto& [recipe, difference] : {std::pair("bf16", 0.0), {"blockwise", 0.001}}) {
    Record& row = rows.add(recipe, StudyPart::batch, 1, 200, difference, 1);
    for (int step = 0; step < kSteps; ++step) row.training->loss[step] += 0.5 * step / kSteps;
  }
  CHECK(loss_ladder(study_of(rows), StudyPart::batch, "blockwise", kLadderMargin).holds() == 1);
}
