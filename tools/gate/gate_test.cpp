// Tests verdicts of the regression gate, one case for each, and refusals.
#include "tools/gate/gate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/testing/text_checks.h"
#include "tools/gate/gate_testing.h"

using namespace precbench;
using namespace precbench::gate_testing;
using samples::set_of;

namespace {

std::string refusal(const std::vector<Record>& baseline, const std::vector<Record>& current) {
  return refusal_of([&] { judge(set_of(baseline), set_of(current), {}); });
}

const Record kGateBase = samples::gpu_record("mxfp8", 250);

/// Returns a record whose step takes `factor` times as long.
Record slowed(double factor) { return samples::gpu_record("mxfp8", 250 * factor); }

}  // namespace

TEST_CASE("judge: an unchanged rerun passes", "[gate]") {
  const GateResult result = judge_one(kGateBase, kGateBase);
  CHECK(result.cases.at(0).metrics.size() == 4);  // held-out loss too
  CHECK(result.cases.at(0).verdict() == GateVerdict::pass);
  CHECK(result.exit_status() == 0);
  REQUIRE(result.notes.size() == 1);
  CHECK(contains(result.notes[0], "are the baseline's own records: nothing new was measured"));
}

TEST_CASE("judge: a longer step is SLOWER and a shorter one FASTER", "[gate]") {
  const GateResult slower = judge_one(kGateBase, slowed(1.10));
  CHECK(verdict_of(slower, "tokens/s") == GateVerdict::slower);
  CHECK(slower.exit_status() == 1);
  CHECK(std::abs(*slower.cases.at(0).metrics.at(0).change - 0.10) < 1e-9);
  const GateResult faster = judge_one(kGateBase, slowed(0.95));
  CHECK(verdict_of(faster, "tokens/s") == GateVerdict::faster);
  CHECK(faster.cases.at(0).verdict() == GateVerdict::faster);
  CHECK(faster.exit_status() == 0);
  CHECK(verdict_of(judge_one(kGateBase, slowed(1.02)), "tokens/s") == GateVerdict::pass);
  GateRules strict;
  strict.tokens_per_s = 0.01;
  CHECK(verdict_of(judge_one(kGateBase, slowed(1.10), strict), "tokens/s") == GateVerdict::slower);
  CHECK(verdict_of(judge_one(kGateBase, slowed(1.02), strict), "tokens/s") == GateVerdict::noisy);
}

TEST_CASE("judge: a longer step whose times overlap the baseline's is NOISY", "[gate]") {
  Record noisy = slowed(1.05);
  std::vector<double> samples = noisy.timing->samples_ms;
  for (const std::size_t i : {0u, 3u, 5u, 8u}) samples[i] = 250;  // four steps as fast as before
  samples::set_samples(noisy, samples);
  const GateResult result = judge_one(kGateBase, noisy);
  CHECK(verdict_of(result, "tokens/s") == GateVerdict::noisy);
  CHECK(result.exit_status() == 3);
}

TEST_CASE("judge: too few samples are NOISY", "[gate]") {
  Record few = kGateBase;
  samples::set_samples(few, {250, 250, 250, 250});
  CHECK(verdict_of(judge_one(kGateBase, few), "tokens/s") == GateVerdict::noisy);
  CHECK(verdict_of(judge_one(few, kGateBase), "tokens/s") == GateVerdict::noisy);
  const auto advice = [](const Record& baseline, const Record& current) {
    return judge_one(baseline, current).cases.at(0).metrics.at(0).reason;
  };
  few.timing->stop_reason = StopReason::time_limit;
  CHECK(advice(kGateBase, few) ==
        "4 samples of this run tell nothing, at least 5 are needed: raise --time-limit");
  // --time-limit has no effect with --steps.
  few.timing->stop_reason = StopReason::fixed_steps;
  CHECK(contains(advice(kGateBase, few), "raise --steps, or leave it out, and --accept a new baseline"));
  samples::set_samples(few, {250});
  CHECK(contains(advice(few, kGateBase), "1 sample of the baseline tell"));
}

