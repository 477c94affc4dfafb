// Tests the committed CPU baseline against this build: an unchanged build passes, wrong arithmetic in
// a recipe does not.
#include <cstdlib>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "tools/gate/gate.h"

using namespace precbench;

namespace {

using Json = nlohmann::ordered_json;

const std::string kBaseline = PRECBENCH_SOURCE_DIR "/results/baseline/cpu-tiny.jsonl";

/// Returns the rules that CI uses (.ci/run).
GateRules rules() {
  GateRules rules;
  rules.tokens_per_s.reset();
  rules.loss_tolerance = 0.001;
  rules.numerics = true;
  return rules;
}

/// Returns the built-in MXFP8 recipe.
Json mxfp8() {
  const Json mx = {
      {"format", "e4m3"}, {"granularity", "1x32"}, {"scale", "ue8m0"}, {"scale_rounding", "rceil"}};
  Json recipe = {{"name", "mxfp8_from_a_file"}, {"reference", "test"}};
  for (const char* gemm : {"fprop", "dgrad", "wgrad"}) recipe[gemm] = {{"a", mx}, {"b", mx}};
  return recipe;
}

/// Returns the gate's verdict if the arithmetic of `recipe` runs under the name of MXFP8.
GateVerdict verdict_on(const Json& recipe) {
  const TempDirectory directory;
  const std::string command = PRECBENCH_BINARY_DIR "/precbench sweep --quiet --config " PRECBENCH_SOURCE_DIR
                                                   "/bench/sweeps/baseline-cpu.toml --recipe " +
                              directory.write("recipe.json", recipe.dump()) + " --out " +
                              (directory / "out") + " >/dev/null 2>&1 </dev/null";
  REQUIRE(std::system(command.c_str()) == 0);
  RecordSet run = read_records({directory / "out"}), baseline = read_records({kBaseline});
  REQUIRE(run.records.size() == 1);
  std::erase_if(baseline.records,
                [](const LocatedRecord& located) { return located.record.case_fields["recipe"] != "mxfp8"; });
  REQUIRE(baseline.records.size() == 1);
  // A wrong rounding in the code would change neither the id nor the name of a format.
  Record& record = run.records.front().record;
  const Record& was = baseline.records.front().record;
  record.id = was.id;
  record.case_fields = was.case_fields;
  std::size_t found = 0;
  for (const QuantizationStats& before : was.quantization)
    for (QuantizationStats& stats : record.quantization)
      if (stats.role == before.role) ++found, stats.format = before.format;
  REQUIRE(found == was.quantization.size());  // roles missing in the baseline are not compared
  const GateResult result = judge(baseline, run, rules());
  std::string text;
  for (const MetricResult& metric : result.cases.at(0).metrics)
    text += metric.metric + " " + name_of(metric.verdict) + " " + metric.reason + "; ";
  UNSCOPED_INFO(text);
  return result.cases.at(0).verdict();
}

}  // namespace

TEST_CASE("CPU baseline: every recipe is measured", "[baseline]") {
  const RecordSet baseline = read_records({kBaseline});
  CHECK(baseline.problems.empty());
  CHECK(baseline.records.size() == 8);
  for (const LocatedRecord& located : baseline.records) {
    CHECK(located.record.status == Status::ok);
    CHECK(located.record.env.dirty == false);
  }
  CHECK(judge(baseline, baseline, rules()).exit_status() == 0);
}

TEST_CASE("CPU baseline: this build passes", "[baseline]") {
  CHECK(verdict_on(mxfp8()) == GateVerdict::pass);
}

TEST_CASE("CPU baseline: a wrong rounding of scales does not pass", "[baseline]") {
  Json recipe = mxfp8();
  recipe["fprop"]["a"]["scale_rounding"] = "floor";
  CHECK(exit_status(verdict_on(recipe)) != kCheckPassed);
  for (const char* gemm : {"fprop", "dgrad", "wgrad"})
    for (const char* operand : {"a", "b"}) recipe[gemm][operand]["scale_rounding"] = "floor";
  CHECK(verdict_on(recipe) == GateVerdict::worse);
}

TEST_CASE("CPU baseline: a lost mantissa bit in backward is WORSE", "[baseline]") {
  Json recipe = mxfp8();
  recipe["dgrad"]["a"]["format"] = "e5m2";
  CHECK(verdict_on(recipe) == GateVerdict::worse);
}
