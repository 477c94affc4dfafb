// Cells of --sensitivity on ranks: each equals, bit for bit, the probe of a case with the same layers; a
// planted outlier is found in its block and layer; quantizing nothing costs nothing; memory is as predicted;
// training state is unchanged.
#include "bench/step/measure_sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/predict/predict.h"
#include "bench/step/fidelity_testing.h"
#include "bench/step/rank_testing.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

Case case_of(const std::string& recipe, const std::string& groups, int ranks = 1,
             const std::string& parallel = "ddp") {
  Case c = fidelity_case(4, recipe, ranks, parallel);
  c.lr = 3e-3;
  c.sensitivity = groups;
  return c;
}

struct Measured {
  SensitivityRecord sensitivity;
  Fidelity probe;
};

/// Measures the sensitivity at the weights that `prepare` leaves, or at the initial weights without it.
/// Checks that no more memory than predicted is used and that all ranks return the same.
Measured measured_sensitivity(const Plan& plan,
                              const std::function<void(Rank&, const DataSource&)>& prepare = {},
                              ReferencePlace place = ReferencePlace::device) {
  const DryRun accounts =
      dry_run(plan, nullptr, place == ReferencePlace::host ? std::optional(0) : std::nullopt);
  std::vector<Measured> results(plan.ranks);
  std::vector<int> unchanged(plan.ranks);
  std::vector<std::int64_t> peaks(plan.ranks);
  run_cpu_ranks(plan, accounts.extent, [&](Rank& rank, const DataSource& data) {
    const int r = rank.comm().rank();
    rank.parameters().initialize(plan.seed, kInitialDeviation);
    if (prepare) prepare(rank, data);
    const std::vector<std::uint64_t> before = rank.parameters().fingerprints();
    results[r].probe = measure_fidelity(rank, plan, data, place).front();
    results[r].sensitivity = measure_sensitivity(rank, plan, data, place);
    unchanged[r] = rank.parameters().fingerprints() == before;
    peaks[r] = rank.arena().peak().total();
  });
  CHECK(unchanged == std::vector<int>(plan.ranks, 1));
  for (const std::int64_t peak : peaks) CHECK(peak <= accounts.probe);
  const auto text_of = [](const Measured& m) {
    Record record;
    record.sensitivity = m.sensitivity;
    return nlohmann::ordered_json(record)["sensitivity"].dump();
  };
  for (const Measured& other : results) CHECK(text_of(other) == text_of(results[0]));
  return results[0];
}

const CellRecord& cell(const SensitivityRecord& record, const std::string& group, CellKind kind,
                       const std::string& part) {
  const auto found = std::find_if(record.cells.begin(), record.cells.end(), [&](const CellRecord& one) {
    return one.group == group && one.kind == kind && one.part == part;
  });
  INFO(group << " " << part);
  REQUIRE(found != record.cells.end());
  return *found;
}

bool same(const MeanInterval& a, const MeanInterval& b) {
  return a.mean == b.mean && a.low == b.low && a.high == b.high;
}
bool same(const WholeFidelity& a, const WholeFidelity& b) {
  return same(a.error, b.error) && same(a.cosine, b.cosine) && same(a.bias, b.bias);
}

/// Returns the part of a group and kind with the largest mean of a member.
std::string first_of(const SensitivityRecord& record, const std::string& group, CellKind kind,
                     MeanInterval CellRecord::*member) {
  const CellRecord* best = nullptr;
  for (const CellRecord& one : record.cells)
    if (one.group == group && one.kind == kind && (!best || *(one.*member).mean > *(best->*member).mean))
      best = &one;
  REQUIRE(best);
  return best->part;
}

/// Trains for some steps in the plan's recipe.
void train(Rank& rank, const DataSource& data, int steps) {
  for (int step = 0; step < steps; ++step) {
    rank.prepare(data, step, 0);
    rank.enqueue();
    rank.finish();
  }
}

}  // namespace

