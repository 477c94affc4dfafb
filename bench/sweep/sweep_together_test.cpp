// Several cases at one time, as studies run them: every case is a row once, one that is refused ends the others, and rows
// say nothing of speed. And the place in a study that rows have.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "bench/process/case_process_testing.h"
#include "bench/sweep/sweep.h"
#include "kernels/base/errors.h"
#include "tools/testing/catch.h"

using namespace precbench;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

constexpr const char* kSlowCase = "one case beside others";

enum Way : std::int64_t { kRefused = 1, kHangs = 2, kFirst = 10 };

Record slow_run(const Case& c, const NodeShare& share, StepBoard&) {
  if (c.seed == kRefused) throw InvalidInput("--data: nothing there");
  if (c.seed == kHangs) pause();
  const auto begin = Clock::now().time_since_epoch().count();
  std::this_thread::sleep_for(300ms);
  Record record = start_record(resolve(c));
  record.metrics.emplace().tokens_per_s = 100;
  record.warnings.push_back(fmt::format("gpu {}", share.first_gpu));
  record.warnings.push_back(fmt::format("{} {}", begin, Clock::now().time_since_epoch().count()));
  return record;
}

std::vector<Plan> grid_of(const std::vector<std::int64_t>& seeds) {
  std::vector<Plan> grid;
  for (const std::int64_t seed : seeds) {
    Case c;
    c.device = "cpu", c.seed = seed;
    grid.push_back(resolve(c));
  }
  return grid;
}

/// Of some cases' ticks of begin and end: how many ran at one time, at most. One clock is all processes' of a machine.
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

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

TEST_CASE("one case beside others", "[.]") { be_child(kSlowCase, slow_run); }

TEST_CASE("cases at one time are a row each, without a speed, and take turns on the GPUs", "[sweep]") {
  const TempDirectory directory;
  SweepOptions options = sweep_into(directory, kSlowCase);
  options.at_once = 4, options.gpus = 2;
  std::vector<std::int64_t> seeds;
  for (std::int64_t i = 0; i < 12; ++i) seeds.push_back(kFirst + i);
  CHECK(precbench::run_sweep(grid_of(seeds), options) == kSweepDone);
  const auto rows = rows_by_seed(options);
  CHECK(rows.size() == 12);
  std::set<std::string> gpus;
  std::vector<std::string> ticks;
  for (const auto& [seed, row] : rows) {
    CHECK(!row.metrics->tokens_per_s);
    REQUIRE(row.warnings.size() == 3);
    gpus.insert(row.warnings[0]);
    ticks.push_back(row.warnings[1]);
    CHECK(row.warnings[2].find("4 cases ran at one time") != std::string::npos);
  }
  // Not a time that all take together: a machine may be busy with something else.
  CHECK(most_at_once(ticks) > 1);
  CHECK(most_at_once(ticks) <= 4);
  CHECK(gpus == std::set<std::string>{"gpu 0", "gpu 1"});
}

TEST_CASE("one case that is refused ends those beside it", "[sweep]") {
  const TempDirectory directory;
  SweepOptions options = sweep_into(directory, kSlowCase);
  options.at_once = 3;
  const auto begin = Clock::now();
  CHECK_THROWS_AS(precbench::run_sweep(grid_of({kHangs, kFirst, kRefused, kFirst + 1}), options),
                  InvalidInput);
  CHECK(seconds_since(begin) < 30);
}

TEST_CASE("a finished row takes the place that a study has for it now, and is not run again", "[sweep]") {
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
  CHECK(rows[kFirst].metrics->tokens_per_s == 100);  // it was alone
  grid[0].study->asked = true;
  CHECK(precbench::run_sweep(grid, options) == kSweepDone);
  auto again = rows_by_seed(options);
  CHECK(again[kFirst].study->asked);
  CHECK(again[kFirst].created == rows[kFirst].created);
}
