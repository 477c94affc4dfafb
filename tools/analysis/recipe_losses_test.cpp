// Tests the losses of runs from scratch beside BF16's: pairs, lengths, and runs that diverge.
#include "tools/analysis/recipe_losses.h"

#include <cmath>
#include <limits>

#include "kernels/testing/catch.h"
#include "results/record/record_samples.h"

using namespace precbench;

namespace {

bool close(const std::optional<double>& a, double b) { return a && std::abs(*a - b) < 1e-6; }

std::vector<RecipeLosses> losses_of(const std::vector<Record>& records) {
  const RecordSet set = samples::set_of(records);
  const Analysis analysis = analyze(all_of(set), Workloads(all_of(set)));
  REQUIRE(analysis.groups.size() == 1);
  std::vector<RecipeLosses> losses = recipe_losses(analysis.groups.front());
  for (RecipeLosses& one : losses) one.members.clear();  // they point into `set`
  return losses;
}

/// Returns runs of 100 steps of BF16 and of mxfp8, whose losses end `gaps` above BF16's of the same seed.
std::vector<Record> runs(const std::vector<double>& gaps) {
  std::vector<Record> records;
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    const double seed_offset = 0.05 * static_cast<double>(i);  // larger than the gaps
    const int seed = static_cast<int>(i) + 1;
    records.push_back(samples::gpu_record("bf16", 250, seed_offset, seed));
    records.push_back(samples::gpu_record("mxfp8", 250, seed_offset + gaps[i], seed));
  }
  return records;
}

}  // namespace

TEST_CASE("ema: the average starts at the first loss", "[losses]") {
  CHECK(ema({}).empty());
  const std::vector<double> smooth = ema(std::vector<double>{4, 2});
  REQUIRE(smooth.size() == 2);
  CHECK(std::abs(smooth[0] - 4) < 1e-12);
  CHECK(std::abs(smooth[1] - (0.09 * 4 + 0.1 * 2) / 0.19) < 1e-12);
}

TEST_CASE("recipe_losses: the gap is the mean over pairs of equal seed, with its interval", "[losses]") {
  const auto losses = losses_of(runs({0.001, 0.0012, 0.0008}));
  REQUIRE(losses.size() == 2);
  CHECK((losses[0].is_bf16 && !losses[0].gap && losses[1].baseline == 0));
  CHECK((losses[1].seeds == 3 && losses[1].steps == 100 && losses[1].diverged == 0));
  CHECK(close(losses[1].gap, 0.001));
  CHECK(close(losses[1].final_loss, *losses[0].final_loss + 0.001));
  CHECK(close(losses[1].excess_loss, *losses[1].final_loss - 2.1));
  // sd 0.0002, t(0.975, 2) = 4.30265: half-width 0.000496826
  REQUIRE(losses[1].gap_interval);
  CHECK(std::abs(losses[1].gap_interval->low - (0.001 - 0.000496826)) < 1e-6);
  CHECK(losses[1].final_interval->high - losses[1].final_interval->low > 0.1);  // of the seeds
  CHECK_FALSE(losses_of(runs({0.01}))[1].gap_interval);
}

TEST_CASE("recipe_losses: runs of different lengths are compared after as many steps as all have", "[losses]") {
  std::vector<Record> records = runs({0, 0, 0});
  records[3].training->loss.resize(60);
  const auto losses = losses_of(records);
  CHECK((losses[1].steps == 60 && losses[0].steps == 100));
  CHECK(close(losses[1].gap, 0));
}

TEST_CASE("recipe_losses: diverged runs are counted and in no mean", "[losses]") {
  std::vector<Record> records = runs({0.001, 0.002, 0.003});
  records[1].status = Status::diverged;
  records[1].training->loss.resize(20);
  records[3].training->loss[50] = std::numeric_limits<double>::quiet_NaN();
  auto losses = losses_of(records);
  CHECK((losses[1].diverged == 2 && losses[1].seeds == 1 && losses[1].steps == 100));
  CHECK(close(losses[1].gap, 0.003));
  // Without a sound BF16 run of the same seed there is a loss and no gap.
  records[4].status = Status::diverged;
  losses = losses_of(records);
  CHECK((losses[0].diverged == 1 && losses[1].final_loss && !losses[1].gap));
}

TEST_CASE("recipe_losses: failed runs and those with too few steps have no losses", "[losses]") {
  std::vector<Record> records = runs({0.0});
  records.push_back(samples::failed_record("rowwise", Status::oom, "full"));
  CHECK(losses_of(records).size() == 2);
  Record r = samples::gpu_record("bf16", 250);
  r.training->loss.resize(4);
  CHECK(losses_of({r}).empty());
}
