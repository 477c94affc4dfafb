// Tests predicted step times on synthetic steps, and their accuracy on the committed records.
#include "tools/analysis/step_prediction.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "kernels/testing/catch.h"
#include "results/record/record_file.h"
#include "results/record/record_samples.h"
#include "results/record/statistics.h"
#include "results/record/step_time.h"
#include "tools/report/sections.h"

using namespace precbench;

namespace {

Record step_of(const std::vector<OpRecord>& ops, double idle_ms = 0) {
  Record record = samples::gpu_record("bf16", 100);
  record.breakdown->ops = ops;
  record.breakdown->idle_ms = idle_ms;
  return record;
}

bool near(double x, double y) { return std::fabs(x - y) <= 1e-12 * std::fabs(y); }

}  // namespace

TEST_CASE("predicted_on_one_gpu: sums ops at the rates of other steps", "[prediction]") {
  // 2 + 6 TFLOP in 4 + 4 ms are 1 TFLOP/ms; 30 + 10 GB in 5 + 5 ms are 4 GB/ms. The head's
  // GEMMs count separately.
  const Record first = step_of({{"matmul", "gemm", 8, 4, 2e12, 7e9}, {"adamw", "optimizer", 1, 5, 0, 30e9}});
  const Record second = step_of({{"matmul", "gemm", 8, 4, 6e12, 1e9}, {"adamw", "optimizer", 1, 5, 0, 10e9}});
  const Record asked = step_of({{"matmul", "gemm", 8, 99, 3e12, 5e9}, {"adamw", "optimizer", 1, 99, 0, 8e9}});
  CHECK(near(predicted_on_one_gpu(asked, {&first, &second}).value(), 3 + 2));
  // 18 calls with gaps of 36 us in all: 2 us each.
  const Record gaps = step_of(second.breakdown->ops, 0.036);
  CHECK(near(predicted_on_one_gpu(asked, {&first, &gaps}).value(), 3 + 2 + 9 * 0.002));
  CHECK_FALSE(predicted_on_one_gpu(asked, {}));
  const Record head = step_of({{"matmul", "head_loss", 8, 99, 3e12, 5e9}});
  CHECK_FALSE(predicted_on_one_gpu(head, {&first, &second}));
  Record unprofiled = asked;
  unprofiled.breakdown.reset();
  CHECK_FALSE(predicted_on_one_gpu(unprofiled, {&first}));
  CHECK_FALSE(predicted_on_one_gpu(asked, {&unprofiled}));
}

TEST_CASE("predicted_on_one_gpu: uses only ops within 8 times the size, the two nearest", "[prediction]") {
  // 1, 2 and 4 TFLOP per call at 1, 2 and 4 TFLOP/ms: larger GEMMs are faster.
  const Record small = step_of({{"matmul", "gemm", 10, 10, 10e12, 0}}),
               middle = step_of({{"matmul", "gemm", 10, 10, 20e12, 0}}),
               large = step_of({{"matmul", "gemm", 10, 10, 40e12, 0}});
  const auto predicted = [&](double flops) {
    return predicted_on_one_gpu(step_of({{"matmul", "gemm", 10, 99, flops, 0}}), {&small, &middle, &large});
  };
  CHECK(near(predicted(36e12).value(), 36 / 3.0));    // middle and large: 60 TFLOP in 20 ms
  CHECK(near(predicted(11e12).value(), 11 / 1.5));    // small and middle
  CHECK(near(predicted(300e12).value(), 300 / 4.0));  // only large is within 8 times
  CHECK_FALSE(predicted(321e12));
  CHECK_FALSE(predicted(1.2e12));
}

TEST_CASE("predicted_on_one_gpu: a memory-bound op of another size takes the pooled byte rate",
          "[prediction]") {
  // `zero` clears 4 bytes in 4.5 us here, 0.9 kB/ms; both memory-bound ops together reach 4 GB/ms.
  const Record known = step_of({{"adamw", "optimizer", 1, 10, 0, 40e9}, {"zero", "other", 1, 0.0045, 0, 4}});
  const Record asked = step_of({{"adamw", "optimizer", 1, 99, 0, 80e9}, {"zero", "other", 2, 99, 0, 2e9}});
  CHECK(std::fabs(predicted_on_one_gpu(asked, {&known}).value() - (20 + 0.5)) < 1e-3);
}

