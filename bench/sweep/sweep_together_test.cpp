// Several cases at a time, as studies run them: every case becomes one row without a speed, and a refused one
// ends the others. Also the place of rows in a study.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <sstream>

#include "bench/process/case_process_testing.h"
#include "bench/sweep/sweep.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"

using namespace precbench;
using Clock = std::chrono::steady_clock;

namespace {

constexpr const char* kSlowCase = "one case beside others";

enum Way : std::int64_t { kRefused = 1, kHangs = 2, kFirst = 10 };

Record slow_run(const Case& c, const NodeShare& share, StepBoard&) {
  if (c.seed == kRefused) throw InvalidInput("--data: nothing there");
  if (c.seed == kHangs) {
    std::ofstream(c.save_init) << getpid() << "\n" << std::flush;
    pause();
  }
  const auto begin = Clock::now().time_since_epoch().count();
  if (!c.save_final.empty()) {  // waits until another case runs, too
    open_gate(c.save_final);
    wait_at_gate(c.save_init);
  }
  Record record = start_record(validate(c));
  record.metrics.emplace().tokens_per_s = 100;
  record.warnings.push_back(fmt::format("gpu {}{}", share.first_gpu, share.beside_others ? " shared" : ""));
  record.warnings.push_back(fmt::format("{} {}", begin, Clock::now().time_since_epoch().count()));
  return record;
}

Case case_of(std::int64_t seed) {
  Case c;
  c.device = "cpu", c.seed = seed;
  return c;
}

std::vector<Plan> grid_of(const std::vector<std::int64_t>& seeds) {
  std::vector<Plan> grid;
  for (const std::int64_t seed : seeds) grid.push_back(validate(case_of(seed)));
  return grid;
}

/// Returns the largest number of cases that ran at a time, from their begin and end ticks. All processes
/// share one clock.
int most_at_once(const std::vector<std::string>& ticks) {
  std::map<std::int64_t, int> changes;
  for (const std::string& text : ticks) {
    std::int64_t begin = 0, end = 0;
    std::istringstream(text) >> begin >> end;
    ++changes[begin], --changes[end];
  }
  int now = 0, most = 0;
  for (const auto& [tick, change] : changes) most = std::max(most, now += change);
  return most;
}

}  // namespace

TEST_CASE("one case beside others", "[.]") { be_child(kSlowCase, slow_run); }

TEST_CASE("run_sweep: cases at a time are a row each without a speed and take turns on GPUs", "[sweep]") {
  const TempDirectory directory;
  SweepOptions options = sweep_into(directory, kSlowCase);
  options.at_once = 4, options.gpus = 2;
  std::vector<Case> grid;
  for (std::int64_t i = 0; i < 12; ++i) grid.push_back(case_of(kFirst + i));
  for (const int i : {0, 1}) {  // each waits for the other
    grid[i].save_init = directory / fmt::format("gate {}", i);
    grid[i].save_final = directory / fmt::format("gate {}", 1 - i);
  }
  CHECK(run_sweep(grid, options) == kSweepDone);
  const auto rows = rows_by_seed(options);
  CHECK(rows.size() == 12);
  std::set<std::string> gpus;
  std::vector<std::string> ticks;
  for (const auto& [seed, row] : rows) {
    CHECK(!row.metrics->tokens_per_s);
    REQUIRE(row.warnings.size() == 3);
    gpus.insert(row.warnings[0]);
    ticks.push_back(row.warnings[1]);
    CHECK(row.warnings[2].find("4 cases ran concurrently") != std::string::npos);
  }
  CHECK(most_at_once(ticks) > 1);
  CHECK(most_at_once(ticks) <= 4);
  CHECK(gpus == std::set<std::string>{"gpu 0 shared", "gpu 1 shared"});
}

TEST_CASE("run_sweep: one refused case ends those running beside it", "[sweep]") {
  const TempDirectory directory;
  SweepOptions options = sweep_into(directory, kSlowCase);
  options.at_once = 3;
  std::vector<Plan> grid = grid_of({kFirst, kRefused, kFirst + 1});
  Case hangs = case_of(kHangs);
  hangs.save_init = directory / "pid";
  grid.insert(grid.begin(), validate(hangs));
  CHECK_THROWS_AS(precbench::run_sweep(grid, options), InvalidInput);
  if (const std::string pid = file_text(hangs.save_init); !pid.empty()) CHECK(!alive(std::stoi(pid)));
}

TEST_CASE("run_sweep: a finished row takes its current place in a study and does not run again", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = sweep_into(directory, kSlowCase);
  std::vector<Plan> grid = grid_of({kFirst, kFirst + 1});
  grid[0].study.emplace().study = "one";
  grid[0].study->trunk = 1;
  grid[0].study->apart_from = "rowwise";
  CHECK(precbench::run_sweep(grid, options) == kSweepDone);
  auto rows = rows_by_seed(options);
  CHECK(rows[kFirst].study == *grid[0].study);
  CHECK(!rows[kFirst + 1].study);
  CHECK(rows[kFirst].metrics->tokens_per_s == 100);  // it ran alone
  CHECK(rows[kFirst].warnings[0] == "gpu 0");
  grid[0].study->asked = true;
  CHECK(precbench::run_sweep(grid, options) == kSweepDone);
  auto again = rows_by_seed(options);
  CHECK(again[kFirst].study->asked);
  CHECK(again[kFirst].created == rows[kFirst].created);
}

TEST_CASE("run_sweep: a finished fork keeps the sizes that its study had before", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = sweep_into(directory, kSlowCase);
  std::vector<Plan> grid = grid_of({kFirst, kFirst + 1});
  for (std::size_t i = 0; i < 2; ++i) {
    auto& place = grid[i].study.emplace();
    place.study = "one", place.trunk = static_cast<std::int64_t>(i) + 1, place.seed = 1;
  }
  using Sizes = std::vector<StudySize>;
  const auto sizes_of = [&](std::optional<Sizes> now) {
    for (Plan& plan : grid) plan.study->sizes = now;
    CHECK(precbench::run_sweep(grid, options) == kSweepDone);
    auto rows = rows_by_seed(options);
    CHECK(rows[kFirst].study->sizes == rows[kFirst + 1].study->sizes);
    return rows[kFirst].study->sizes.value_or(Sizes{});
  };
  CHECK(sizes_of({}).empty());  // an older version's rows: their own number of trunks, seeds and ages
  CHECK(sizes_of(Sizes{{3, 1, 1}}) == Sizes{{2, 1, 1}, {3, 1, 1}});
  CHECK(sizes_of(Sizes{{3, 1, 1}}) == Sizes{{2, 1, 1}, {3, 1, 1}});
  CHECK(sizes_of(Sizes{{7, 1, 1}}) == Sizes{{2, 1, 1}, {3, 1, 1}, {7, 1, 1}});
}
