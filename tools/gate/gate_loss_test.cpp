// Tests verdicts on the loss of one case and of several seeds.
#include <limits>

#include "kernels/testing/text_checks.h"
#include "tools/gate/gate_testing.h"

using namespace precbench;
using namespace precbench::gate_testing;
using samples::set_of;

namespace {

/// Returns the verdicts on seeds whose losses changed by these fractions.
std::vector<GateVerdict> verdicts(const std::vector<double>& changes, const GateRules& rules = {}) {
  std::vector<Record> baseline, current;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    baseline.push_back(samples::gpu_record("mxfp8", 250, 0, static_cast<int>(i)));
    current.push_back(baseline.back());
    for (double& loss : current.back().training->loss) loss *= 1 + changes[i];
  }
  std::vector<GateVerdict> result;
  for (const CaseResult& one : judge(set_of(baseline), set_of(current), rules).cases) {
    INFO(one.metrics.at(2).reason);
    CHECK(one.metrics.at(2).metric == "final loss");
    result.push_back(one.metrics.at(2).verdict);
  }
  return result;
}

using Verdicts = std::vector<GateVerdict>;
constexpr GateVerdict kPass = GateVerdict::pass, kWorse = GateVerdict::worse, kNoisy = GateVerdict::noisy;

/// Returns a case with --steps auto that ended after this many steps.
Record automatic(std::size_t steps) {
  Record record = samples::gpu_record("mxfp8", 250);
  record.case_fields["steps"] = "auto";
  record.timing->runs.clear();
  record.training->loss.resize(steps);
  return record;
}

}  // namespace

TEST_CASE("judge: a higher loss is WORSE and a lower one NOISY", "[gate]") {
  CHECK(verdicts({0.004}) == Verdicts{kWorse});
  CHECK(verdicts({-0.004}) == Verdicts{kNoisy});
  CHECK(verdicts({0.002}) == Verdicts{kPass});
  CHECK(verdicts({-0.002, 0.004}) == Verdicts{kPass, kWorse});  // two seeds have no usable spread
  GateRules strict;
  strict.loss_tolerance = 0.001;
  CHECK(verdicts({0.003, 0, 0}, strict) == Verdicts{kWorse, kPass, kPass});
}

TEST_CASE("judge: a mean loss outside the tolerance never passes however far the seeds scatter", "[gate]") {
  // 25% +- 28.6% over the seeds, but no noise between runs makes any of them that much worse.
  CHECK(verdicts({0.20, 0.25, 0.30}) == Verdicts(3, kWorse));
  CHECK(verdicts({0.24, 0.25, 0.26}) == Verdicts(3, kWorse));
  CHECK(verdicts({0.012, -0.008, 0.008}) == Verdicts(3, kNoisy));
  CHECK(verdicts({-0.24, -0.25, -0.26}) == Verdicts(3, kNoisy));
}

TEST_CASE("judge: a mean loss within the tolerance passes if its interval is within twice of it", "[gate]") {
  // t(0.995, 2) = 9.92484: a standard deviation of sd gives +- 5.7301 sd.
  CHECK(verdicts({-0.0008, 0, 0.0008}) == Verdicts(3, kPass));      // +- 0.458%
  CHECK(verdicts({-0.0009, 0, 0.0009}) == Verdicts(3, kNoisy));     // +- 0.516%
  CHECK(verdicts({0.0020, 0.0022, 0.0026}) == Verdicts(3, kPass));  // the last seed alone would be WORSE
  CHECK(verdicts({0.0024, 0.0026, 0.0027}) == Verdicts(3, kWorse));
  std::vector<double> many(20, 0.0);
  many[0] = 0.003, many[1] = -0.003;
  CHECK(verdicts(many) == Verdicts(20, kPass));
}

TEST_CASE("judge: a single bad seed never passes behind a good mean", "[gate]") {
  CHECK(verdicts({99, 0, 0}) == Verdicts{kWorse, kNoisy, kNoisy});
  CHECK(verdicts({-0.9, 0, 0}) == Verdicts(3, kNoisy));
  std::vector<double> changes(40, 0.0);
  changes[7] = 0.006;  // the mean is 0.015%, its interval +- 0.041%
  Verdicts expected(40, kPass);
  expected[7] = kWorse;
  CHECK(verdicts(changes) == expected);
  changes[7] = -0.006;
  expected[7] = kNoisy;
  CHECK(verdicts(changes) == expected);
  // If the others scatter as widely, it may be chance.
  for (std::size_t i = 0; i < changes.size(); ++i) changes[i] = i % 2 ? 0.0045 : -0.0045;
  changes[7] = 0.006;
  expected = Verdicts(40, kPass);
  expected[7] = kNoisy;
  CHECK(verdicts(changes) == expected);
}

