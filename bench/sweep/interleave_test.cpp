// Interleaved sweeps: their order, the pooling of two runs, and that no accident loses or duplicates one. The
// child of these sweeps is this test binary: the hidden test below appends its recipe to a log and takes
// longer with every line in it, like a GPU that warms up.
#include "bench/sweep/interleave.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "bench/machine/environment.h"
#include "bench/process/case_process_testing.h"
#include "bench/sweep/sweep.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "results/record/host_time.h"
#include "results/record/record_file.h"
#include "results/record/record_samples.h"
#include "results/record/valid_json_testing.h"

using namespace precbench;

namespace {

constexpr const char* kTimedCase = "one case of an interleaved sweep";
constexpr std::int64_t kCrashes = 1, kCrashesAtSecond = 2;
constexpr double kFirstMs = 100, kDriftMs = 2;

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

/// Plays one case; the log is the case's save_init.
Record timed_run(const Case& c, const NodeShare&, StepBoard&) {
  const std::vector<std::string> before = lines_of(c.save_init);
  std::ofstream(c.save_init, std::ios::app) << c.recipe << "\n";
  const auto earlier = std::count(before.begin(), before.end(), c.recipe);
  if (c.recipe == "rowwise" && (c.seed == kCrashes || (c.seed == kCrashesAtSecond && earlier > 0))) _exit(7);
  if (!c.save_final.empty()) wait_at_gate(c.save_final);
  Record record = start_record(validate(c));
  record.env.host = host_name();
  const double ms = kFirstMs + kDriftMs * static_cast<double>(before.size());
  Timing& timing = record.timing.emplace();
  timing.samples_ms = {ms - 1, ms, ms + 1};
  timing.median_ms = ms, timing.min_ms = ms - 1, timing.iqr_ms = 1, timing.wall_ms = ms + 2;
  record.metrics.emplace().tokens_per_s = 1e6 / ms;
  record.training.emplace().loss.assign(3, std::sqrt(static_cast<double>(c.seed)));
  record.training->grad_norm.assign(3, 1.0);
  return record;
}

struct Fixture {
  TempDirectory directory;
  SweepOptions options = sweep_into(directory, kTimedCase);
  std::string log = directory / "log";

  Fixture() { options.interleave = true; }
  std::vector<Case> grid(const std::vector<std::string>& recipes,
                         const std::vector<std::int64_t>& seeds) const {
    std::vector<Case> cases;
    for (const std::string& recipe : recipes)
      for (const std::int64_t seed : seeds) {
        Case c;
        c.device = "cpu";
        c.recipe = recipe;
        c.seed = seed;
        c.save_init = log;
        cases.push_back(c);
      }
    return cases;
  }
  /// Returns the rows by recipe and seed; every row must be valid.
  std::map<std::pair<std::string, std::int64_t>, Record> rows() const {
    std::map<std::pair<std::string, std::int64_t>, Record> found;
    const RecordSet set = read_records({options.out});
    CHECK(set.problems == std::vector<std::string>{});
    for (const LocatedRecord& located : set.records) {
      const Record& r = located.record;
      valid_json(r);
      found[{r.case_fields["recipe"].get<std::string>(), r.case_fields["seed"].get<std::int64_t>()}] = r;
    }
    return found;
  }
  bool leaves_first_runs() const {
    return std::filesystem::exists(options.out + "/records.jsonl.first-runs");
  }
};

}  // namespace

TEST_CASE("one case of an interleaved sweep", "[.]") { be_child(kTimedCase, timed_run); }

