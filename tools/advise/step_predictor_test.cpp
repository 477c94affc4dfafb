// Tests predicted steps on committed records: other models, several GPUs, another GPU.
#include "tools/advise/step_predictor.h"

#include <cmath>

#include "kernels/testing/catch.h"
#include "results/record/record_samples.h"
#include "results/record/step_time.h"

using namespace precbench;

namespace {

struct Committed {
  RecordSet set = read_records({PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl",
                                PRECBENCH_SOURCE_DIR "/results/h200x4/scaling.jsonl"});
  std::vector<const Record*> records() const {
    std::vector<const Record*> refs;
    for (const LocatedRecord& located : set.records) refs.push_back(&located.record);
    return refs;
  }
};

const GpuModel kH200{"NVIDIA H200", "9.0", 150'109'880'320, 989, 4800};

}  // namespace

TEST_CASE("StepPredictor: accuracy on committed records of one and of several GPUs", "[advise][prediction]") {
  const Committed committed;
  const StepPredictor predictor(committed.records(), kH200);
  CHECK(predictor.source_gpu() == "NVIDIA H200");
  CHECK_FALSE(predictor.is_other_gpu());
  CHECK(predictor.most_gpus() == 4);
  struct Bounds {
    bool several;
    std::size_t fewest_steps;
    double step_median, step_worst, speedup_median, speedup_worst;
  };
  for (const Bounds& bounds :
       {Bounds{false, 41, 0.05, 0.20, 0.03, 0.12}, Bounds{true, 21, 0.08, 0.25, 0.05, 0.25}}) {
    INFO((bounds.several ? "several GPUs" : "one GPU"));
    const auto step = predictor.step_accuracy(bounds.several),
               speedup = predictor.speedup_accuracy(bounds.several);
    REQUIRE(step);
    REQUIRE(speedup);
    CHECK(step->count >= bounds.fewest_steps);
    CHECK(step->median < bounds.step_median);
    CHECK(step->worst < bounds.step_worst);
    CHECK(speedup->median < bounds.speedup_median);
    CHECK(speedup->worst < bounds.speedup_worst);
    CHECK(speedup->quantile_95 <= speedup->worst);
  }
}

TEST_CASE("StepPredictor: predicts what four H200 then measured, within its interval",
          "[advise][prediction]") {
  const Committed committed;
  std::vector<const Record*> known, asked;
  for (const Record* record : committed.records())
    (gpus_of(*record) == 4 && case_text(*record, "model") == "llama3.1-8b" ? asked : known).push_back(record);
  REQUIRE(asked.size() == 12);
  const StepPredictor predictor(known, kH200);
  CHECK(predictor.most_gpus() == 4);
  const double interval = predictor.speedup_accuracy(true).value().quantile_95;
  int compared = 0;
  for (const Record* bf16 : asked)
    for (const Record* record : asked) {
      if (case_text(*bf16, "recipe") != "bf16" || case_text(*record, "recipe") == "bf16" ||
          case_text(*bf16, "master") != case_text(*record, "master") ||
          case_text(*bf16, "seq") != case_text(*record, "seq"))
        continue;
      const double predicted = *predictor.step_ms(*bf16) / *predictor.step_ms(*record),
                   measured = *step_ms_of_speed(*bf16) / *step_ms_of_speed(*record);
      INFO(case_text(*record, "recipe") << " --gather " << case_text(*record, "gather") << ": " << predicted
                                        << " predicted, " << measured << " measured");
      CHECK(std::fabs(predicted / measured - 1) <= interval);
      ++compared;
    }
  CHECK(compared >= 10);
}

TEST_CASE("StepPredictor: a GPU without records takes those of one of its compute capability",
          "[advise][prediction]") {
  const Committed committed;
  const StepPredictor own(committed.records(), kH200),
      other(committed.records(), {"NVIDIA H100 80GB HBM3", "9.0", 85'000'000'000, 989, 3350});
  CHECK(other.is_other_gpu());
  CHECK(other.source_gpu() == "NVIDIA H200");
  for (const Record* record : committed.records()) {
    const auto on_h200 = own.step_ms(*record), on_h100 = other.step_ms(*record);
    if (!on_h200 || !on_h100) continue;
    // The same peak and 0.70 of the bandwidth: between equal and 1.43 times the time.
    CHECK(*on_h100 > *on_h200);
    CHECK(*on_h100 < *on_h200 * 4800 / 3350);
  }
  // Accuracy is that of the records on their own GPU.
  CHECK(other.step_accuracy(false)->median == own.step_accuracy(false)->median);
  // Ada has other kernels; a GPU of unknown peaks cannot be scaled to.
  CHECK(StepPredictor(committed.records(), {"NVIDIA L40S", "8.9", {}, 362, 864}).source_gpu().empty());
  CHECK(StepPredictor(committed.records(), {"NVIDIA H20", "9.0", {}, {}, {}}).source_gpu().empty());
}

TEST_CASE("StepPredictor: does not use emulated, failed or study records", "[advise][prediction]") {
  Record emulated = samples::gpu_record("mxfp8", 200), study = samples::gpu_record("bf16", 10),
         failed = samples::failed_record("rowwise", Status::crashed, "gone"),
         good = samples::gpu_record("bf16", 250);
  emulated.support->fprop.path = ExecutionPath::emulated;
  study.study = StudyPlace{
      "0123456789abcdef", StudyPart::fork, 1, 100, 1, 0, {}, false, {}, false, 0.0025, 0.05, {}, {}};
  const StepPredictor predictor({&emulated, &study, &failed, &good}, kH200);
  CHECK_FALSE(predictor.step_ms(samples::gpu_record("rowwise", 250)));
  CHECK_FALSE(predictor.step_ms(emulated));
  // The sample's one op, and its gaps.
  const auto ms = predictor.step_ms(good);
  REQUIRE(ms);
  CHECK(std::fabs(*ms - (250 * 0.2 + 250 * 0.01)) < 1e-9);
}

TEST_CASE("StepPredictor: several GPUs without a bandwidth are not predicted", "[advise][prediction]") {
  const Record single = samples::gpu_record("bf16", 250);
  Record several = single;
  several.case_fields["gpus"] = 8;
  several.communication->collectives = {{"all_gather", 4, 0, 4e9, std::nullopt}};
  CHECK_FALSE(StepPredictor({&single}, kH200).step_ms(several));
  Record known = single;
  known.case_fields["gpus"] = 4;
  known.communication->collectives = {{"all_gather", 4, 4e9, 3e9, 300.0}};
  const StepPredictor predictor({&single, &known}, kH200);
  REQUIRE(predictor.step_ms(several));
  CHECK(std::fabs(*predictor.step_ms(several) -
                  (*predictor.step_ms(single) + kHiddenCost * 4e9 / 300 / 1e6)) < 1e-6);
}
