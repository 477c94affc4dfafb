// Every appended record can be read back, and values that cannot be recorded are named.
#include "results/record/readable_record.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "results/record/record_file.h"
#include "results/record/record_samples.h"
#include "results/record/schema.h"

using namespace precbench;
using Json = nlohmann::ordered_json;
using Lines = std::vector<std::string>;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Returns the record as read back after appending. Fails on any problem in the file.
Record appended(const Record& record) {
  const TempDirectory scratch;
  append_record(scratch / "records.jsonl", record);
  const RecordSet set = read_records({scratch / "records.jsonl"});
  CHECK(set.problems == Lines{});
  REQUIRE(set.records.size() == 1);
  return set.records.front().record;
}

Record changed(const std::function<void(Record&)>& change) {
  Record record = samples::gpu_record("blockwise", 200);
  change(record);
  return record;
}

}  // namespace

TEST_CASE("append_record: a measured ratio above 1 is recorded without a warning", "[readable_record]") {
  const Record record = appended(changed([](Record& r) {
    r.metrics->mfu_measured = 1.019;
    r.metrics->sol = 1.002;
    r.metrics->mfu_bf16 = 1.1;
  }));
  CHECK(record.metrics->mfu_measured == 1.019);
  CHECK(record.metrics->sol == 1.002);
  CHECK(record.metrics->mfu_bf16 == 1.1);
  CHECK(record.warnings.empty());
}

TEST_CASE("append_record: an optional value outside the schema becomes null with a warning",
          "[readable_record]") {
  const Record negative = appended(changed([](Record& r) { r.metrics->energy_j_per_token = -0.5; }));
  CHECK(!negative.metrics->energy_j_per_token);
  CHECK(negative.metrics->tokens_per_s);
  CHECK(negative.warnings == Lines{"not recorded: /metrics/energy_j_per_token: -0.5 is below 0"});
  const Record percent = appended(changed([](Record& r) { r.quantization[0].underflow_percent = 100.5; }));
  REQUIRE(percent.quantization.size() == 1);
  CHECK(!percent.quantization[0].underflow_percent);
  CHECK(percent.quantization[0].sqnr_db == 31.5);
  CHECK(percent.warnings == Lines{"not recorded: /quantization/0/underflow_percent: 100.5 is above 100"});
  // Keys that are omitted instead of null.
  const Record routing = appended(changed([](Record& r) { r.breakdown->routing_ms = -1; }));
  CHECK(!routing.breakdown->routing_ms);
  CHECK(routing.breakdown->gemm_ms > 0);
  CHECK(routing.warnings == Lines{"not recorded: /breakdown/routing_ms: -1.0 is below 0"});
}

TEST_CASE("append_record: a required value outside the schema removes only its section",
          "[readable_record]") {
  const Record idle = appended(changed([](Record& r) { r.breakdown->idle_ms = -0.001; }));
  CHECK(!idle.breakdown);
  CHECK(idle.timing);
  CHECK(idle.metrics->tokens_per_s);
  CHECK(idle.warnings ==
        Lines{"not recorded: /breakdown/idle_ms: -0.001 is below 0; /breakdown was left out whole"});
  const Record sample = appended(changed([](Record& r) { r.timing->samples_ms[3] = kNan; }));
  CHECK(!sample.timing);
  CHECK(sample.training->loss.size() == 100);
  CHECK(sample.warnings ==
        Lines{"not recorded: /timing/samples_ms/3: not number but null; /timing was left out whole"});
}

TEST_CASE("append_record: every value out of bounds is named in a warning", "[readable_record]") {
  const Record record = appended(changed([](Record& r) {
    r.telemetry->power_w = -1;
    r.telemetry->ecc_errors = -2;
    r.memory->driver = -3;
  }));
  CHECK(record.warnings == Lines{"not recorded: /memory/driver: -3 is below 0",
                                 "not recorded: /telemetry/power_w: -1.0 is below 0",
                                 "not recorded: /telemetry/ecc_errors: -2 is below 0"});
}

TEST_CASE("readable_record: a bad value at any place is mended or refused and never written",
          "[readable_record]") {
  const Json good = samples::gpu_record("blockwise", 200);
  for (const SchemaField& field : Schema::record().scalar_fields()) {
    const Json::json_pointer place(field.pointer);
    if (!good.contains(place) || !good.at(place).is_number() || field.pointer.starts_with("/definition/"))
      continue;
    INFO(field.pointer);
    Json bad = good;
    bad[place] = -12345;
    const Record wrong = bad.get<Record>();
    const bool allowed = Schema::record().violations(bad).empty();
    try {
      const Record record = readable_record(wrong);
      CHECK(Schema::record().violations(Json(record)) == Lines{});
      if (!allowed) CHECK(record.warnings.front().starts_with("not recorded: " + field.pointer + ": -12345"));
    } catch (const InvalidInput& error) {
      CHECK(!allowed);
      CHECK(
          std::string(error.what()).starts_with("this record cannot be read back: " + field.pointer + ": "));
      CHECK((field.pointer.starts_with("/case/") ||
             std::count(field.pointer.begin(), field.pointer.end(), '/') == 1));
    }
  }
}

TEST_CASE("readable_record: a contradiction adds one warning", "[readable_record]") {
  const Record once = readable_record(changed([](Record& r) { r.metrics->tokens_per_s = 1; }));
  REQUIRE(once.warnings.size() == 1);
  CHECK(once.warnings[0].starts_with("contradicts itself: metrics.tokens_per_s is 1, but "));
  CHECK(once.metrics->tokens_per_s == 1.0);
  CHECK(readable_record(once).warnings == once.warnings);
}

TEST_CASE("readable_record: a record with a bad indispensable value is refused", "[readable_record]") {
  for (const auto& change : std::vector<std::function<void(Record&)>>{
           [](Record& r) { r.case_fields["seq"] = 0; }, [](Record& r) { r.schema = 99; },
           [](Record& r) { r.definition.reset(); }}) {
    const TempDirectory scratch;
    const std::string file = scratch / "records.jsonl";
    CHECK_THROWS_AS(append_record(file, changed(change)), InvalidInput);
    CHECK(!std::filesystem::exists(file));
  }
}

TEST_CASE("readable_record: committed records are unchanged", "[readable_record]") {
  for (const char* path :
       {"baseline", "cpu/convergence-tiny.jsonl.xz", "h200/single.jsonl.xz", "h200/interleaved", "h200x4"})
    for (const LocatedRecord& located :
         read_records({std::string(PRECBENCH_SOURCE_DIR "/results/") + path}).records)
      CHECK(Json(readable_record(located.record)).dump() == Json(located.record).dump());
}