TEST_CASE("run_sweep: interleaved recipes run there and back per setting and a steady drift cancels",
          "[interleave]") {
  const Fixture f;
  const auto grid = f.grid({"bf16", "rowwise", "mxfp8"}, {10, 11});
  CHECK(run_sweep(grid, f.options) == kSweepDone);
  const std::vector<std::string> there_and_back = {"bf16", "rowwise", "mxfp8", "mxfp8", "rowwise", "bf16"};
  std::vector<std::string> twice = there_and_back;
  twice.insert(twice.end(), there_and_back.begin(), there_and_back.end());
  CHECK(lines_of(f.log) == twice);
  CHECK(!f.leaves_first_runs());

  auto rows = f.rows();
  REQUIRE(rows.size() == grid.size());
  for (const auto& [key, row] : rows) {
    INFO(key.first << " " << key.second);
    const Timing& timing = *row.timing;
    const double expected = kFirstMs + kDriftMs * (key.second == 10 ? 2.5 : 8.5);
    CHECK(timing.median_ms == expected);
    CHECK(std::fabs(*row.metrics->tokens_per_s / (1e6 / expected) - 1) < 1e-12);
    REQUIRE(timing.runs.size() == 2);
    CHECK(timing.samples_ms.size() == 6);
    const int apart = key.first == "bf16" ? 5 : key.first == "rowwise" ? 3 : 1;
    CHECK(*timing.runs[1].median_ms - *timing.runs[0].median_ms == kDriftMs * apart);
    CHECK(std::fabs(*timing.between_runs - kDriftMs * apart / expected) < 1e-12);
    CHECK(timing.min_ms == *timing.runs[0].median_ms - 1);
    CHECK(timing.wall_ms == expected + 2);
  }

  // A second start does nothing, interleaved or not.
  SweepOptions plain = f.options;
  plain.interleave = false;
  CHECK(run_sweep(grid, f.options) == kSweepDone);
  CHECK(run_sweep(grid, plain) == kSweepDone);
  CHECK(lines_of(f.log) == twice);
}

TEST_CASE("run_sweep: finished cases are left out of the interleaving", "[interleave]") {
  const Fixture f;
  SweepOptions plain = f.options;
  plain.interleave = false;
  run_sweep(f.grid({"rowwise"}, {10}), plain);
  CHECK(run_sweep(f.grid({"bf16", "rowwise", "mxfp8"}, {10}), f.options) == kSweepDone);
  CHECK(lines_of(f.log) == std::vector<std::string>{"rowwise", "bf16", "mxfp8", "mxfp8", "bf16"});
  CHECK(f.rows().at({"rowwise", 10}).timing->runs.empty());
  CHECK(f.rows().at({"bf16", 10}).timing->runs.size() == 2);
}

TEST_CASE("run_sweep: an interleaved case that fails in either run is a row and does not run again",
          "[interleave]") {
  for (const std::int64_t seed : {kCrashes, kCrashesAtSecond}) {
    const Fixture f;
    CHECK(run_sweep(f.grid({"bf16", "rowwise", "mxfp8"}, {seed}), f.options) == kSweepFailures);
    const std::vector<std::string> all = {"bf16", "rowwise", "mxfp8", "mxfp8", "rowwise", "bf16"};
    const std::vector<std::string> once = {"bf16", "rowwise", "mxfp8", "mxfp8", "bf16"};
    CHECK(lines_of(f.log) == (seed == kCrashes ? once : all));
    CHECK(f.rows().at({"rowwise", seed}).status == Status::crashed);
    CHECK(f.rows().at({"mxfp8", seed}).status == Status::ok);
    CHECK(!f.leaves_first_runs());
  }
}

TEST_CASE("run_sweep: an interleaved sweep killed at any moment continues with the missing run",
          "[interleave]") {
  const Fixture f;
  auto grid = f.grid({"bf16", "tensorwise", "rowwise", "mxfp8"}, {10, 11, 12, 13, 14});
  std::vector<std::string> gates;
  for (std::size_t i = 3; i < grid.size(); i += 6) {
    gates.push_back(f.directory / fmt::format("gate {}", i));
    grid[i].save_final = gates.back();
  }
  const std::size_t kills = kill_until_done([&] { return run_sweep(grid, f.options); }, gates);
  CHECK(kills >= gates.size());
  const auto rows = f.rows();
  REQUIRE(rows.size() == grid.size());
  for (const auto& [key, row] : rows) {
    CHECK(row.timing->runs.size() == 2);
    CHECK(row.training->loss.front() == std::sqrt(static_cast<double>(key.second)));
  }
  // Each kill lost at most the run in flight.
  const std::size_t runs = lines_of(f.log).size();
  CHECK(runs >= 2 * grid.size());
  CHECK(runs <= 2 * grid.size() + kills);
  CHECK(!f.leaves_first_runs());
}

TEST_CASE("run_sweep: a first run from another machine is not pooled", "[interleave]") {
  const Fixture f;
  Case c = f.grid({"bf16"}, {10})[0];
  StepBoard board;
  Record elsewhere = timed_run(c, {}, board);
  elsewhere.env.host = "there";
  std::filesystem::create_directories(f.options.out);
  append_record(f.options.out + "/records.jsonl.first-runs", elsewhere);
  CHECK(run_sweep({c}, f.options) == kSweepDone);
  CHECK(lines_of(f.log) == std::vector<std::string>{"bf16", "bf16", "bf16"});
  CHECK(f.rows().at({"bf16", 10}).timing->runs[0].median_ms == kFirstMs + kDriftMs);
}

