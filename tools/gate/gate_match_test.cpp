// Tests what the gate does not judge: different work under one id, and unreliable records. Also
// tests its running time.
#include "tools/gate/gate_match.h"

#include <ctime>

#include "kernels/testing/text_checks.h"
#include "tools/gate/gate_testing.h"

using namespace precbench;
using namespace precbench::gate_testing;
using samples::set_of;

namespace {

const Record kBase = samples::gpu_record("mxfp8", 250);

/// Returns the verdict on a run whose record was changed.
template <class Change>
MetricResult after(Change&& change, const Record& base = kBase) {
  Record record = base;
  change(record);
  return metric_of(judge_one(base, record), "run");
}

}  // namespace

TEST_CASE("judge: different work under one id is MISSING", "[gate]") {
  const auto seen = [](auto&& change, const std::string& difference) {
    const MetricResult result = after(change);
    CHECK(result.verdict == GateVerdict::missing);
    CHECK(result.reason == "other work under the same id: " + difference);
  };
  seen([](Record& r) { r.case_fields["seq"] = 4096; }, "case.seq is 2048 at f:1, but 4096 at f:1");
  seen([](Record& r) { r.case_fields["master"] = "bf16"; }, "case.master is fp32 at f:1, but bf16 at f:1");
  seen([](Record& r) { r.case_fields.erase("batch"); }, "case.batch is 8 at f:1, but missing at f:1");
  seen([](Record& r) { r.case_fields["steps"] = "auto"; }, "case.steps is 100 at f:1, but auto at f:1");
  seen([](Record& r) { r.flops.reset(), r.metrics.reset(); },
       "flops.per_token is 8200000000 at f:1, but unknown at f:1");
  seen([](Record& r) { r.flops->per_token /= 2, r.metrics.reset(); },
       "flops.per_token is 8200000000 at f:1, but 4100000000 at f:1");
  seen([](Record& r) { r.support.reset(); }, "support is native at f:1, but missing at f:1");
  seen([](Record& r) { *r.training->tokens_per_step /= 2; },
       "training.tokens_per_step is 16384 at f:1, but 8192 at f:1");
  seen([](Record& r) { r.training.reset(); }, "training.tokens_per_step is 16384 at f:1, but unknown at f:1");
  seen([](Record& r) { r.training->params_total = 1; }, "training.params_total is 146 at f:1, but 1 at f:1");
  seen([](Record& r) { r.training->uniform_loss = 5.5; },
       "training.uniform_loss is 11.76 at f:1, but 5.5 at f:1");
  seen([](Record& r) { r.training->entropy_floor.reset(); },
       "training.entropy_floor is 2.1 at f:1, but unknown at f:1");
  seen([](Record& r) { r.training->lr[6] = 0; }, "training.lr of step 7 is 3e-05 at f:1, but 0 at f:1");
  seen([](Record& r) { r.training->converted_layers.pop_back(); },
       "training.converted_layers is layers.0.k_proj at f:1, but missing at f:1");
}

TEST_CASE("judge: fields that are no work or unknown to the baseline do not prevent a match", "[gate]") {
  Record run = kBase;
  run.case_fields["time_limit"] = 5;
  run.case_fields["save_final"] = "w.safetensors";
  run.case_fields["younger"] = "default";
  run.case_fields["lr"] = 3e-4;
  Record base = kBase;
  base.case_fields["seq"] = 2048.0;  // written by another program
  base.training->entropy_floor.reset();
  CHECK(judge_one(base, run).exit_status() == 0);
}

TEST_CASE("judge_formats: a changed format is WORSE and a missing one MISSING", "[gate]") {
  Record run = kBase;
  run.quantization[0].format = "e5m2 1x128 f32";
  GateResult result = judge_one(kBase, run);
  CHECK(metric_of(result, "formats").verdict == GateVerdict::worse);
  CHECK(metric_of(result, "formats").reason == "fprop.a was e4m3 1x128 f32 and is e5m2 1x128 f32 now");
  run.quantization.clear();
  CHECK(verdict_of(judge_one(kBase, run), "formats") == GateVerdict::missing);
  run = kBase;
  run.quantization.push_back({"fprop.b", "e4m3 1x128 f32", 0.0, 0.0, 31.0});  // a new role
  CHECK(judge_one(kBase, run).exit_status() == 0);
}

