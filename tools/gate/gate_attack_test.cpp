// Records that were constructed to pass where they must not: held-out losses, quantities that one side lacks,
// curves that are wrong only in the middle; and the notes on what no verdict covers.
#include <algorithm>

#include "kernels/testing/text_checks.h"
#include "tools/gate/gate_testing.h"

using namespace precbench;
using namespace precbench::gate_testing;
using samples::set_of;

namespace {

const Record kAttackBase = samples::gpu_record("mxfp8", 250);

template <class Change>
Record changed(Change&& change, Record record = kAttackBase) {
  change(record);
  return record;
}

/// Returns the record with only its first `steps` steps.
Record shortened(std::size_t steps) {
  return changed([&](Record& r) {
    for (auto* series : {&r.training->loss, &r.training->grad_norm, &r.training->lr}) series->resize(steps);
    r.case_fields["steps"] = steps;
    r.timing.reset(), r.metrics.reset(), r.training->evaluations.clear();
  });
}

std::vector<std::string> notes_on(const Record& baseline, const Record& run) {
  return judge_one(baseline, run).notes;
}

bool has_note(const std::vector<std::string>& notes, const std::string& text) {
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& note) { return contains(note, text); });
}

}  // namespace

TEST_CASE("judge: the held-out loss is judged like the loss", "[gate]") {
  const auto verdict = [](auto&& change) {
    return verdict_of(judge_one(kAttackBase, changed(change)), "held-out loss");
  };
  CHECK(verdict([](Record&) {}) == GateVerdict::pass);
  CHECK(verdict([](Record& r) { *r.training->evaluations[0].loss *= 3; }) == GateVerdict::worse);
  CHECK(verdict([](Record& r) { *r.training->evaluations[0].loss *= 1.003; }) == GateVerdict::worse);
  CHECK(verdict([](Record& r) { *r.training->evaluations[0].loss *= 1.002; }) == GateVerdict::pass);
  CHECK(verdict([](Record& r) { *r.training->evaluations[0].loss *= 0.9; }) == GateVerdict::noisy);
  CHECK(verdict([](Record& r) { r.training->evaluations.clear(); }) == GateVerdict::missing);
  CHECK(verdict([](Record& r) { r.training->evaluations[0].loss.reset(); }) == GateVerdict::worse);
  CHECK(verdict([](Record& r) { r.training->evaluations[0].step = 50; }) == GateVerdict::noisy);
  CHECK(verdict([](Record& r) { r.training->evaluations[0].tokens /= 2; }) == GateVerdict::noisy);
  // The last number of steps that both have evaluated counts.
  const auto twice = [](Record& r) {
    r.training->evaluations.insert(r.training->evaluations.begin(), {50, 65536, 3.0, 0.02, 3.0});
  };
  Record run = changed(twice);
  run.training->evaluations.pop_back();
  *run.training->evaluations[0].loss *= 1.01;
  CHECK(verdict_of(judge_one(changed(twice), run), "held-out loss") == GateVerdict::worse);
  // A baseline without one is noted, and --loss off leaves it out.
  const Record without = changed([](Record& r) { r.training->evaluations.clear(); });
  CHECK(has_note(notes_on(without, kAttackBase), "held-out loss not judged: the baseline has none"));
  GateRules rules;
  rules.loss = false;
  CHECK_FALSE(judged(judge_one(kAttackBase, without, rules), "held-out loss"));
}

TEST_CASE("judge: a metric that one side lacks is MISSING and never left out in silence", "[gate]") {
  const auto missing = [](const Record& baseline, const Record& run, const std::string& metric) {
    const GateResult result = judge_one(baseline, run);
    CHECK(result.exit_status() == 3);
    CHECK(verdict_of(result, metric) == GateVerdict::missing);
    return metric_of(result, metric).reason;
  };
  const Record slow = samples::gpu_record("mxfp8", 750);
  const auto lacking = [](auto&& change) { return changed(change); };
  CHECK(contains(missing(lacking([](Record& r) { r.timing.reset(), r.metrics.reset(); }), slow, "tokens/s"),
                 "the baseline's record lacks it; --accept --replace takes this run's"));
  missing(lacking([](Record& r) { r.metrics.reset(); }), slow, "tokens/s");
  missing(lacking([](Record& r) { r.support.reset(); }),
          changed([](Record& r) { r.support->fprop.path = ExecutionPath::emulated; }, slow), "tokens/s");
  missing(lacking([](Record& r) {
            r.timing->samples_ms.clear(), r.timing->runs.clear();
            r.timing->median_ms.reset(), r.timing->iqr_ms.reset(), r.timing->min_ms.reset();
          }),
          slow, "tokens/s");
  missing(lacking([](Record& r) { r.memory->measured->peak = 0; }),
          changed([](Record& r) { r.memory->measured->peak *= 5; }), "peak memory");
  missing(lacking([](Record& r) { r.training->loss.clear(), r.case_fields["steps"] = 0; }),
          lacking([](Record& r) {
            r.case_fields["steps"] = 0, r.training->loss.clear(), r.training->loss.push_back(2);
          }),
          "run");
  // Fewer than five steps make no final loss.
  Record worse = shortened(4);
  for (double& loss : worse.training->loss) loss *= 2;
  CHECK(missing(shortened(4), worse, "final loss") ==
        "4 steps make no final loss, at least 5 do: raise --steps");
}