TEST_CASE("pool_runs: a pair with stalls has the speed of its mean step", "[interleave]") {
  Record first = samples::gpu_record("rowwise", 200), second = first;
  for (Record* r : {&first, &second}) r->timing->runs.clear(), r->timing->between_runs.reset();
  for (const std::size_t i : {1, 3, 5, 7})
    second.timing->samples_ms[i] = 700;  // of 11 samples, so the median stays
  second.timing->median_ms = 200.16;
  const Record pooled = pool_runs(first, second);
  const double tokens = static_cast<double>(*first.training->tokens_per_step);
  CHECK(pooled.metrics->speed_from == std::string("mean"));
  CHECK(std::fabs(*pooled.metrics->tokens_per_s / (tokens * 1e3 / *mean_step_ms(*pooled.timing)) - 1) <
        1e-12);
  CHECK(*pooled.metrics->mfu_bf16 < 0.9 * *first.metrics->mfu_bf16);
  // If the first run consists of stalls, too, the pair's speed is computed from the mean again.
  const Record other = pool_runs(pooled, pooled);
  CHECK(std::fabs(*other.metrics->tokens_per_s / *pooled.metrics->tokens_per_s - 1) < 1e-12);
}

TEST_CASE("pool_runs: two runs become one record with equal weights", "[interleave]") {
  Record first = samples::gpu_record("rowwise", 200), second = samples::gpu_record("rowwise", 300);
  for (Record* r : {&first, &second}) r->timing->runs.clear(), r->timing->between_runs.reset();
  second.timing->samples_ms.resize(5);
  second.timing->outliers = {4};
  second.telemetry->power_w = 600;
  second.telemetry->temperature_c = 70;
  second.telemetry->throttle_reasons = {"hw_slowdown", "sw_power_cap"};
  second.metrics->energy_j_per_token = 0.016;
  second.warnings = {"a neighbour"};
  const Record pooled = pool_runs(first, second);
  valid_json(pooled);
  CHECK(pooled.timing->samples_ms.size() == 16);
  CHECK(pooled.timing->outliers == std::vector<std::int64_t>{15});
  CHECK(pooled.timing->median_ms == 250);  // each run counts the same
  CHECK(*pooled.timing->iqr_ms > 50);      // the difference between the runs is in the spread
  CHECK(pooled.timing->between_runs == 100.0 / 250);
  CHECK(pooled.timing->runs[1].samples == 5);
  for (const auto member : {&Metrics::tokens_per_s, &Metrics::tokens_per_s_per_gpu, &Metrics::tflops_per_gpu,
                            &Metrics::mfu_bf16, &Metrics::sol, &Metrics::mfu_measured})
    CHECK(std::fabs(*((*pooled.metrics).*member) / *((*first.metrics).*member) - 0.8) < 1e-12);
  CHECK(std::fabs(*pooled.metrics->energy_j_per_token - 0.014) < 1e-12);
  CHECK(pooled.telemetry->power_w == 620);
  CHECK(pooled.telemetry->temperature_c == 70);
  CHECK(pooled.telemetry->throttle_reasons == std::vector<std::string>{"sw_power_cap", "hw_slowdown"});
  CHECK(pooled.warnings == std::vector<std::string>{"a neighbour"});
  CHECK(pooled.training->loss == first.training->loss);

  // An emulated recipe has no speed in its runs and none in the pooled record.
  Record emulated = samples::cpu_record("mxfp8");
  emulated.timing->runs.clear();
  CHECK(!pool_runs(emulated, emulated).metrics->tokens_per_s.has_value());
}

TEST_CASE("recipe_groups: cases that differ in more than the recipe are in different groups",
          "[interleave]") {
  std::vector<Case> grid(6);
  grid[1].recipe = grid[3].recipe = "mxfp8";
  grid[2].seq = grid[3].seq = 256;
  grid[4].seed = 7;
  grid[5].recipe = "rowwise";
  using Group = std::vector<std::size_t>;
  CHECK(recipe_groups(validate(grid)) == std::vector<Group>{{0, 1, 5}, {2, 3}, {4}});
}