TEST_CASE("sensitivity: the whole recipe's cell equals the fidelity probe bit for bit", "[sensitivity]") {
  for (const char* recipe :
       {"tensorwise", "tensorwise_delayed", "blockwise", "mxfp8", "nvfp4_all", "quartet"})
    for (const auto& [ranks, parallel] : {std::pair{1, "ddp"}, {2, "fsdp"}}) {
      INFO(recipe << " " << ranks << " " << parallel);
      const Measured found = measured_sensitivity(validate(case_of(recipe, "gemms", ranks, parallel)));
      const CellRecord& whole = cell(found.sensitivity, "recipe", CellKind::whole, recipe);
      CHECK(same(whole.loss_difference, found.probe.loss_difference));
      CHECK(same(whole.whole, found.probe.whole));
      CHECK(found.sensitivity.loss_bf16 == found.probe.loss_bf16);
      CHECK(whole.bought_back.mean == 0);
      CHECK(whole.kept_flops == 0);
      CHECK(*whole.whole.error.mean > 0.02);
    }
}

TEST_CASE("sensitivity: a cell with a keep_bf16 list equals the probe of a case with that list",
          "[sensitivity]") {
  for (const char* recipe : {"rowwise", "tensorwise", "tensorwise_delayed"}) {
    Case c = case_of(recipe, "roles,blocks,linears");
    const Measured found = measured_sensitivity(validate(c));
    c.sensitivity = "";
    int kept = 0;
    for (const CellRecord& one : found.sensitivity.cells) {
      // One example of each way to choose layers; other blocks and layers use the same code.
      const bool example =
          one.part == "2" || one.part == "1.down" || one.part == "gate_up" || one.part == "k";
      if (one.kind != CellKind::kept || !example) continue;
      INFO(recipe << " " << one.group << " " << one.part);
      ++kept;
      c.keep_bf16 = fmt::format("{}", fmt::join(one.keep_bf16, ","));
      const Plan plan = validate(c);
      Fidelity probe;
      run_cpu_ranks(plan, dry_run(plan, nullptr).extent, [&](Rank& rank, const DataSource& data) {
        rank.parameters().initialize(plan.seed, kInitialDeviation);
        probe = measure_fidelity(rank, plan, data, ReferencePlace::device).front();
      });
      CHECK(same(one.loss_difference, probe.loss_difference));
      CHECK(same(one.whole, probe.whole));
    }
    CHECK(kept == (std::string(recipe) == "tensorwise_delayed" ? 3 : 4));
  }
}

TEST_CASE("sensitivity: quantizing nothing costs exactly nothing", "[sensitivity]") {
  for (const char* recipe : {"bf16", "rowwise", "tensorwise", "nvfp4_all"}) {
    INFO(recipe);
    const SensitivityRecord record =
        measured_sensitivity(validate(case_of(recipe, "gemms,operands"))).sensitivity;
    const CellRecord& control = cell(record, "recipe", CellKind::control, "nothing");
    CHECK(same(control.loss_difference, {0, 0, 0}));
    CHECK(same(control.whole.error, {0, 0, 0}));
    CHECK(control.kept_flops == (std::string(recipe) == "bf16" ? 0.0 : 1.0));
    if (std::string(recipe) != "bf16") continue;
    CHECK(record.cells.size() == 2);
    for (const CellRecord& one : record.cells) CHECK(same(one.loss_difference, {0, 0, 0}));
  }
}

TEST_CASE("sensitivity: backward GEMMs and gradients distort the gradient but not the loss before an update",
          "[sensitivity]") {
  const SensitivityRecord record =
      measured_sensitivity(validate(case_of("rowwise", "gemms,operands"))).sensitivity;
  for (const auto& [group, part] :
       {std::pair{"gemms", "dgrad"}, {"gemms", "wgrad"}, {"operands", "gradients"}}) {
    const CellRecord& one = cell(record, group, CellKind::alone, part);
    CHECK(one.loss_difference.mean == 0);
    CHECK(*one.whole.error.mean > 0.01);
  }
  const CellRecord& whole = cell(record, "recipe", CellKind::whole, "rowwise");
  const CellRecord& fprop = cell(record, "gemms", CellKind::alone, "fprop");
  CHECK(same(fprop.loss_difference, whole.loss_difference));
  CHECK(*fprop.whole.error.mean < *whole.whole.error.mean);
  CHECK(cell(record, "gemms", CellKind::kept, "fprop").loss_difference.mean == 0);
  for (const char* part : {"weights", "activations"})
    CHECK(cell(record, "operands", CellKind::alone, part).loss_difference.mean != 0);
}