TEST_CASE("predicted_on_one_gpu: a model with tied weights predicts the step of one with a head of its own",
          "[prediction]") {
  // Ops of llama3.2-1b (seq 2048) and llama3.1-8b (seq 8192) on one H200 in BF16, 28c9d6e. The first clears 4
  // bytes per step, the second two buffers of a gigabyte. At the rate of the first, that took 2,371,211 ms.
  const std::vector<OpRecord> of_1b = {
      {"adamw", "optimizer", 34, 10.542912, 0, 37074432000.0},
      {"matmul wgrad", "gemm", 64, 5.872160, 3985729650688.0, 6375342080.0},
      {"attention_backward", "attention", 16, 2.974432, 549755813888.0, 675282944.0},
      {"rmsnorm_backward", "norm_elementwise", 33, 1.076768, 0, 1099583488.0},
      {"swiglu_backward", "norm_elementwise", 16, 0.912160, 0, 3221225472.0},
      {"cross_entropy", "head_loss", 1, 0.395360, 0, 1050689536.0},
      {"sum", "head_loss", 1, 0.008256, 0, 8192},
      {"embedding", "norm_elementwise", 1, 0.007584, 0, 16785408.0},
      {"zero", "other", 1, 0.004512, 0, 4}};
  const std::vector<OpRecord> of_8b = {
      {"matmul wgrad", "gemm", 128, 167.320192, 114349209288704.0, 64424509440.0},
      {"attention_backward", "attention", 32, 109.599104, 35184372088832.0, 10770972672.0},
      {"adamw", "optimizer", 67, 68.478720, 0, 240907837440.0},
      {"swiglu_backward", "norm_elementwise", 32, 12.870528, 0, 45097156608.0},
      {"rmsnorm_backward", "norm_elementwise", 65, 4.962144, 0, 17384923136.0},
      {"cross_entropy", "head_loss", 4, 1.763744, 0, 4202758144.0},
      {"zero", "other", 2, 0.480608, 0, 2101346308.0},
      {"embedding", "norm_elementwise", 1, 0.024384, 0, 134250496.0},
      {"sum", "head_loss", 1, 0.009248, 0, 32768}};
  const Record known = step_of(of_1b, 1.168833);
  // The 8B model's GEMMs and attention are 14 and 32 times as large: no rate is known.
  CHECK_FALSE(predicted_on_one_gpu(step_of(of_8b), {&known}));
  std::vector<OpRecord> memory_bound;
  double measured = 0;
  for (const OpRecord& op : of_8b)
    if (op.flops == 0) {
      memory_bound.push_back(op);
      measured += op.ms;
    }
  const double predicted = predicted_on_one_gpu(step_of(memory_bound), {&known}).value();
  INFO(predicted << " ms, measured " << measured);
  CHECK(std::fabs(predicted / measured - 1) < 0.25);
}

namespace {

using Setting = std::tuple<std::string, std::string, std::string>;  // model, seq, batch

/// Returns the steps that have a speed: native ones that ran alone.
std::vector<const Record*> single_steps(const RecordSet& set) {
  std::vector<const Record*> steps;
  for (const LocatedRecord& located : set.records)
    if (located.record.status == Status::ok && located.record.breakdown && located.record.metrics &&
        located.record.metrics->tokens_per_s)
      steps.push_back(&located.record);
  return steps;
}

/// Predicts a step from the records of other models in the same recipe.
std::optional<double> from_other_models(const Record& record, const std::vector<const Record*>& steps) {
  std::vector<const Record*> others;
  for (const Record* step : steps)
    if (case_text(*step, "recipe") == case_text(record, "recipe") &&
        case_text(*step, "model") != case_text(record, "model"))
      others.push_back(step);
  return predicted_on_one_gpu(record, others);
}

double median(std::vector<double> values) { return sample_statistics(std::move(values)).value().median; }

}  // namespace

