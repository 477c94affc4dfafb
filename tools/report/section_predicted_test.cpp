// The section that compares records with their own predictions.
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/testing/catch.h"
#include "results/record/record_samples.h"
#include "tools/report/sections.h"

namespace precbench {
namespace {

Record predicted(const std::string& recipe, double measured_ms, double step_ms, double low_ms, double high_ms,
                 double borrowed = 0) {
  Record record = samples::gpu_record(recipe, measured_ms);
  record.predicted = PredictedStep{step_ms, low_ms, high_ms, borrowed, "h200"};
  return record;
}

Section section_of(const std::vector<Record>& records) {
  const RecordSet set = samples::set_of(records);
  const ReportInput input = make_input(set);
  return predicted_section(input, input.machines.front());
}

TEST_CASE("predicted_section: error and interval of every record with a prediction", "[report][predicted]") {
  const Section section =
      section_of({predicted("bf16", 250, 260, 240, 280, 0.25), predicted("mxfp8", 200, 180, 170, 190)});
  REQUIRE(section.table);
  REQUIRE(section.table->rows.size() == 2);
  const auto has = [&](std::size_t row, const std::string& text) {
    const std::vector<std::string>& cells = section.table->rows[row];
    return std::find(cells.begin(), cells.end(), text) != cells.end();
  };
  CHECK((has(0, "+4.0%") && has(0, "yes") && has(0, "240.00 to 280.00") && has(0, "25%")));
  CHECK((has(1, "-10.0%") && has(1, "no")));
  REQUIRE(section.lines.size() == 1);
  CHECK(section.lines[0] ==
        "2 predicted cases: median error 7.0%, 95% within 9.7%, worst 10.0%; 1 inside the 80% interval");
}

TEST_CASE("predicted_section: uneven load of experts, which predictions do not know, is noted",
          "[report][predicted]") {
  Record even = predicted("bf16", 250, 260, 240, 280), uneven = predicted("mxfp8", 200, 180, 170, 190);
  even.moe.emplace().load.max = 1.2;
  uneven.moe.emplace().load.max = 4;
  CHECK(section_of({even}).notes.size() == 1);
  const Section section = section_of({even, uneven});
  REQUIRE(section.notes.size() == 2);
  CHECK(
      section.notes[1] ==
      "Predictions assume even load of the experts. In 1 case the busiest expert got up to 4.0 times its share.");
}

TEST_CASE("predicted_section: empty for records without predictions", "[report][predicted]") {
  const Section section = section_of({samples::gpu_record("bf16", 250), samples::gpu_record("mxfp8", 200)});
  CHECK(section.lines.empty());
  CHECK_FALSE(section.table);
}

}  // namespace
}  // namespace precbench
