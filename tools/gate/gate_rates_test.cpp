// Error rates of a whole check by simulation: normal noise of steps within a run, and offsets of whole runs.
// The hidden test prints the table of README.md (tools/ci/rates_table.sh); the others check a part of it.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "tools/gate/gate_simulation.h"

using namespace precbench;
using namespace precbench::gate_testing;

namespace {

constexpr double kSpeedTolerance = 0.03, kSlowdown = 0.05;
constexpr std::size_t kSteps = 20;

/// Noise and size of simulated checks; standard deviations as fractions.
struct Cell {
  double step, offset;
  std::size_t records, cases;
  bool shared;  ///< offsets of runs are shared by all cases of a run, else each case of a run has its own
};

/// Numbers of checks.
struct Counts {
  int checks = 0;
  int alarms = 0;  ///< unchanged checks with a SLOWER case
  int passed = 0;  ///< unchanged checks that pass
  int missed = 0;  ///< checks with one case slower by kSlowdown in which that case passes
  int caught = 0;  ///< and those in which it is SLOWER
};

/// Normal variables from Dice (Box and Muller).
double normal(Dice& dice) {
  const double radius = std::sqrt(-2 * std::log(1 - dice.between(0, 1)));
  return radius * std::cos(2 * 3.14159265358979323846 * dice.between(0, 1));
}

SpeedSample simulated_run(const Cell& cell, double offset, Dice& dice) {
  SpeedSample sample{{}, {}};
  for (std::size_t i = 0; i < kSteps; ++i)
    sample.step_ms.push_back(100 * std::exp(offset) * (1 + cell.step * normal(dice)));
  return sample;
}

Counts simulate(const Cell& cell, int checks, Dice& dice) {
  Counts counts;
  counts.checks = checks;
  for (int check = 0; check < checks; ++check) {
    std::vector<double> run_offsets(cell.records + 1);  // that of this run is the last
    for (double& offset : run_offsets) offset = cell.offset * normal(dice);
    const auto offset = [&](std::size_t run) {
      return cell.shared ? run_offsets[run] : cell.offset * normal(dice);
    };
    std::vector<SpeedCase> cases(cell.cases);
    for (SpeedCase& one : cases) {
      for (std::size_t run = 0; run < cell.records; ++run)
        one.baseline.push_back(simulated_run(cell, offset(run), dice));
      one.current = simulated_run(cell, offset(cell.records), dice);
    }
    bool alarm = false, pass = true;
    for (const MetricResult& result : judge_speeds(cases, kSpeedTolerance)) {
      alarm = alarm || result.verdict == GateVerdict::slower;
      pass = pass && exit_status(result.verdict) == kCheckPassed;
    }
    counts.alarms += alarm;
    counts.passed += pass;
    for (double& step : cases.front().current.step_ms) step *= 1 + kSlowdown;
    const MetricResult slowed = judge_speeds(cases, kSpeedTolerance).front();
    counts.missed += exit_status(slowed.verdict) == kCheckPassed;
    counts.caught += slowed.verdict == GateVerdict::slower;
  }
  return counts;
}

/// Returns the worst of each count over the step noises and both kinds of offset.
Counts worst(std::size_t cases, std::size_t records, double offset, int checks, Dice& dice) {
  Counts all;
  all.checks = all.passed = all.caught = checks;
  for (const double step : {0.003, 0.01, 0.02})
    for (const bool shared : {false, true}) {
      if (shared && cases == 1) continue;
      const Counts one = simulate({step, offset, records, cases, shared}, checks, dice);
      all.alarms = std::max(all.alarms, one.alarms);
      all.missed = std::max(all.missed, one.missed);
      all.passed = std::min(all.passed, one.passed);
      all.caught = std::min(all.caught, one.caught);
    }
  return all;
}

std::string share(int count, const Counts& counts) {
  return fmt::format("{:.1f}%", 100.0 * count / counts.checks);
}

}  // namespace

TEST_CASE(
    "gate rates: unchanged checks give an alarm in at most 1% and a slowdown of 5% passes in at most 5%",
    "[gate][simulation]") {
  Dice dice(41);
  for (const std::size_t cases : {1u, 20u})
    for (const std::size_t records : {1u, 3u})
      for (const double offset : {0.005, 0.02}) {
        const Counts counts = simulate({0.01, offset, records, cases, cases == 20 && records == 3},
                                       cases == 1 ? 300 : 100, dice);
        CAPTURE(cases, records, offset, counts.alarms, counts.missed, counts.checks);
        CHECK(counts.alarms * 100 <= counts.checks);
        if (offset <= 0.005) CHECK(counts.missed * 20 <= counts.checks);
      }
}

TEST_CASE("gate rates: repeats that agree let the gate call a slowdown of 5% SLOWER", "[gate][simulation]") {
  Dice dice(43);
  const Counts counts = simulate({0.003, 0.003, 5, 1, false}, 300, dice);
  CHECK(counts.caught * 2 > counts.checks);
  CHECK(counts.missed == 0);
}

TEST_CASE("gate rates: steps within a run do not stand in for the noise between runs", "[gate][simulation]") {
  // Many exact steps say nothing about the offset of the run that they are of.
  Dice dice(47);
  for (const std::size_t records : {1u, 3u}) {
    const Counts counts = simulate({0.0005, 0.02, records, 1, false}, 300, dice);
    CAPTURE(records, counts.alarms);
    CHECK(counts.alarms * 100 <= counts.checks);
  }
}

// Prints the table of README.md; minutes.
TEST_CASE("gate rates: table", "[.gate-rates]") {
  constexpr int kChecks = 1000;
  std::puts(
      "| cases | records | offset between runs | false alarms | +5% passes | +5% is SLOWER | unchanged passes |\n"
      "| --- | --- | --- | --- | --- | --- | --- |");
  for (const std::size_t cases : {1u, 20u})
    for (const std::size_t records : {1u, 3u, 5u})
      for (const double offset : {0.003, 0.005, 0.01, 0.02}) {
        Dice dice(1000 * cases + 10 * records + static_cast<std::uint64_t>(1000 * offset));
        const Counts counts = worst(cases, records, offset, kChecks, dice);
        std::puts(fmt::format("| {} | {} | {:g}% | {} | {} | {} | {} |", cases, records, 100 * offset,
                              share(counts.alarms, counts), share(counts.missed, counts),
                              share(counts.caught, counts), share(counts.passed, counts))
                      .c_str());
        std::fflush(stdout);
        CHECK(counts.alarms * 100 <= kChecks);
        if (offset <= 0.005) CHECK(counts.missed * 20 <= kChecks);
      }
}