TEST_CASE("judge: fields that do not change the work affect neither labels nor seeds", "[gate]") {
  std::vector<Record> baseline, current;
  for (const int seed : {1, 2, 3}) {
    baseline.push_back(samples::gpu_record("mxfp8", 250, 0, seed));
    baseline.back().case_fields["save_final"] = std::string(static_cast<std::size_t>(seed), 'w');
    baseline.back().case_fields["time_limit"] = 7.0 + seed;
    current.push_back(samples::gpu_record("mxfp8", 250, seed == 3 ? 0.006 : 0.005, seed));
  }
  for (double& loss : current[2].training->loss) loss *= 1.0002;
  const GateResult result = judge(set_of(baseline), set_of(current), {});
  CHECK(result.exit_status() == 0);  // the third seed alone would be WORSE
  CHECK(judge(set_of({baseline[2]}), set_of({current[2]}), {}).exit_status() == 1);
  CHECK(result.cases.at(0).label == "llama3.2-1b, mxfp8, seed 1");
}

TEST_CASE("judge: seeds of a model before and after an edit are not pooled", "[gate]") {
  std::vector<Record> baseline;
  for (const int version : {1, 2})
    for (const int seed : {1, 2}) {
      baseline.push_back(samples::of_schema_1(samples::gpu_record("mxfp8", 250, version, seed)));
      baseline.back().case_fields["model"] = "mini.json";
      baseline.back().id += version == 1 ? "a" : "b";
    }
  std::vector<Record> current = baseline;
  for (double& loss : current[0].training->loss) loss += 0.05;
  const GateResult result = judge(set_of(baseline), set_of(current), {});
  CHECK(result.cases.at(0).verdict() == GateVerdict::worse);
  CHECK(result.cases.at(1).verdict() == GateVerdict::pass);  // two seeds of one version are judged separately
  CHECK(result.cases.at(0).label == "mini.json (version 1), mxfp8, seed 1");
  REQUIRE(!result.notes.empty());
  CHECK(contains(result.notes[0], "in the baseline mini.json changed between these cases: version 1 from"));
}

TEST_CASE("judge: losses are compared after equal numbers of steps", "[gate]") {
  const Record base = automatic(100);
  Record longer = automatic(100);
  longer.training->loss.resize(150, 1);
  longer.training->grad_norm.resize(150, 1);
  CHECK(verdict_on(base, longer) == GateVerdict::pass);
  CHECK(verdict_on(longer, base) == GateVerdict::pass);
  CHECK(verdict_on(base, automatic(25)) == GateVerdict::pass);
  Record worse = automatic(25);
  for (double& loss : worse.training->loss) loss *= 1.003;
  CHECK(verdict_on(base, worse) == GateVerdict::worse);
}

TEST_CASE("judge: a curve that is too short is NOISY", "[gate]") {
  const auto reason = [](const Record& baseline, const Record& current) {
    const MetricResult result = metric_of(judge_one(baseline, current), "final loss");
    CHECK(result.verdict == GateVerdict::noisy);
    return result.reason;
  };
  CHECK(reason(automatic(100), automatic(24)) ==
        "24 steps here and 100 in the baseline are too few to compare: raise --time-limit");
  // Cut to 5 entries it contradicts its own timing.
  CHECK(verdict_of(judge_one(automatic(100), automatic(5)), "run") == GateVerdict::missing);
  // Cutting the timing as well does not help.
  const auto short_run = [](std::size_t steps) {
    Record record = automatic(steps);
    samples::set_samples(record, std::vector<double>(1, 250));
    record.timing->warmup = static_cast<std::int64_t>(steps) - 1;
    return record;
  };
  CHECK(contains(reason(automatic(100), short_run(5)), "5 steps here and 100 in the baseline"));
  CHECK(contains(reason(automatic(20), short_run(10)), "10 steps here and 20 in the baseline"));
  CHECK(contains(reason(short_run(10), automatic(20)), "20 steps here and 10 in the baseline"));
  // Curves of equal length are compared entirely.
  CHECK(verdict_of(judge_one(short_run(10), short_run(10)), "final loss") == GateVerdict::pass);
}

TEST_CASE("judge: a loss that is not finite or nonsensical never passes", "[gate]") {
  const Record base = samples::gpu_record("mxfp8", 250);
  Record broken = base;
  broken.training->loss.back() = std::nan("");
  CHECK(verdict_of(judge_one(base, broken), "run") == GateVerdict::missing);
  CHECK(verdict_of(judge_one(broken, base), "run") == GateVerdict::missing);
  broken.training->loss.assign(100, 0.0);
  CHECK(verdict_of(judge_one(broken, broken), "final loss") == GateVerdict::noisy);
  CHECK(verdict_of(judge_one(broken, base), "final loss") == GateVerdict::worse);
  broken.training->loss.assign(100, -std::numeric_limits<double>::max());
  CHECK(verdict_of(judge_one(base, broken), "final loss") != GateVerdict::pass);
}
