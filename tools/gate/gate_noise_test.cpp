// Tests the noise between runs: the spread of repeats, the prior without them, and what a check makes of both.
#include "tools/gate/gate_noise.h"

#include <fmt/format.h>

#include <cmath>

#include "kernels/testing/text_checks.h"
#include "tools/gate/gate_loss.h"
#include "tools/gate/gate_testing.h"

using namespace precbench;
using namespace precbench::gate_testing;
using samples::set_of;

namespace {

constexpr NoisePrior kPrior{"test", 0.01, 0.03};

/// Returns a training run on a GPU whose rounding differences grow: learning rate 1e-3, loss scaled by 1 +
/// `change`.
Record trained(double change, int day = 1, const char* deterministic = "off") {
  Record record = samples::gpu_record("bf16", 250);
  record.case_fields["lr"] = 1e-3;
  record.case_fields["deterministic"] = deterministic;
  record.created = fmt::format("2025-03-{:02}T12:00:00Z", day);
  record.training->evaluations.clear();
  for (double& loss : record.training->loss) loss *= 1 + change;
  return record;
}

/// Returns a record of a step time, of a day.
Record timed(double ms, int day) {
  Record record = samples::gpu_record("bf16", ms);
  record.created = fmt::format("2025-03-{:02}T12:00:00Z", day);
  return record;
}

MetricResult metric(const std::vector<Record>& baseline, const Record& run, const std::string& name) {
  return metric_of(judge(set_of(baseline), set_of({run}), {}), name);
}

}  // namespace

TEST_CASE("noise_of: the spread of one case has one less degree of freedom than it has records", "[gate]") {
  const std::vector<RunNoise> noise = noise_of({{100, 102, 98}}, kPrior);
  REQUIRE(noise.size() == 1);
  CHECK(noise[0].records == 3);
  CHECK(std::abs(noise[0].sd.value() - 0.02) < 1e-4);
  CHECK(noise[0].freedom == 2);
  CHECK_FALSE(noise_of({{100}, {50}}, kPrior)[0].sd);
}

TEST_CASE("noise_of: cases that vary on their own are pooled, but not runs that are off as a whole",
          "[gate]") {
  // Each case has its own order of fast and slow records.
  const std::vector<RunNoise> own = noise_of({{99, 100, 101}, {101, 99, 100}, {100, 101, 99}}, kPrior);
  CHECK(std::abs(own[0].sd.value() - 0.01) < 2e-3);
  CHECK(own[0].freedom > 3);
  const std::vector<RunNoise> shared = noise_of({{99, 100, 101}, {99, 100, 101}, {99, 100, 101}}, kPrior);
  CHECK(std::abs(shared[0].sd.value() - 0.01) < 1e-4);
  CHECK(shared[0].freedom < 2.1);
  // A case that varies much more than the others is judged by its own spread.
  const std::vector<RunNoise> mixed = noise_of(
      {{100, 100.1, 99.9}, {100, 99.9, 100.1}, {100, 99.9, 100.1}, {100, 99.9, 100}, {90, 100, 110}}, kPrior);
  CHECK(mixed[4].sd.value() > 0.09);
  CHECK(mixed[4].freedom == 2);
  CHECK(mixed[0].sd.value() < 0.09);
}

TEST_CASE("noise_of: a case with a value that has no logarithm does not take over another's spread",
          "[gate]") {
  const std::vector<RunNoise> noise = noise_of({{0, 1, 2},
                                                {90, 100, 110},
                                                {100, 100.1, 99.9},
                                                {99.9, 100, 100.1},
                                                {100.1, 99.9, 100},
                                                {100, 99.9, 100.1}},
                                               kPrior);
  CHECK(noise[1].sd.value() > 0.09);
  CHECK(noise[0].sd == noise[2].sd);  // the pooled one
}

TEST_CASE("records_to_settle: a larger change needs fewer records", "[gate]") {
  const RunNoise noise{{"loss", 0.0051, 0.0153}};
  CHECK(noise.records_to_settle(0.03, kLossQuantities).value_or(0) == 7);
  CHECK(noise.records_to_settle(0.019, kLossQuantities).value_or(0) == 17);
  CHECK_FALSE(noise.records_to_settle(0.01, kLossQuantities));
}

