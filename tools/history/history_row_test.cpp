// Rows of a history: from records, as lines, and hostile ones.
#include "tools/history/history_row.h"

#include <string>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_samples.h"
#include "tools/history/history_testing.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Returns why a row is refused; empty if it is not.
std::string refusal(const std::string& line) {
  try {
    parse_row(line);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

Json valid_row() { return Json::parse(row_line(history_testing::night_row("bf16", 3))); }

std::string refusal_with(const char* key, const Json& value) {
  Json json = valid_row();
  json[key] = value;
  return refusal(json.dump());
}

}  // namespace

TEST_CASE("history row: a record's run survives as a line", "[history]") {
  const Record record = samples::gpu_record("rowwise", 250);
  const Json defaults = {{"model", "tiny"}, {"recipe", "bf16"}, {"seq", 128}};
  const auto row = history_row(record, defaults);
  REQUIRE(row);
  CHECK(row->step_ms == Approx(*record.timing->median_ms));
  CHECK(row->id == record.id);
  CHECK(row->commit == "0123abc");
  CHECK(row->fields->at("recipe") == "rowwise");
  CHECK(row->fields->at("seq") == record.case_fields.at("seq"));
  CHECK(row->ops.size() >= 8);
  CHECK(row->loss);
  Record timed = record;  // ends after a time
  timed.case_fields["steps"] = "auto";
  CHECK_FALSE(history_row(timed, defaults)->loss);
  const std::string line = row_line(*row);
  CHECK(is_row_line(line));
  CHECK(row_line(parse_row(line)) == line);
}

TEST_CASE("history row: runs without a speed have none", "[history]") {
  const Json defaults = Json::object();
  CHECK_FALSE(history_row(samples::failed_record("bf16", Status::oom, "out of memory"), defaults));
  CHECK_FALSE(history_row(samples::cpu_record("mxfp8"), defaults));  // emulated
  CHECK(history_row(samples::cpu_record("bf16"), defaults));
  Record study = samples::gpu_record("bf16", 250);
  study.study.emplace();
  CHECK_FALSE(history_row(study, defaults));
}

TEST_CASE("history row: an imported run keeps its program, version, mean step and memory", "[history]") {
  Record record = samples::gpu_record("rowwise", 250);
  record.method_version = kImportMethodVersion;
  ImportSource& source = record.source.emplace();
  source.program = "torchtitan", source.version = "0.2.1";
  source.tokens_per_step = 65536, source.memory_bytes = 64000000000;
  record.metrics->tokens_per_s = 32768;
  record.env.git.reset();
  const auto row = history_row(record, Json::object());
  REQUIRE(row);
  CHECK(row->step_ms == 2000);
  CHECK(row->source == "torchtitan");
  CHECK(row->commit == "0.2.1");
  CHECK(*row->peak_bytes == 64000000000);
  CHECK(parse_row(row_line(*row)).source == "torchtitan");
  record.source->tokens_per_step.reset();
  CHECK_FALSE(history_row(record, Json::object()));
}

TEST_CASE("history row: other versions and impossible values are refused with their key",
          "[history][hostile]") {
  CHECK(refusal(valid_row().dump()).empty());
  CHECK(contains(refusal_with("history", 2), "a row of version 2, and this program reads 1"));
  CHECK(contains(refusal_with("history", "1"), "\"history\" is not a whole number"));
  CHECK(contains(refusal_with("ms", 0), "\"ms\" is beyond any run's"));
  CHECK(contains(refusal_with("ms", -5), "\"ms\""));
  CHECK(contains(refusal_with("ms", 1e300), "\"ms\""));
  CHECK(contains(refusal_with("ms", "fast"), "\"ms\" is not a number"));
  CHECK(contains(refusal_with("clock", 1e300), "\"clock\""));
  CHECK(contains(refusal_with("created", "yesterday"), "\"created\""));
  CHECK(contains(refusal_with("created", "2026-02-30T00:00:00Z"), "\"created\""));
  CHECK(contains(refusal_with("created", "2026-01-01T24:00:00Z"), "\"created\""));
  CHECK(contains(refusal_with("id", ""), "\"id\""));
  CHECK(contains(refusal_with("id", std::string(1000, 'x')), "\"id\""));
  CHECK(contains(refusal_with("commit", 7), "\"commit\" is not text"));
  CHECK(contains(refusal_with("ops", Json::array({1, 2})), "\"ops\""));
  CHECK(contains(refusal_with("case", Json::array()), "\"case\""));
  CHECK(contains(refusal_with("case", {{"model", Json::object()}}), "\"case\""));
  CHECK(contains(refusal_with("doubted", 1), "\"doubted\""));
  CHECK_FALSE(refusal("{\"history\":1e400}").empty());
  CHECK_FALSE(refusal("{\"history\":").empty());
  CHECK_FALSE(refusal("{\"history\":" + std::string(50, '[')).empty());
}

TEST_CASE("history row: times are read exactly", "[history]") {
  CHECK(seconds_of("1970-01-01T00:00:00Z") == 0);
  CHECK(seconds_of("2026-09-01T02:00:00Z") == history_testing::kFirstNight);
  CHECK_FALSE(seconds_of("2026-09-01T02:00:00"));
  CHECK_FALSE(seconds_of("2026-13-01T02:00:00Z"));
  CHECK_FALSE(seconds_of("1969-12-31T23:59:59Z"));
  CHECK_FALSE(seconds_of(""));
}

}  // namespace precbench