TEST_CASE("judge: more memory is BIGGER", "[gate]") {
  Record big = kGateBase;
  big.memory->measured->peak += big.memory->measured->peak / 40;
  const GateResult result = judge_one(kGateBase, big);
  CHECK(verdict_of(result, "peak memory") == GateVerdict::bigger);
  CHECK(result.exit_status() == 1);
  CHECK(verdict_of(judge_one(big, kGateBase), "peak memory") == GateVerdict::pass);
  GateRules generous;
  generous.memory = 0.03;
  CHECK(judge_one(kGateBase, big, generous).exit_status() == 0);
  for (const std::int64_t nonsense : {std::int64_t{0}, std::numeric_limits<std::int64_t>::min()}) {
    big.memory->measured->peak = nonsense;
    CHECK(verdict_of(judge_one(kGateBase, big), "peak memory") == GateVerdict::missing);
  }
}

TEST_CASE("judge: a case that was not measured is MISSING", "[gate]") {
  const GateResult none =
      judge(set_of({kGateBase, samples::gpu_record("bf16", 300)}), set_of({kGateBase}), {});
  REQUIRE(none.cases.size() == 2);
  CHECK(none.cases[1].verdict() == GateVerdict::missing);
  CHECK(none.exit_status() == 3);
  for (const Status status : {Status::crashed, Status::timeout, Status::unsupported}) {
    Record failed = samples::failed_record("mxfp8", status, "why");
    const GateResult result = judge_one(kGateBase, failed);
    CHECK(result.cases.at(0).verdict() == GateVerdict::missing);
    CHECK(result.exit_status() == 3);
  }
  const GateResult oom = judge_one(kGateBase, samples::failed_record("mxfp8", Status::oom, "full"));
  CHECK(oom.cases.at(0).verdict() == GateVerdict::bigger);
  CHECK(oom.exit_status() == 1);
  const GateResult diverged =
      judge_one(kGateBase, samples::failed_record("mxfp8", Status::diverged, "NaN at step 3"));
  CHECK(diverged.cases.at(0).verdict() == GateVerdict::worse);
  CHECK(diverged.cases.at(0).metrics.at(0).reason == "the run ended diverged: NaN at step 3");
}

TEST_CASE("judge: a MISSING case names the record that ran in its place", "[gate]") {
  const auto reason = [](const Record& baseline, const std::vector<Record>& current) {
    return judge(set_of({baseline}), set_of(current), {}).cases.at(0).metrics.at(0).reason;
  };
  Record other = kGateBase;
  other.id = "0123456789abcdef";
  other.case_fields["batch"] = 77;
  const std::string batch = kGateBase.case_fields.at("batch").dump();
  CHECK(reason(kGateBase, {other}).ends_with(" has batch 77 for " + batch));
  CHECK(reason(kGateBase, {other}).starts_with("no record of this case; "));
  other.case_fields["seq"] = 33;  // two fields differ: unrelated
  CHECK(reason(kGateBase, {other}) == "no record of this case");
  Record routed = kGateBase;  // a field that records have only if it is not the default
  routed.id = "0123456789abcdef";
  routed.case_fields["routing"] = "balanced";
  CHECK(reason(kGateBase, {routed}).ends_with(" has routing \"balanced\" for the default"));
  // A record that another case of the baseline matches is not in this one's place.
  Record both = kGateBase;
  both.id = "0123456789abcdee";
  both.case_fields["batch"] = 78;
  const GateResult result = judge(set_of({kGateBase, both}), set_of({both}), {});
  CHECK(result.cases.at(0).metrics.at(0).reason == "no record of this case");
}

TEST_CASE("judge: no matching case is inconclusive", "[gate]") {
  const GateResult result = judge(set_of({kGateBase}), set_of({samples::gpu_record("bf16", 300)}), {});
  CHECK(result.exit_status() == 3);
  CHECK(std::count(result.notes.begin(), result.notes.end(),
                   "no case of the baseline was measured in this run") == 1);
  CHECK(std::count(result.notes.begin(), result.notes.end(), "1 case of this run has no baseline") == 1);
  CHECK(GateResult{}.exit_status() == 3);
}

TEST_CASE("judge: a metric that the run lacks is MISSING", "[gate]") {
  Record without = kGateBase;
  without.metrics->tokens_per_s.reset();
  CHECK(verdict_of(judge_one(kGateBase, without), "tokens/s") == GateVerdict::missing);
  CHECK(verdict_of(judge_one(without, kGateBase), "tokens/s") == GateVerdict::missing);
  without = kGateBase;
  without.memory.reset();
  CHECK(verdict_of(judge_one(kGateBase, without), "peak memory") == GateVerdict::missing);
  // A baseline case without a comparable metric does not pass either.
  GateRules speed_only;
  speed_only.memory.reset();
  speed_only.loss = false;
  without = kGateBase;
  without.metrics.reset();
  CHECK(judge_one(without, kGateBase, speed_only).exit_status() == 3);
}