TEST_CASE("judge_updates: a first step that changes fewer parameters is WORSE", "[gate]") {
  Record run = kBase;
  run.training->params_changed = 0;
  CHECK(metric_of(judge_one(kBase, run), "updates").verdict == GateVerdict::worse);
  CHECK(metric_of(judge_one(kBase, run), "updates").reason ==
        "the first step changed 146 of the parameter tensors and changes 0 now");
  CHECK(judge_one(run, kBase).exit_status() == 0);
  run.training->params_changed.reset();
  CHECK(verdict_of(judge_one(kBase, run), "updates") == GateVerdict::missing);
  CHECK(judge_one(run, kBase).exit_status() == 0);
}

TEST_CASE("judge: one case on two machines is refused on either side", "[gate]") {
  const Record here = samples::cpu_record("bf16");
  Record there = here;
  there.env.cpu = "EPYC 9654";
  for (const auto& [baseline, run] :
       {std::pair{set_of({here, there}), set_of({there})}, std::pair{set_of({here}), set_of({here, there})}})
    CHECK(contains(refusal_of([&, &b = baseline, &r = run] { judge(b, r, {}); }),
                   "f:1 and f:2 are one case on two machines"));
}

TEST_CASE("judge: a record that contradicts itself is MISSING on either side", "[gate]") {
  const MetricResult result = after([](Record& r) { r.metrics->tokens_per_s = 99999999; });
  CHECK(result.verdict == GateVerdict::missing);
  CHECK(contains(result.reason, "f:1 contradicts itself: metrics.tokens_per_s is 99999999, but"));
  Record cut = kBase;
  cut.training->loss.resize(20);
  CHECK(judge_one(cut, kBase).exit_status() == 3);
  CHECK(judge_one(kBase, cut).exit_status() == 3);
}

TEST_CASE("judge: a case with two records of ambiguous age is MISSING", "[gate]") {
  RecordSet run = set_of({kBase});
  run.undecided = {kBase.id};
  const GateResult result = judge(set_of({kBase}), run, {});
  CHECK(verdict_of(result, "run") == GateVerdict::missing);
  CHECK(result.exit_status() == 3);
}

TEST_CASE("judge: four times the cases take less than eight times the CPU time", "[gate]") {
  const auto seconds = [](int cases, auto&& change) {
    std::vector<Record> records;
    for (int i = 0; i < cases; ++i) {
      records.push_back(samples::gpu_record("mxfp8", 250, 0, i));
      change(records.back(), i);
    }
    const RecordSet set = set_of(records);
    double fewest = 1e9;  // other load may interrupt one attempt
    for (int attempt = 0; attempt < 2; ++attempt) {
      const std::clock_t start = std::clock();
      CHECK(judge(set, set, {}).exit_status() == 0);
      fewest = std::min(fewest, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    return fewest;
  };
  const auto grows_as_they_do = [&](auto&& change) {
    const double few = seconds(500, change), many = seconds(2000, change);
    CAPTURE(few, many);
    CHECK(many < 8 * few + 0.05);  // four times as many; quadratic would be 16
    CHECK(many < 5);               // seconds, with the slowest build; 0.2 in Release
  };
  SECTION("seeds of one work") {
    grows_as_they_do([](Record&, int) {});
  }
  SECTION("works of one seed") {
    grows_as_they_do([](Record& record, int i) { record.case_fields["lr"] = 1e-9 * i; });
  }
  SECTION("works of one model file") {
    grows_as_they_do([](Record& record, int i) {
      record.case_fields["lr"] = 1e-9 * i;
      record.case_fields["model"] = "own.json";
    });
  }
}