TEST_CASE("repeats_remedy: the number of records that would tell or that none up to 20 would", "[gate]") {
  RunNoise noise{kPrior};
  noise.records = 2, noise.sd = 0.01, noise.freedom = 1;
  CHECK(repeats_remedy(noise, noise.records_to_settle(1, 1)) ==
        "; 1 more run of the baseline's commit would tell (check --accept adds them)");
  CHECK(repeats_remedy(noise, noise.records_to_settle(0.001, 1)) ==
        "; at this noise no number of repeats up to 20 would tell");
  // 3 records: t(0.95, 4 + 2) * sqrt(1 + 1/3) * 1% = 2.24%; 4 records: t(0.95, 4 + 3) * sqrt(1 + 1/4) * 1% = 2.12%.
  CHECK(noise.records_to_pass(0.0225) == 3);
  CHECK(noise.records_to_pass(0.0215) == 4);
  CHECK_FALSE(noise.records_to_pass(0.015));
}

TEST_CASE("RunNoise: chances of a change with and without repeats", "[gate]") {
  RunNoise noise{kPrior};
  CHECK(std::abs(noise.chance_of(0) - 0.5) < 1e-9);
  // One run a side at the limit: sqrt(2) * 3% = 4.24%; 2.576 of them are beyond 0.5%.
  CHECK(std::abs(noise.chance_of(2.5758 * std::sqrt(2.0) * 0.03) - 0.005) < 1e-5);
  CHECK(noise.chance_of(0.5) < 1e-9);
  CHECK(noise.chance_of(std::nan("")) == 1);
  noise.records = 3, noise.sd = 0.001, noise.freedom = 2;
  CHECK(noise.chance_of(0.05) < 0.005);                   // far beyond what the repeats show
  CHECK(RunNoise{{"exact", 0, 0}}.chance_of(1e-9) == 0);  // a deterministic loss has no noise
  CHECK(RunNoise{{"exact", 0, 0}}.chance_of(0) == 1);
  CHECK(noise.half_width() > 0);
  CHECK(RunNoise{{"exact", 0, 0}}.half_width() == 0);
}

TEST_CASE("judge: a slowdown of the size of run-to-run noise is NOISY and names what would tell", "[gate]") {
  const MetricResult once = metric({timed(250, 1)}, timed(262, 9), "tokens/s");
  CHECK(once.verdict == GateVerdict::noisy);
  CHECK(contains(once.reason, "unchanged runs may differ that much"));
  CHECK(contains(once.reason, "more runs of the baseline's commit would tell (check --accept adds them)"));
  // Repeats that agree settle it.
  const std::vector<Record> quiet = {timed(250, 1), timed(250.4, 2), timed(249.6, 3), timed(250.2, 4),
                                     timed(249.8, 5)};
  CHECK(metric(quiet, timed(262, 9), "tokens/s").verdict == GateVerdict::slower);
  CHECK(metric(quiet, timed(250.3, 9), "tokens/s").verdict == GateVerdict::pass);
  // Repeats that do not agree show that it may be noise.
  const std::vector<Record> loud = {timed(250, 1), timed(258, 2), timed(243, 3), timed(255, 4),
                                    timed(246, 5)};
  const MetricResult among_loud = metric(loud, timed(265, 9), "tokens/s");
  CHECK(among_loud.verdict == GateVerdict::noisy);
  // No plausible noise explains this, even with one record a side.
  CHECK(metric({timed(250, 1)}, timed(300, 9), "tokens/s").verdict == GateVerdict::slower);
}

TEST_CASE("judge: a case whose slowdown is below the tolerance is never SLOWER", "[gate]") {
  const std::vector<Record> quiet = {timed(250, 1), timed(250.01, 2), timed(249.99, 3), timed(250, 4),
                                     timed(250, 5)};
  for (const double change : {0.01, 0.02, 0.025, 0.0299}) {
    CAPTURE(change);
    CHECK(metric({timed(250, 1)}, timed(250 * (1 + change), 9), "tokens/s").verdict != GateVerdict::slower);
    CHECK(metric(quiet, timed(250 * (1 + change), 9), "tokens/s").verdict != GateVerdict::slower);
  }
}

TEST_CASE("judge: a loss of the size of run-to-run noise is NOISY and names --deterministic on", "[gate]") {
  // The committed H200 repeats end up to 1.9% apart after 400 steps.
  const RunNoise noise{prior_of(loss_kind_of(trained(0)))};
  for (const double change : {0.019, 0.01, 0.004, 0.0}) {
    CAPTURE(change);
    const MetricResult result = metric({trained(0)}, trained(change, 9), "final loss");
    CHECK(result.verdict == GateVerdict::noisy);
    CHECK(contains(result.reason, "--deterministic on makes runs repeat to the bit"));
    CHECK(contains(result.reason, repeats_remedy(noise, noise.records_to_settle(change, kLossQuantities))));
  }
  CHECK(contains(metric({trained(0)}, trained(0.03, 9), "final loss").reason,
                 repeats_remedy(noise, noise.records_to_settle(0.03, kLossQuantities))));
  CHECK(metric({trained(0)}, trained(0.10, 9), "final loss").verdict == GateVerdict::worse);
  CHECK(metric({trained(0, 1, "on")}, trained(0.004, 9, "on"), "final loss").verdict == GateVerdict::worse);
  CHECK(metric({trained(0, 1, "on")}, trained(0, 9, "on"), "final loss").verdict == GateVerdict::pass);
}