TEST_CASE("judge: regressions outrank inconclusive verdicts", "[gate]") {
  const GateResult result =
      judge(set_of({kGateBase, samples::gpu_record("bf16", 300)}), set_of({slowed(1.1)}), {});
  CHECK(result.exit_status() == 1);
  Record both = slowed(1.1);
  both.memory.reset();
  CHECK(judge_one(kGateBase, both).cases.at(0).verdict() == GateVerdict::slower);
}

TEST_CASE("judge: emulated cases have no speed verdict", "[gate]") {
  Record emulated = kGateBase, later = slowed(2);
  for (Record* record : {&emulated, &later}) record->support->dgrad.path = ExecutionPath::emulated;
  const GateResult result = judge_one(emulated, later);
  CHECK_FALSE(judged(result, "tokens/s"));
  CHECK(result.exit_status() == 0);
}

TEST_CASE("judge: on another CPU speed is not judged but the loss is", "[gate]") {
  Record there = samples::cpu_record("bf16"), here = samples::cpu_record("bf16", 0.02);
  CHECK(judged(judge_one(there, here), "tokens/s"));
  here.env.cpu = "EPYC 9654";
  const GateResult result = judge_one(there, here);
  CHECK_FALSE(judged(result, "tokens/s"));
  CHECK(verdict_of(result, "final loss") == GateVerdict::worse);
  CHECK(result.notes.at(0) == "speed not judged: the baseline ran on Xeon Platinum 8480C, this on EPYC 9654");
  here.env.cpu = there.env.cpu;
  here.env.threads = 2;
  CHECK_FALSE(judged(judge_one(there, here), "tokens/s"));
}

TEST_CASE("judge: speed is not judged for as many threads on fewer CPUs", "[gate]") {
  Record there = samples::cpu_record("bf16"), here = there;
  for (Record* record : {&there, &here}) record->env.threads = 2;
  there.env.cpus = 8;
  CHECK(judged(judge_one(there, here), "tokens/s"));  // older records do not contain the CPUs
  here.env.cpus = 2;
  CHECK(judged(judge_one(there, here), "tokens/s"));
  here.env.cpus = 1;
  const GateResult pinned = judge_one(there, here);
  CHECK_FALSE(judged(pinned, "tokens/s"));
  CHECK(pinned.notes.at(0) == "speed not judged: the baseline's 2 CPU threads shared 2 CPUs, this run's 1");
  here.env.cpus = 8, here.env.cpu_quota = 0.5;
  CHECK_FALSE(judged(judge_one(there, here), "tokens/s"));
  CHECK_FALSE(judged(judge_one(here, there), "tokens/s"));
}

TEST_CASE("judge: other GPU models and method versions and execution paths are refused", "[gate]") {
  Record other = kGateBase;
  other.env.gpu->name = "NVIDIA B200";
  CHECK(refusal({kGateBase}, {other}) ==
        "the baseline is of GPU model NVIDIA H200, this run of NVIDIA B200: they are not compared; "
        "--accept --replace makes a baseline of this run");
  CHECK(refusal({kGateBase, other}, {kGateBase}) ==
        "the baseline mixes GPU models NVIDIA H200, NVIDIA B200; check one at a time");
  CHECK(refusal({kGateBase}, {kGateBase, other}).find("this run mixes GPU models") == 0);
  Record spread = kGateBase;
  spread.env.nodes = 2;
  CHECK(
      contains(refusal({kGateBase}, {spread}), "this run of NVIDIA H200 on 2 nodes: they are not compared"));
  CHECK(refusal({kGateBase}, {samples::cpu_record("bf16")}) ==
        "the baseline is of GPU model NVIDIA H200, this run of none (the CPU device): they are not compared; "
        "--accept --replace makes a baseline of this run");
  CHECK(contains(refusal({kGateBase, samples::cpu_record("bf16")}, {kGateBase}),
                 "the baseline mixes GPU models"));
  Record nowhere = samples::failed_record("mxfp8", Status::timeout, "60 s are over");
  nowhere.env = Environment{};
  CHECK(refusal({kGateBase}, {nowhere}).empty());
  other = kGateBase;
  other.method_version = kMethodVersion + 1;
  CHECK(refusal({kGateBase}, {other})
            .find("method version " + std::to_string(kMethodVersion) + ", this run of " +
                  std::to_string(kMethodVersion + 1)) != std::string::npos);
  other = kGateBase;
  other.support->wgrad.path = ExecutionPath::emulated;
  CHECK(refusal({kGateBase}, {other}) ==
        "case 1b-mxfp8-1 is native at f:1, but emulated at f:1: they are not compared");
  Record own = kGateBase, loop = kGateBase;
  own.moe = loop.moe = MoeRecord{};
  own.moe->grouped = "own", loop.moe->grouped = "loop";
  CHECK(refusal({own}, {loop}) ==
        "case 1b-mxfp8-1 is grouped by own at f:1, but grouped by loop at f:1: they are not compared");
}