TEST_CASE("sensitivity: mantissa bits halve the gradient error and scale granularity hardly changes it",
          "[sensitivity]") {
  const SensitivityRecord record =
      measured_sensitivity(validate(case_of("rowwise", "elements,scales"))).sensitivity;
  const auto error = [&](const char* group, const char* part) {
    return *cell(record, group, CellKind::variant, part).whole.error.mean;
  };
  const double own = *cell(record, "recipe", CellKind::whole, "rowwise").whole.error.mean;
  // One bit is a factor of two, except for values below the smallest normal.
  CHECK((error("elements", "e4m4") < 0.6 * own && error("elements", "e4m4") > 0.4 * own));
  CHECK((error("elements", "e4m2") > 1.7 * own && error("elements", "e4m2") < 2.3 * own));
  for (const char* scales : {"tensor", "1x128", "1x32"}) {
    INFO(scales << " " << error("scales", scales) / own);
    CHECK((error("scales", scales) > 0.8 * own && error("scales", scales) < 1.25 * own));
  }
}

TEST_CASE("sensitivity: an outlier planted in one block's FFN is found in that block and layer",
          "[sensitivity]") {
  // The outlier is in channels of the down projection's input, which has one scale per token, so that the
  // other channels underflow. BF16 results do not change.
  static constexpr int kBlock = 2, kChannels = 4;
  static constexpr std::int64_t kFfn = 256, kWidth = 128;
  static const std::string kMlp = fmt::format("model.layers.{}.mlp.", kBlock);
  const auto change = [](Rank& rank, const std::function<void(Named&)>& op) {
    Named weights = saved(rank.parameters(), Parameters::Kind::weights);
    op(weights);
    rank.parameters().load([&](const Parameter& p, float* values) {
      const std::vector<float>& source = weights.at(p.name);
      std::copy(source.begin(), source.end(), values);
    });
  };
  // After so few steps one FFN of four hardly affects the loss unless its output is large.
  const auto train_on_ffn = [&](Rank& rank, const DataSource& data) {
    change(rank, [](Named& weights) {
      for (float& value : weights.at(kMlp + "down_proj.weight")) value *= 32;
    });
    train(rank, data, 60);
  };
  const auto plant = [&](Rank& rank, const DataSource& data) {
    train_on_ffn(rank, data);
    change(rank, [](Named& weights) {
      std::vector<float>& up = weights.at(kMlp + "up_proj.weight");      // [kFfn, kWidth]
      std::vector<float>& down = weights.at(kMlp + "down_proj.weight");  // [kWidth, kFfn]
      for (std::int64_t channel = 0; channel < kFfn; channel += kFfn / kChannels)
        for (std::int64_t i = 0; i < kWidth; ++i) {
          up[static_cast<std::size_t>(channel * kWidth + i)] *= 0x1p16f;
          down[static_cast<std::size_t>(i * kFfn + channel)] *= 0x1p-16f;
        }
    });
  };
  const Plan plan = validate(case_of("rowwise", "roles,blocks,linears,best"));
  const SensitivityRecord found = measured_sensitivity(plan, plant).sensitivity;
  const SensitivityRecord without =
      measured_sensitivity(validate(case_of("rowwise", "gemms")), train_on_ffn).sensitivity;
  CHECK(std::fabs(*found.loss_bf16 - *without.loss_bf16) < 1e-4);
  const double price = *cell(found, "recipe", CellKind::whole, "rowwise").loss_difference.mean;
  // The planted layer must account for 0.8 of the price (below), so the recipe without it may cost at most a
  // fifth.
  CHECK(price > 5 * std::fabs(*cell(without, "recipe", CellKind::whole, "rowwise").loss_difference.mean));
  const std::string block = std::to_string(kBlock);
  CHECK(first_of(found, "blocks", CellKind::alone, &CellRecord::loss_difference) == block);
  CHECK(first_of(found, "blocks", CellKind::kept, &CellRecord::bought_back) == block);
  CHECK(first_of(found, "roles", CellKind::alone, &CellRecord::loss_difference) == "down");
  CHECK(first_of(found, "roles", CellKind::kept, &CellRecord::bought_back) == "down");
  CHECK(first_of(found, "linears", CellKind::kept, &CellRecord::bought_back) == block + ".down");
  // This one layer is nearly all of the price and the first choice of every set; by price per FLOP it is the
  // only one.
  CHECK(*cell(found, "linears", CellKind::kept, block + ".down").bought_back.mean > 0.8 * price);
  const CellRecord& cheapest = cell(found, "best", CellKind::set, "1 by price per FLOP");
  CHECK(cheapest.keep_bf16 == std::vector<std::string>{"block:" + block + ".down"});
  CHECK(*cheapest.bought_back.mean > 0.5 * price);
  // Measured on other tokens than the choice.
  CHECK(cheapest.bought_back.mean !=
        cell(found, "linears", CellKind::kept, block + ".down").bought_back.mean);
}

