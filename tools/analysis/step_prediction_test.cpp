// Tests predicted step times on synthetic steps, and their accuracy on the committed records.
#include "tools/analysis/step_prediction.h"

#include <algorithm>
#include <cmath>

#include "kernels/testing/catch.h"
#include "results/record/record_file.h"
#include "results/record/record_samples.h"
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
