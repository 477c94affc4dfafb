// A record that was changed in one place contradicts another.
#include "results/record/contradiction.h"

#include <algorithm>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_file.h"
#include "results/record/record_samples.h"

using namespace precbench;

namespace {

/// Returns the contradiction of a valid record after `change`, or "none".
template <class Change>
std::string after(Change&& change) {
  Record record = samples::gpu_record("bf16", 250);
  change(record);
  return contradiction(record).value_or("none");
}

template <class Change>
std::string after_without_runs(Change&& change) {
  return after([&](Record& record) {
    record.timing->runs.clear();
    change(record);
  });
}

}  // namespace

TEST_CASE("contradiction: an imported record has the steps of its losses, and no other series", "[contradiction]") {
  const Record imported = samples::imported_record("mxfp8", 250);
  CHECK(contradiction(imported).value_or("none") == "none");
  Record other = imported;
  other.source->steps.pop_back();
  CHECK(contains(contradiction(other).value_or("none"), "source.steps has 6 entries"));
  other = imported;
  other.source->steps.back() = other.source->steps.front();
  CHECK(contains(contradiction(other).value_or("none"), "source.steps does not ascend"));
  other = imported;
  *other.metrics->tokens_per_s *= 2;
  CHECK(contains(contradiction(other).value_or("none"), "metrics.tokens_per_s"));
}

TEST_CASE("contradiction: valid records have none whatever sections they lack", "[contradiction]") {
  std::vector<Record> records = {samples::gpu_record("bf16", 250), samples::cpu_record("bf16"),
                                 samples::cpu_record("mxfp8"), Record{}};
  for (const Status status : {Status::oom, Status::unsupported, Status::timeout, Status::crashed})
    records.push_back(samples::failed_record("rowwise", status, "because"));
  Record diverged = samples::gpu_record("bf16", 250);
  diverged.status = Status::diverged;
  diverged.training->loss.resize(20);
  records.push_back(diverged);
  Record automatic = samples::gpu_record("bf16", 250);
  automatic.case_fields["steps"] = "auto";
  automatic.training->loss.resize(20);
  records.push_back(automatic);
  Record bare = samples::gpu_record("bf16", 250);
  bare.timing->samples_ms.clear();
  bare.timing->runs.clear();
  bare.timing->median_ms.reset(), bare.timing->iqr_ms.reset(), bare.timing->min_ms.reset();
  records.push_back(bare);
  for (const Record& record : records) CHECK(contradiction(record).value_or("none") == "none");
}

TEST_CASE("contradiction: a definition under schema 1 is found", "[contradiction]") {
  CHECK(after([](Record& r) { r.schema = 1; }) == "schema is 1, but there is a definition, which came with schema 2");
  CHECK_FALSE(contradiction(samples::of_schema_1(samples::gpu_record("bf16", 250))));
}

TEST_CASE("contradiction: speeds that do not follow from the median step are found", "[contradiction]") {
  CHECK(after([](Record& r) { r.metrics->tokens_per_s = 99999999; }) ==
        "metrics.tokens_per_s is 99999999, but training.tokens_per_step over timing.median_ms gives 65536");
  CHECK(after([](Record& r) { r.training->tokens_per_step = 1; }) ==
        "metrics.tokens_per_s is 65536, but training.tokens_per_step over timing.median_ms gives 4");
  CHECK(
      contains(after([](Record& r) { *r.metrics->tokens_per_s_per_gpu *= 2; }), "metrics.tflops_per_gpu is"));
  CHECK(contains(after([](Record& r) { r.case_fields["gpus"] = 4; }), "over case.gpus gives 16384"));
  CHECK(after([](Record& r) { *r.metrics->tokens_per_s *= 1 + 1e-9; }) == "none");
  CHECK(after([](Record& r) { *r.metrics->tokens_per_s *= 1 + 1e-5; }) != "none");
}

TEST_CASE("contradiction: statistics that do not follow from the samples are found", "[contradiction]") {
  CHECK(after_without_runs([](Record& r) { r.timing->median_ms = 125; }) ==
        "timing.median_ms is 125, but samples_ms gives 250");
  CHECK(after_without_runs([](Record& r) { r.timing->min_ms = 200; }) ==
        "timing.min_ms is 200, but samples_ms gives 249.5");
  CHECK(after_without_runs([](Record& r) { r.timing->iqr_ms = 0; }) ==
        "timing.iqr_ms is 0, but samples_ms gives 0.5");
  CHECK(contains(after_without_runs([](Record& r) { r.timing->samples_ms.clear(); }), "samples_ms is empty"));
  CHECK(contains(after_without_runs([](Record& r) {
                   for (double& sample : r.timing->samples_ms) sample /= 2;
                 }),
                 "timing.median_ms is 250, but samples_ms gives 125"));
}

TEST_CASE("contradiction: interleaved medians that do not follow from the runs are found",
          "[contradiction]") {
  CHECK(after([](Record& r) { r.timing->median_ms = 240; }) ==
        "timing.median_ms is 240, but the mean of its runs' medians gives 250");
  CHECK(after([](Record& r) { r.timing->runs[1].median_ms = 240; }) ==
        "a median_ms of timing.runs is 240, but its part of samples_ms gives 250");
  CHECK(after([](Record& r) { r.timing->runs[1].samples = 4; }) ==
        "timing.samples_ms has 11 entries, but timing.runs says 10");
}