TEST_CASE("sensitivity: sums compare the parts with the whole batch by batch", "[sensitivity]") {
  const SensitivityRecord record = measured_sensitivity(validate(case_of("rowwise", "blocks"))).sensitivity;
  double alone = 0, kept = 0;
  for (const CellRecord& one : record.cells) {
    if (one.kind == CellKind::alone) alone += *one.loss_difference.mean;
    if (one.kind == CellKind::kept) kept += *one.bought_back.mean;
  }
  const double whole = *cell(record, "recipe", CellKind::whole, "rowwise").loss_difference.mean;
  REQUIRE(record.sums.size() == 2);
  for (const CellSum& sum : record.sums) {
    const double want = sum.kind == CellKind::alone ? alone : kept;
    CHECK(std::fabs(*sum.sum.mean - want) < 1e-12);
    CHECK(std::fabs(*sum.interaction.mean - (want - whole)) < 1e-12);
    CHECK((*sum.interaction.low < *sum.interaction.mean && *sum.interaction.mean < *sum.interaction.high));
  }
}

TEST_CASE("sensitivity: neither ranks nor the place of the BF16 gradient change a cell", "[sensitivity]") {
  // With scales of 32 values, splitting the tokens among ranks splits no scale group.
  const std::string groups = "operands,blocks,best";
  const SensitivityRecord one = measured_sensitivity(validate(case_of("mxfp8", groups))).sensitivity;
  const auto check_near = [&](const SensitivityRecord& other) {
    REQUIRE(other.cells.size() >= 2 + 3 + 8);
    for (std::size_t i = 0; i < 2 + 3 + 8; ++i) {
      INFO(one.cells[i].group << " " << one.cells[i].part);
      CHECK(std::fabs(*one.cells[i].loss_difference.mean - *other.cells[i].loss_difference.mean) < 1e-5);
      CHECK(std::fabs(*one.cells[i].whole.error.mean - *other.cells[i].whole.error.mean) < 1e-5);
    }
  };
  check_near(measured_sensitivity(validate(case_of("mxfp8", groups, 2))).sensitivity);
  check_near(measured_sensitivity(validate(case_of("mxfp8", groups, 4, "fsdp"))).sensitivity);
  check_near(measured_sensitivity(validate(case_of("mxfp8", groups)), {}, ReferencePlace::host).sensitivity);
}

TEST_CASE("sensitivity: models with experts have cells too", "[sensitivity]") {
  Case c = case_of("rowwise", "standard");
  c.model = "tiny-moe";
  const SensitivityRecord record = measured_sensitivity(validate(c)).sensitivity;
  CHECK(cell(record, "recipe", CellKind::control, "nothing").loss_difference.mean == 0);
  CHECK(*cell(record, "roles", CellKind::alone, "down").whole.error.mean > 0);
  CHECK(record.skipped.size() == 4);  // element formats that no grouped GEMM supports
}
