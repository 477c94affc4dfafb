// Errors of predicted steps by GPU model, number of GPUs and load of the experts.
#include "bench/predict/own_prediction.h"

#include <cmath>
#include <deque>

#include "kernels/testing/catch.h"

namespace precbench {
namespace {

TEST_CASE("errors_by_gpus: groups steps by GPU and keeps uneven ones out of the total", "[cost-model]") {
  std::deque<Record> records;
  std::vector<OwnPrediction> steps;
  const auto add = [&](const char* gpu, std::int64_t gpus, bool uneven, double predicted_ms) {
    Record& record = records.emplace_back();
    record.env.gpu.emplace().name = gpu;
    OwnPrediction step;
    step.record = &record, step.gpus = gpus, step.uneven = uneven;
    step.measured_ms = 100, step.predicted_ms = predicted_ms;
    step.low_ms = predicted_ms - 5, step.high_ms = predicted_ms + 5;
    steps.push_back(step);
  };
  add("A", 1, false, 100);
  add("A", 1, false, 104);
  add("A", 4, true, 50);
  add("B", 1, false, 110);
  const std::vector<OwnErrors> groups = errors_by_gpus(steps);
  REQUIRE(groups.size() == 4);
  CHECK(groups[0].gpu == "A");
  CHECK(groups[0].steps == 2);
  CHECK(groups[0].inside == 2);
  CHECK(groups[0].worst == Approx(std::log(1.04)));
  CHECK(groups[1].uneven);
  CHECK(groups[1].gpus == 4);
  CHECK(groups[1].median == Approx(std::log(2.0)));
  CHECK(groups[1].inside == 0);
  CHECK(groups[2].gpu == "B");
  CHECK(groups[3].gpu == "all");
  CHECK(groups[3].gpus == 0);
  CHECK(groups[3].steps == 3);
  CHECK(groups[3].inside == 2);
  CHECK(groups[3].worst == Approx(std::log(1.1)));
  CHECK(errors_by_gpus({}).empty());
}

TEST_CASE("predict_records: says why a record is not predicted", "[cost-model]") {
  RecordSet set;
  set.records.resize(3);
  set.records[0].record.status = Status::crashed;
  set.records[1].record.status = Status::ok;
  set.records[1].record.metrics.emplace().tokens_per_s = 1000;
  set.records[2].record = set.records[1].record;
  set.records[2].record.env.gpu.emplace();
  set.records[2].record.source.emplace();
  const OwnPredictions predictions = predict_records(set);
  CHECK(predictions.steps.empty());
  CHECK(predictions.reasons == std::map<std::string, int>{
                                   {"no speed of its own", 1}, {"not on a GPU", 1}, {"of another program", 1}});
}

}  // namespace
}  // namespace precbench