TEST_CASE("judge: what neither side has is noted", "[gate]") {
  const Record bare = changed([](Record& r) { r.metrics.reset(), r.memory.reset(); });
  const GateResult result = judge_one(bare, bare);
  CHECK(has_note(result.notes, "speed not judged: neither side has one"));
  CHECK(has_note(result.notes, "memory not judged: neither side has a measured peak"));
}

TEST_CASE("judge: a curve that is far off before the end is NOISY", "[gate]") {
  const auto verdict = [](auto&& change) {
    const GateResult result = judge_one(kAttackBase, changed(change));
    return judged(result, "curve") ? verdict_of(result, "curve") : GateVerdict::pass;
  };
  const auto scaled = [](std::size_t begin, std::size_t end, double factor) {
    return [=](Record& r) {
      for (std::size_t i = begin; i < end; ++i) r.training->loss[i] *= factor;
    };
  };
  CHECK(verdict(scaled(0, 0, 1)) == GateVerdict::pass);
  CHECK(verdict(scaled(20, 85, 5)) == GateVerdict::noisy);
  CHECK(verdict(scaled(80, 90, 2)) == GateVerdict::noisy);
  CHECK(verdict([](Record& r) { r.training->loss[50] = 1e308; }) == GateVerdict::noisy);
  CHECK(verdict(scaled(40, 41, 1.5)) == GateVerdict::pass);  // a spike of one step
  CHECK(verdict([](Record& r) {
          for (double& norm : r.training->grad_norm) norm *= 1e6;
        }) == GateVerdict::noisy);
  CHECK(verdict([](Record& r) {
          for (double& norm : r.training->grad_norm) norm *= 1.5;
        }) == GateVerdict::pass);
}

TEST_CASE("judge: both commits are named, and a run of the baseline's commit or older than it", "[gate]") {
  const auto later = [](const char* git, const char* created) {
    return changed([&](Record& r) { r.env.git = git, r.created = created; });
  };
  const Record other = later("def4567", "2025-03-09T12:00:00Z");
  CHECK(has_note(notes_on(kAttackBase, other), "the baseline is of commit 0123abc, this run of def4567"));
  CHECK_FALSE(has_note(notes_on(kAttackBase, other), "same commit"));
  const auto same = notes_on(kAttackBase, later("0123abc", "2025-03-09T12:00:00Z"));
  CHECK(has_note(same, "run and baseline are of the same commit, 0123abc"));
  CHECK(has_note(same, "--fresh"));
  CHECK(has_note(notes_on(kAttackBase, later("def4567", "2024-03-01T12:00:00Z")),
                 "this run is older than the baseline"));
  CHECK(has_note(notes_on(kAttackBase, kAttackBase), "the baseline's own records"));
}

TEST_CASE("judge: another board and its limits and kernels and energy are noted", "[gate]") {
  const auto notes = [](auto&& change) { return notes_on(kAttackBase, changed(change)); };
  CHECK(has_note(notes([](Record& r) { r.env.gpu->uuid = "GPU-2"; }), "another board of the same GPU model"));
  CHECK(has_note(notes([](Record& r) { *r.env.gpu->memory /= 2; }),
                 "GPU memory of 140.40 GiB in the baseline, 70.20 GiB here"));
  CHECK(has_note(notes([](Record& r) { r.env.gpu->power_limit = 400; }),
                 "GPU power limit of 700 W in the baseline, 400 W here"));
  CHECK(has_note(notes([](Record& r) { r.env.gpu->ecc = false; }),
                 "GPU memory ECC on in the baseline, off here"));
  CHECK(has_note(notes([](Record& r) { r.support->attention = "own"; }),
                 "attention kernels: cudnn 9.8.0 in the baseline, own here"));
  CHECK(has_note(notes([](Record& r) { *r.metrics->energy_j_per_token *= 2; }),
                 "energy per token +100%; it is not judged"));
  CHECK(has_note(notes([](Record& r) { *r.memory->driver *= 2; }),
                 "memory in use as the driver counts it +100%"));
  CHECK(has_note(
      notes([](Record& r) { r.case_fields["turbo"] = "half_the_work"; }),
      "the baseline lacks these case fields, and is taken to have their defaults: turbo (half_the_work)"));
}