TEST_CASE("judge: a failed case of the baseline is noted and not compared", "[gate]") {
  const GateResult result = judge(set_of({kGateBase, samples::failed_record("bf16", Status::oom, "full")}),
                                  set_of({kGateBase}), {});
  CHECK(result.cases.size() == 1);
  CHECK(result.exit_status() == 0);
  CHECK(result.notes.at(0) ==
        "f:2: case 1b-bf16-1 was oom in the baseline, so there is nothing to compare with");
}

TEST_CASE("judge_numerics: first loss and SQNR and formats must not change", "[gate]") {
  Record base = kGateBase;
  base.quantization = {{"qkv.x rows", "e4m3 1x32", 0.0, 0.0, 31.5},
                       {"qkv.dy rows", "e4m3 1x32", 0.0, 0.0, 31.0}};
  GateRules numerics;
  numerics.numerics = true;
  const auto verdict = [&](const char* metric, auto&& change) {
    Record changed = base;
    change(changed);
    return verdict_of(judge_one(base, changed, numerics), metric);
  };
  CHECK(judge_one(base, base, numerics).exit_status() == 0);
  CHECK_FALSE(judged(judge_one(base, base), "SQNR"));
  const auto first = [](double factor) { return [=](Record& r) { r.training->loss[0] *= factor; }; };
  CHECK(verdict("first loss", first(1 + 4e-5)) == GateVerdict::pass);
  CHECK(verdict("first loss", first(1 + 6e-5)) == GateVerdict::worse);
  CHECK(verdict("first loss", first(1 - 6e-5)) == GateVerdict::noisy);
  CHECK(verdict("run", [](Record& r) { r.training->loss[0] = std::nan(""); }) == GateVerdict::missing);
  const auto sqnr = [](double all, double last) {
    return [=](Record& r) {
      for (QuantizationStats& stats : r.quantization) *stats.sqnr_db += all;
      *r.quantization.back().sqnr_db += last;
    };
  };
  CHECK(verdict("SQNR", sqnr(-0.1, 0)) == GateVerdict::pass);
  CHECK(verdict("SQNR", sqnr(-0.2, 0)) == GateVerdict::worse);
  CHECK(verdict("SQNR", sqnr(0.2, 0)) == GateVerdict::noisy);
  CHECK(verdict("SQNR", sqnr(0, -3.1)) == GateVerdict::worse);
  CHECK(verdict("SQNR", [](Record& r) { r.quantization.back().sqnr_db.reset(); }) == GateVerdict::missing);
  // A role unknown to the baseline does not affect the shown median.
  Record more = base;
  more.quantization.push_back({"o.x rows", "e4m3 1x32", 0.0, 0.0, 5.0});
  const MetricResult shown = metric_of(judge_one(base, more, numerics), "SQNR");
  CHECK(shown.verdict == GateVerdict::pass);
  CHECK(shown.current == shown.baseline);
  CHECK(verdict("formats", [](Record& r) { r.quantization.back().format = "e5m2 1x32"; }) ==
        GateVerdict::worse);
  CHECK(verdict("formats", [](Record& r) { r.quantization.pop_back(); }) == GateVerdict::missing);
}

TEST_CASE("judge: changed software is noted", "[gate]") {
  Record other = kGateBase;
  other.env.cublaslt = "13.1.0";
  other.env.gpu->driver = "580.1";
  const GateResult result = judge_one(kGateBase, other);
  REQUIRE(result.notes.size() == 3);
  CHECK(result.notes[0] == "driver 570.86 in the baseline, 580.1 here");
  CHECK(result.notes[1] == "cuBLASLt 12.9.1 in the baseline, 13.1.0 here");
}