TEST_CASE("judge: repeats in the baseline give the noise of a loss", "[gate]") {
  const std::vector<Record> quiet = {trained(0, 1), trained(0.0002, 2), trained(-0.0002, 3),
                                     trained(0.0001, 4), trained(-0.0001, 5)};
  CHECK(metric(quiet, trained(0.006, 9), "final loss").verdict == GateVerdict::worse);
  const std::vector<Record> loud = {trained(0, 1), trained(0.01, 2), trained(-0.01, 3)};
  CHECK(metric(loud, trained(0.012, 9), "final loss").verdict == GateVerdict::noisy);
  // Repeats of a deterministic case that differ after all.
  const std::vector<Record> broken = {trained(0, 1, "on"), trained(0.01, 2, "on"), trained(-0.01, 3, "on")};
  CHECK(metric(broken, trained(0.012, 9, "on"), "final loss").verdict == GateVerdict::noisy);
}

TEST_CASE("judge: repeats of different numbers of steps are compared over the steps that both have",
          "[gate]") {
  const auto falling = [](std::size_t steps, int day, double offset = 0) {
    Record record = trained(0, day, "on");
    record.case_fields["steps"] = "auto";
    record.timing->runs.clear();
    record.training->grad_norm.assign(steps, 1);
    record.training->loss.clear();
    for (std::size_t step = 0; step < steps; ++step)
      record.training->loss.push_back((1 + offset) * (4 - 0.01 * static_cast<double>(step)));
    return record;
  };
  const std::vector<Record> baseline = {falling(200, 1), falling(150, 2), falling(120, 3)};
  const MetricResult same = metric(baseline, falling(180, 9), "final loss");
  CHECK(same.verdict == GateVerdict::pass);
  CHECK(same.baseline == same.current);
  CHECK(metric(baseline, falling(180, 9, 0.01), "final loss").verdict == GateVerdict::worse);
}

TEST_CASE("judge: a slow run on a busy machine is NOISY", "[gate]") {
  const Record base = timed(250, 1);
  Record slow = timed(350, 9);
  CHECK(metric({base}, slow, "tokens/s").verdict == GateVerdict::slower);
  slow.warnings = {
      "step times are noisy: IQR / 1.349 over the median is above 5%, so speeds and ratios are uncertain"};
  MetricResult result = metric({base}, slow, "tokens/s");
  CHECK(result.verdict == GateVerdict::noisy);
  CHECK(contains(result.reason, "; but the machine was busy during this run: step times are noisy: "));
  Record busy = base;
  busy.warnings = slow.warnings;
  slow.warnings.clear();
  CHECK(contains(metric({busy}, slow, "tokens/s").reason,
                 "; but the machine was busy during the baseline's: step times are noisy: "));
  slow.warnings.clear();
  slow.timing->wall_ms = 351;
  slow.timing->cpu_wait_ms = 20;
  result = metric({base}, slow, "tokens/s");
  CHECK(result.verdict == GateVerdict::noisy);
  CHECK(contains(result.reason, "its threads waited 20 ms of each step of 351 ms for a CPU"));
  slow.timing->cpu_wait_ms = 0.1;
  CHECK(metric({base}, slow, "tokens/s").verdict == GateVerdict::slower);
}

TEST_CASE("busy_reason: a CPU run with less CPU time than its threads need is busy", "[gate]") {
  Record base = samples::cpu_record("bf16"), run = base;
  for (Record* record : {&base, &run})
    record->env.threads = 2, record->env.cpus = 2, record->timing->wall_ms = 751;
  base.timing->cpu_ms = 1400;
  run.timing->cpu_ms = 1390;
  CHECK(busy_reason(run, base).empty());
  run.timing->cpu_ms = 800;
  CHECK(busy_reason(run, base) == "it had 53% of the CPU time of its threads, the baseline 93%");
  base.timing->cpu_ms.reset();  // of an older program
  CHECK(contains(busy_reason(run, base), "it had 53%"));
  run.timing->cpu_ms = 1390;
  CHECK(busy_reason(run, base).empty());
  run.timing->cpu_ms.reset();
  CHECK(busy_reason(run, base).empty());
}
