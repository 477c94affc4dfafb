// Tests the sensitivity sections: parts sorted by gap, layers sorted by recovered gap, and growing sets.
#include "kernels/testing/catch.h"
#include "tools/report/sections_testing.h"

using namespace precbench;

namespace {

MeanInterval around(double mean) { return {mean, mean - 0.001, mean + 0.001}; }

CellRecord cell_of(const char* group, CellKind kind, const char* part, double gap, double whole,
                   std::vector<std::string> keep = {}) {
  return {
      group, kind,           part, around(gap), around(whole - gap), {around(0.05), around(0.99), around(0)},
      0.25,  std::move(keep)};
}

Record measured() {
  Record record = samples::gpu_record("rowwise", 200);
  SensitivityRecord& s = record.sensitivity.emplace();
  s.batches = 8, s.loss_bf16 = 2.5, s.quantized_flops = 0.8;
  constexpr double kWhole = 0.02;
  s.cells = {cell_of("recipe", CellKind::whole, "rowwise", kWhole, kWhole),
             cell_of("recipe", CellKind::control, "nothing", 0, kWhole),
             cell_of("roles", CellKind::alone, "o", 0.001, kWhole),
             cell_of("roles", CellKind::kept, "o", 0.019, kWhole, {"o"}),
             cell_of("roles", CellKind::alone, "down", 0.016, kWhole),
             cell_of("roles", CellKind::kept, "down", 0.004, kWhole, {"down"}),
             cell_of("blocks", CellKind::alone, "1", 0.012, kWhole),
             cell_of("blocks", CellKind::kept, "1", 0.008, kWhole, {"block:1"}),
             cell_of("best", CellKind::set, "1 by price", 0.004, kWhole, {"down"}),
             cell_of("best", CellKind::set, "2 by price", 0.001, kWhole, {"block:1", "down"})};
  s.sums = {{"roles", CellKind::alone, around(0.017), around(-0.003)}};
  s.skipped = {{"elements e4m4", "no GEMM takes them"}};
  return record;
}

/// Returns the position of a text that must occur.
std::size_t place(const std::string& text, const std::string& part) {
  INFO(part);
  REQUIRE(contains(text, part));
  return text.find(part);
}

}  // namespace

TEST_CASE("sensitivity section: parts are listed from the most expensive with the gap of the whole",
          "[sensitivity]") {
  Record record = measured();
  const std::string name = "rowwise on llama3.2-1b (untrained weights)";
  const std::string text = section_of({record}, "Where the loss comes from: " + name);
  INFO(text);
  CHECK(
      contains(text, "the recipe costs +0.02000 [+0.01900, +0.02100] nats per token, 0.8% of BF16's 2.5000"));
  CHECK(contains(text, "Control, nothing quantized: +0.00000"));
  CHECK(place(text, "only down") < place(text, "only o"));
  CHECK(place(text, "only o") < place(text, "only block 1"));
  CHECK(contains(lines_with(text, "only down").at(0), "80.0%"));
  CHECK(contains(text, "Loss gaps of roles alone in the recipe: +0.01700"));
  CHECK(contains(text, "they interact"));
  CHECK(contains(text, "Not measured: elements e4m4: no GEMM takes them."));
  // Records are untrusted input.
  record.sensitivity->cells.front().loss_difference = {};
  record.sensitivity->cells[4].loss_difference = {};
  CHECK(contains(section_of({record}, "Where the loss comes from: " + name), "not finite"));
  record.sensitivity->cells.clear();
  CHECK(section_of({record}, "Where the loss comes from: " + name).empty());
}

TEST_CASE("sensitivity section: layers are listed by recovered gap with their --keep-bf16 words",
          "[sensitivity]") {
  const std::string text =
      section_of({measured()}, "What buys the loss back: rowwise on llama3.2-1b (untrained weights)");
  INFO(text);
  CHECK(place(text, "+0.01600 [") < place(text, "+0.01200 ["));
  CHECK(contains(lines_with(text, "block 1").at(0), "block:1"));
  // A quarter of the quantized 0.8 adds 0.1 to the remaining 0.6 of a step at twice the rate.
  CHECK(contains(lines_with(text, "block 1").at(0), "+16.7%"));
  CHECK(contains(lines_with(text, "the best 2 by price").at(0), "95.0%"));
  CHECK(contains(lines_with(text, "the best 2 by price").at(0), "block:1,down"));
  CHECK(place(text, "the best 1 by price") < place(text, "the best 2 by price"));
}

TEST_CASE("sensitivity section: rows without a measurement have none", "[sensitivity]") {
  const std::string text = render_term(make_report(samples::set_of({samples::gpu_record("rowwise", 200)})));
  CHECK(!contains(text, "Where the loss comes from"));
  CHECK(!make_json(samples::set_of({samples::gpu_record("rowwise", 200)})).contains("sensitivity"));
  const auto json = make_json(samples::set_of({measured()}));
  CHECK(json.at("sensitivity").at(0).at("case").at("recipe") == "rowwise");
  CHECK(json.at("sensitivity").at(0).at("cells").size() == 10);
  CHECK(contains(render_markdown(make_report(samples::set_of({measured()}))), "What buys the loss back"));
}