TEST_CASE("contradiction: a loss curve shorter than the steps of an ok run is found", "[contradiction]") {
  CHECK(after([](Record& r) { r.training->loss.resize(60); }) ==
        "training.loss has 60 entries, but case.steps says 100");
  // Without a stated number of steps the timing implies one.
  const auto automatic = [](std::size_t losses) {
    return [=](Record& r) {
      r.case_fields["steps"] = "auto";
      r.training->loss.resize(losses);
    };
  };
  CHECK(after_without_runs(automatic(17)) == "none");  // 6 of warm-up and 11 samples
  CHECK(after_without_runs(automatic(16)) ==
        "training.loss has 16 entries, but timing says that 17 steps were done");
  CHECK(after(automatic(12)) == "none");  // the curve of an interleaved case is that of its first run
  CHECK(after(automatic(11)) == "training.loss has 11 entries, but timing says that 12 steps were done");
}

TEST_CASE("contradiction: a null loss or gradient norm of an ok run is found", "[contradiction]") {
  const double null = std::nan("");
  CHECK(after([&](Record& r) { std::fill_n(r.training->loss.begin(), 50, null); }) ==
        "training.loss is null at step 1, but status is ok");
  CHECK(after([&](Record& r) { r.training->loss[3] = null; }) ==
        "training.loss is null at step 4, but status is ok");
  CHECK(after([&](Record& r) { r.training->grad_norm.assign(100, null); }) ==
        "training.grad_norm is null at step 1, but status is ok");
  CHECK(after([](Record& r) { r.training->grad_norm.clear(); }) ==
        "training.grad_norm has 0 entries, but training.loss has 100");
  CHECK(after([&](Record& r) { r.status = Status::diverged, r.training->loss.back() = null; }) == "none");
}

TEST_CASE("contradiction: more changed parameters than parameters are found", "[contradiction]") {
  CHECK(after([](Record& r) { r.training->params_changed = 147; }) ==
        "training.params_changed is 147, but training.params_total is 146");
  CHECK(after([](Record& r) { r.training->params_changed = 0; }) == "none");
}

TEST_CASE("contradiction: host time below the device time is found", "[contradiction]") {
  const auto with_wall = [](double wall_ms) { return [=](Record& r) { r.timing->wall_ms = wall_ms; }; };
  CHECK(contains(after(with_wall(0)), "timing.wall_ms is 0, but the mean of samples_ms is 2"));
  CHECK(contains(after_without_runs(with_wall(248)), "timing.wall_ms is 248, but"));
  CHECK(after(with_wall(249.9)) == "none");  // within the tolerance of two clocks
  CHECK(after(with_wall(400)) == "none");
  // For an interleaved case it is the mean over both runs, whatever their sample counts.
  const auto uneven = [](double wall_ms) {
    return [=](Record& r) {
      r.timing->samples_ms = {300, 300, 300, 300, 300, 300, 300, 300, 300, 300, 200};
      r.timing->runs[0].samples = 10, r.timing->runs[0].median_ms = 300;
      r.timing->runs[1].samples = 1, r.timing->runs[1].median_ms = 200;
      r.timing->iqr_ms = 0, r.timing->min_ms = 200, r.timing->wall_ms = wall_ms;
    };
  };
  CHECK(after(uneven(251)) == "none");
  CHECK(after(uneven(245)) == "timing.wall_ms is 245, but the mean of samples_ms is 250");
}

TEST_CASE("read_records: a contradictory record is kept and reported", "[contradiction]") {
  const TempDirectory scratch;
  const std::string file = scratch / "records.jsonl";
  Record fast = samples::gpu_record("rowwise", 225), cut = samples::gpu_record("blockwise", 200);
  fast.metrics->tokens_per_s = 99999999;
  cut.training->loss.resize(60);
  for (const Record& record : {samples::gpu_record("bf16", 250), fast, cut}) append_record(file, record);
  const RecordSet set = read_records({file});
  CHECK(set.records.size() == 3);
  REQUIRE(set.problems.size() == 2);
  CHECK(contains(set.problems[0], ":2: contradicts itself: metrics.tokens_per_s is 99999999, but"));
  CHECK(contains(set.problems[1], ":3: contradicts itself: training.loss has 60 entries, but"));
}

TEST_CASE("contradiction: committed records have none", "[contradiction]") {
  for (const char* path :
       {"cpu/convergence-tiny.jsonl.xz", "baseline", "h200/single.jsonl.xz", "h200/beside-pytorch",
        "h200/beside-pytorch-experts", "h200/interleaved", "h200x4"}) {
    const RecordSet set = read_records({std::string(PRECBENCH_SOURCE_DIR "/results/") + path});
    CHECK(set.records.size() > 5);
    for (const std::string& problem : set.problems) CHECK_FALSE(contains(problem, "contradicts"));
  }
}
