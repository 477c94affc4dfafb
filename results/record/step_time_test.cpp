// Step times from which speeds are computed, and the warnings for readers.
#include "results/record/step_time.h"

#include <algorithm>

#include "kernels/testing/catch.h"
#include "results/record/contradiction.h"
#include "results/record/record_file.h"
#include "results/record/record_samples.h"
#include "results/record/statistics.h"

using namespace precbench;
using Samples = std::vector<double>;

namespace {

Timing timing_of(const Samples& samples) {
  Timing timing;
  timing.samples_ms = samples;
  const SampleStatistics statistics = *sample_statistics(samples);
  timing.median_ms = statistics.median;
  timing.iqr_ms = statistics.iqr();
  timing.min_ms = statistics.min;
  return timing;
}

/// Half a CPU in periods of 100 ms: steps of 20 ms run until the quota is used up, then the next one waits.
Samples under_quota() {
  Samples samples;
  for (int i = 0; i < 20; ++i) samples.push_back(i % 3 == 2 ? 70 : 20);
  return samples;
}

/// Returns a record whose speed is computed from these samples as bench does it.
Record timed(const Samples& samples) {
  Record record = samples::gpu_record("bf16", 250);
  record.timing = timing_of(samples);
  Metrics& metrics = *record.metrics;
  metrics.tokens_per_s =
      static_cast<double>(*record.training->tokens_per_step) * 1e3 / *step_ms_for_speed(*record.timing);
  metrics.tokens_per_s_per_gpu = metrics.tokens_per_s;
  metrics.tflops_per_gpu = *metrics.tokens_per_s * record.flops->per_token * 1e-12;
  if (mean_is_far_from_median(*record.timing)) metrics.speed_from = std::string(kFromMean);
  return record;
}

bool warns(const Record& record, const std::string& begin) {
  const auto doubts = speed_doubts(record);
  return std::any_of(doubts.begin(), doubts.end(),
                     [&](const std::string& line) { return line.starts_with(begin); });
}

const std::string kNoisy = "step times are noisy: ", kNotTypical = "the median step is not typical: ";

}  // namespace

TEST_CASE("step_ms_for_speed: repeated stalls select the mean", "[step_time]") {
  const Timing timing = timing_of(under_quota());
  CHECK(timing.median_ms == 20.0);
  CHECK(mean_is_far_from_median(timing));
  CHECK(step_ms_for_speed(timing) == 35.0);
  // The short ones of two kinds of steps may be rare; the median then understates the speed.
  CHECK(step_ms_for_speed(timing_of({70, 70, 70, 20, 20, 70, 70, 20, 70})) == 480.0 / 9);
}

TEST_CASE("step_ms_for_speed: regular times or a single outlier select the median", "[step_time]") {
  CHECK(step_ms_for_speed(timing_of({100, 101, 99, 100, 102, 98, 100})) == 100.0);
  CHECK(step_ms_for_speed(timing_of({100, 100, 100, 100, 900, 100, 100, 100, 100, 100})) == 100.0);
  CHECK(step_ms_for_speed(timing_of({100, 100, 100, 100, 900, 100, 100, 100, 900, 100})) == 260.0);
  CHECK(step_ms_for_speed(timing_of({100, 900})) == 500.0);  // too few to tell: their median
  CHECK(!step_ms_for_speed(Timing{}));
}

TEST_CASE("speed_doubts: noise is reported under every stop reason", "[step_time]") {
  Samples noisy;
  for (int i = 0; i < 20; ++i) noisy.push_back(i % 2 ? 95 : 105);
  for (const StopReason reason :
       {StopReason::target, StopReason::stable_noise, StopReason::time_limit, StopReason::fixed_steps}) {
    INFO(name_of(reason));
    Record record = timed(noisy);
    record.timing->stop_reason = reason;
    CHECK(warns(record, kNoisy));
    CHECK(!warns(record, kNotTypical));
  }
  CHECK(speed_doubts(timed({100, 101, 99, 100, 102, 98, 100})).empty());
  CHECK(speed_doubts(timed({100, 200})).empty());  // the report says that they are few
}