TEST_CASE("predicted_on_one_gpu: accuracy across models of the committed records", "[prediction]") {
  const RecordSet set = read_records({PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl"});
  const std::vector<const Record*> steps = single_steps(set);
  REQUIRE(steps.size() == 42);
  std::vector<double> step_errors, speedup_errors;
  std::map<Setting, std::map<std::string, std::pair<double, double>>> by_setting;  // predicted, measured ms
  for (const Record* step : steps) {
    const double measured = step_ms_of_speed(*step).value(),
                 predicted = from_other_models(*step, steps).value();
    step_errors.push_back(std::fabs(predicted / measured - 1));
    by_setting[{case_text(*step, "model"), case_text(*step, "seq"), case_text(*step, "batch")}]
              [case_text(*step, "recipe")] = {predicted, measured};
  }
  int right = 0;
  for (const auto& [setting, recipes] : by_setting) {
    const auto& [bf16_predicted, bf16_measured] = recipes.at("bf16");
    for (const auto& [recipe, ms] : recipes)
      if (recipe != "bf16")
        speedup_errors.push_back(std::fabs((bf16_predicted / ms.first) / (bf16_measured / ms.second) - 1));
    const auto best = [&](auto side) {
      return std::min_element(recipes.begin(), recipes.end(),
                              [&](const auto& a, const auto& b) { return a.second.*side < b.second.*side; })
          ->first;
    };
    right += best(&std::pair<double, double>::first) == best(&std::pair<double, double>::second);
  }
  // The figures of tools/advise/README.md.
  CHECK(median(step_errors) < 0.03);
  CHECK(*std::max_element(step_errors.begin(), step_errors.end()) < 0.10);
  CHECK(speedup_errors.size() == 35);
  CHECK(median(speedup_errors) < 0.03);
  CHECK(*std::max_element(speedup_errors.begin(), speedup_errors.end()) < 0.05);
  CHECK(by_setting.size() == 7);
  CHECK(right == 7);
}

TEST_CASE("predicted_on_one_gpu: is within 25% for every committed step on one GPU", "[prediction]") {
  const RecordSet set =
      read_records({PRECBENCH_SOURCE_DIR "/results/h200", PRECBENCH_SOURCE_DIR "/results/h200x4"});
  std::vector<const Record*> steps;
  for (const Record* step : single_steps(set))
    if (step->support && step->support->path() == ExecutionPath::native && case_text(*step, "gpus") == "1")
      steps.push_back(step);
  int predictions = 0;
  for (const Record* step : steps) {
    const auto predicted = from_other_models(*step, steps);
    if (!predicted) continue;
    ++predictions;
    INFO(step->id << " " << case_text(*step, "model") << " " << case_text(*step, "recipe"));
    const double ratio = *predicted / step_ms_of_speed(*step).value();
    CHECK(ratio > 0.8);
    CHECK(ratio < 1.25);
  }
  CHECK(predictions > 120);
}

TEST_CASE("predicted_on_several_gpus: shards the optimizer and adds communication", "[prediction]") {
  Record single = samples::gpu_record("bf16", 100);
  single.breakdown->optimizer_ms = 20;
  Record several = samples::gpu_record("bf16", 999);
  several.communication->collectives = {{"all_gather", 4, 4e9, 3e9, 300.0},
                                        {"reduce_scatter", 4, 4e9, 8e9, 400.0}};
  const auto sharded = predicted_on_several_gpus(several, single, 4);
  REQUIRE(sharded);
  CHECK(near(sharded->communication_ms, 10 + 20));
  CHECK(near(sharded->ms, 100 - 15 + kHiddenCost * 30));
  CHECK(near(predicted_on_several_gpus(several, single, 1)->ms, 100 + kHiddenCost * 30));

  several.communication->collectives[1].bus_gb_per_s.reset();
  CHECK_FALSE(predicted_on_several_gpus(several, single, 4));
  several.communication.reset();
  CHECK_FALSE(predicted_on_several_gpus(several, single, 4));
}

TEST_CASE("scaling_section: predictions for the committed records are within 10% of the measurement",
          "[prediction]") {
  const RecordSet set = read_records({PRECBENCH_SOURCE_DIR "/results/h200x4"});
  int predictions = 0;
  const ReportInput input = make_input(set);
  for (const MachineRecords& machine : input.machines) {
    const Section section = scaling_section(input, machine);
    REQUIRE(section.table);
    const auto& columns = section.table->columns;
    const auto column = std::find_if(columns.begin(), columns.end(),
                                     [](const auto& c) { return c.title == "predicted step (ms)"; });
    REQUIRE(column != columns.end());
    for (const std::vector<std::string>& row : section.table->rows) {
      const std::string& cell = row[static_cast<std::size_t>(column - columns.begin())];  // "377.9 (-2.9%)"
      INFO(row.front() << ": " << cell);
      REQUIRE(cell.find('(') != std::string::npos);
      CHECK(std::fabs(std::stod(cell.substr(cell.find('(') + 1))) <= 10);
      ++predictions;
    }
  }
  CHECK(predictions > 50);
}