TEST_CASE("speed_doubts: a median far from the mean is reported separately", "[step_time]") {
  const Record record = timed(under_quota());
  CHECK(speed_doubts(record).size() == 2);
  CHECK(warns(record, kNoisy));
  CHECK(warns(record,
              kNotTypical + "the mean step takes 35 ms, the median 20 ms; speeds are made from the mean"));
  // Most steps are alike, so no quartile shows the stalls.
  Samples rare(20, 20.0);
  for (const std::size_t i : {4, 9, 14, 19}) rare[i] = 70;
  CHECK(!warns(timed(rare), kNoisy));
  CHECK(warns(timed(rare), kNotTypical));
  // A single hiccup does not affect the speed but is reported.
  Samples hiccup(20, 20.0);
  hiccup[7] = 300;
  CHECK(speed_doubts(timed(hiccup)) ==
        std::vector<std::string>{
            "a single step was far from the others: it took 300 ms, the median 20 ms; speeds are made "
            "from the median"});
  Record before = record;  // an older row, whose speed is the median's
  before.metrics->speed_from.reset();
  CHECK(warns(before,
              kNotTypical + "the mean step takes 35 ms, the median 20 ms; speeds are made from the median"));
  Record emulated = record;
  emulated.metrics = Metrics{};
  CHECK(speed_doubts(emulated).empty());
}

TEST_CASE("warnings_and_doubts: an older record is doubted by its samples and a new one only once",
          "[step_time]") {
  Record record = timed(under_quota());
  record.warnings = {"another process uses GPU 0"};
  const std::vector<std::string> all = warnings_and_doubts(record);
  REQUIRE(all.size() == 3);
  CHECK(all[0] == "another process uses GPU 0");
  CHECK(all[1].starts_with(kNoisy));
  CHECK(all[2].starts_with(kNotTypical));
  record.warnings = all;
  CHECK(warnings_and_doubts(record) == all);
  record.warnings = {kNoisy + "in other words"};
  CHECK(warnings_and_doubts(record).size() == 2);
  CHECK(warnings_and_doubts(timed({100, 101, 99, 100, 102, 98, 100})).empty());
}

TEST_CASE("doubts_of_all: a line for each kind, with the number of records", "[step_time]") {
  const Record steady = timed({100, 101, 99, 100, 102, 98, 100}), stalled = timed(under_quota());
  CHECK(doubts_of_all({&steady}).empty());
  const std::vector<std::string> lines = doubts_of_all({&stalled, &steady, &stalled});
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].starts_with("2 of 3 records: " + kNoisy));
  CHECK(lines[1].starts_with("2 of 3 records: " + kNotTypical));
}

TEST_CASE("speed_doubts: a ratio above 1 is reported", "[step_time]") {
  Record record = samples::gpu_record("bf16", 250);
  CHECK(speed_doubts(record).empty());
  record.metrics->mfu_measured = 1.019;
  CHECK(warns(record, "mfu_measured is 1.019, above 1: "));
  record.metrics->mfu_measured = 1;
  record.metrics->sol = 1.01;
  CHECK(warns(record, "sol is 1.010, above 1: "));
}

TEST_CASE("speed_doubts: threads that share fewer CPUs are reported", "[step_time]") {
  Record record = samples::cpu_record("bf16");
  record.env.threads = 2;
  CHECK(!cpus_for_threads(record.env));  // an older row
  record.env.cpus = 8;
  CHECK(cpus_for_threads(record.env) == 2.0);
  CHECK(speed_doubts(record).empty());
  record.env.cpus = 1;
  CHECK(cpus_for_threads(record.env) == 1.0);
  CHECK(warns(record, "2 CPU threads had 1 CPUs, by affinity mask or CPU quota"));
  record.env.cpus = 8, record.env.cpu_quota = 0.5;
  CHECK(cpus_for_threads(record.env) == 0.5);
  CHECK(warns(record, "2 CPU threads had 0.5 CPUs, by affinity mask or CPU quota"));
}

TEST_CASE("contradiction: a speed must follow from the step time it names", "[step_time][contradiction]") {
  Record record = timed(under_quota());
  CHECK(contradiction(record).value_or("none") == "none");
  record.metrics->speed_from.reset();
  CHECK(contradiction(record).value_or("none").starts_with("metrics.tokens_per_s is "));
}

TEST_CASE("step_ms_of_speed: committed records use the median", "[step_time]") {
  for (const char* path : {"baseline", "h200/single.jsonl.xz", "h200/interleaved", "h200x4"})
    for (const LocatedRecord& located :
         read_records({std::string(PRECBENCH_SOURCE_DIR "/results/") + path}).records) {
      const Record& record = located.record;
      if (!record.timing || !record.metrics || !record.metrics->tokens_per_s) continue;
      INFO(record.id);
      CHECK(step_ms_of_speed(record) == record.timing->median_ms);
      CHECK(step_ms_for_speed(*record.timing) == record.timing->median_ms);
    }
}
