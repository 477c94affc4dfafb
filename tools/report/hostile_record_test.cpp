// Tests malicious records: each is reported in one line and skipped, and accepted values are
// safe to compute with.
#include <sys/stat.h>

#include <filesystem>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/contradiction.h"
#include "results/record/line_reader.h"
#include "results/record/record_file.h"
#include "results/record/record_samples.h"
#include "results/record/schema.h"
#include "tools/report/report.h"
#include "tools/report/sections_testing.h"

using namespace precbench;
using Json = nlohmann::ordered_json;

namespace {

/// Returns a valid record with the value at `place` replaced by JSON text, which may exceed every C++ type.
std::string record_line_with(const std::string& place, const std::string& value) {
  Json json = samples::gpu_record("blockwise", 200);
  json[Json::json_pointer(place)] = "@";
  std::string line = json.dump();
  return line.replace(line.find("\"@\""), 3, value);
}

RecordSet read_text(const std::string& text) {
  const TempDirectory scratch;
  return read_records({scratch.write("r.jsonl", text)});
}

std::string problems_of(const std::string& text) {
  std::string all;
  for (const std::string& problem : read_text(text).problems) all += problem + "\n";
  return all;
}

}  // namespace

TEST_CASE("read_records: every integer out of range is rejected", "[record][hostile]") {
  const std::vector<std::string> integers = {"/method_version",
                                             "/case/seq",
                                             "/case/batch",
                                             "/case/gpus",
                                             "/env/threads",
                                             "/env/gpu/memory",
                                             "/timing/warmup",
                                             "/timing/outliers/0",
                                             "/timing/runs/0/samples",
                                             "/timing/runs/1/warmup",
                                             "/memory/measured/peak",
                                             "/memory/predicted/weights",
                                             "/memory/driver",
                                             "/breakdown/ops/0/calls",
                                             "/telemetry/ecc_errors",
                                             "/communication/collectives/0/calls",
                                             "/training/tokens_per_step"};
  for (const std::string& place : integers)
    for (const char* value : {"9223372036854775807", "9223372036854775808", "18446744073709551615", "1e30",
                              "-1e30", "-9223372036854775808", "99999999999999999999999", "1e300", "-1"}) {
      std::string line;
      if (place == "/timing/outliers/0") {
        Json json = samples::gpu_record("blockwise", 200);
        json["timing"]["outliers"] = Json::array({"@"});
        line = json.dump();
        line.replace(line.find("\"@\""), 3, value);
      } else {
        line = record_line_with(place, value);
      }
      INFO(place << " " << value);
      const RecordSet set = read_text(line + "\n");
      CHECK(set.records.empty());
      REQUIRE(set.problems.size() == 1);
      CHECK(contains(set.problems.front(), "not a valid record: " + place + ": "));
    }
  CHECK(contains(problems_of(record_line_with("/method_version", "4294967298") + "\n"),
                 "/method_version: 4294967298 is above"));
}

TEST_CASE("Record: an integer that does not fit its field is rejected even without the schema",
          "[record][hostile]") {
  for (const auto& [pointer, number] :
       std::vector<std::pair<std::string, std::string>>{{"/method_version", "4294967298"},
                                                        {"/method_version", "-2147483649"},
                                                        {"/memory/measured/peak", "9223372036854775808"},
                                                        {"/memory/measured/peak", "1e30"},
                                                        {"/timing/runs/0/samples", "18446744073709551615"}}) {
    const std::string place = pointer, value = number;
    INFO(place << " " << value);
    const std::string message =
        refusal_of([&] { Json::parse(record_line_with(place, value)).get<Record>(); });
    CHECK(contains(message, place + ": "));
    CHECK(contains(message, " is out of range"));
  }
  CHECK(Json::parse(record_line_with("/memory/measured/peak", "3.0")).get<Record>().memory->measured->peak ==
        3);
}

TEST_CASE("contradiction: sample counts with an overflowing sum are detected", "[contradiction][hostile]") {
  Record record = samples::gpu_record("bf16", 250);
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const auto runs = [&](std::vector<std::int64_t> counts) {
    record.timing->runs.assign(counts.size(), record.timing->runs.front());
    for (std::size_t i = 0; i < counts.size(); ++i) record.timing->runs[i].samples = counts[i];
    return contradiction(record).value_or("none");
  };
  // The three counts wrap around to the number of samples.
  CHECK(contains(runs({most, most, static_cast<std::int64_t>(record.timing->samples_ms.size()) + 2}),
                 "timing.runs has"));
  CHECK(contains(runs({-1, 12}), "timing.runs has -1 samples"));
  CHECK(contains(runs({6, 6}), "timing.runs has 6 samples, but timing.samples_ms has 11 in all"));
}

TEST_CASE("read_records: nesting depth and member counts are checked before parsing",
          "[record_file][hostile]") {
  const std::string deep(150'000, '['), closed(150'000, ']');
  CHECK(contains(problems_of("{\"a\":" + deep + closed + ",\"b\":1,\"c\":2}\n"),
                 ":1: nested deeper than 16, left out"));
  std::string many = "{\"schema\":1";
  for (int i = 0; i < 300; ++i) many += ",\"k" + std::to_string(i) + "\":1";
  CHECK(contains(problems_of(many + "}\n"), "an object of more than 256 members"));
  // A long run with 100,000 values each of loss, gradient norm and learning rate is valid.
  Record longest = samples::gpu_record("bf16", 250);
  longest.case_fields["steps"] = 100'000;
  longest.training->loss.assign(100'000, 2.34567890123456);
  longest.training->grad_norm.assign(100'000, 0.123456789012345);
  longest.training->lr.assign(100'000, 2.9999999999e-4);
  const std::string line = Json(longest).dump();
  CHECK(10 * line.size() < kRecordLimits.bytes);
  const RecordSet set = read_text(line + "\n");
  CHECK(set.problems.empty());
  REQUIRE(set.records.size() == 1);
  CHECK(set.records.front().record.training->loss.size() == 100'000);
}

TEST_CASE("LineReader: lines beyond the limit are cut and their full length reported",
          "[record_file][hostile]") {
  const TempDirectory scratch;
  LineReader lines(scratch.write("l", "ab\n" + std::string(1'000'000, 'x') + "\n\nlast"), 10);
  REQUIRE(lines.next());
  CHECK((lines.line() == "ab" && lines.ended() && lines.number() == 1));
  REQUIRE(lines.next());
  CHECK((lines.line() == "xxxxxxxxxx" && lines.bytes() == 1'000'000));
  REQUIRE(lines.next());
  CHECK((lines.line().empty() && lines.ended()));
  REQUIRE(lines.next());
  CHECK((lines.line() == "last" && !lines.ended() && lines.number() == 4));
  CHECK_FALSE(lines.next());
}

TEST_CASE("read_records: records beyond 256 different case fields are rejected", "[record_file][hostile]") {
  std::string text;
  for (int r = 0; r < 10; ++r) {
    Json json = samples::gpu_record("bf16", 250, 0, r);
    for (int k = 0; k < 60; ++k) json["case"]["field" + std::to_string(60 * r + k)] = k;
    text += json.dump() + "\n";
  }
  const RecordSet set = read_text(text);
  CHECK(set.records.size() == 4);
  REQUIRE(set.problems.size() == 6);
  CHECK(contains(set.problems.front(), ":5: more than 256 different case fields in these records, left out"));
}

TEST_CASE("read_records: named pipes and devices and folders are rejected", "[record_file][hostile]") {
  const TempDirectory scratch;
  REQUIRE(::mkfifo((scratch / "pipe.jsonl").c_str(), 0600) == 0);
  const std::string pipe = scratch / "pipe.jsonl";
  for (const std::string& path : {pipe, scratch.path().string(), std::string("/dev/zero")}) {
    CHECK(contains(refusal_of([&] { read_records({path}); }), "not a regular file"));
    CHECK(contains(refusal_of([&] { report(ReportOptions{{path}, "term", ""}); }), "not a regular file"));
  }
  CHECK(contains(refusal_of([&] { repair_tail(pipe); }), "not a regular file"));
  CHECK(contains(refusal_of([&] { repair_tail("/dev/full"); }), "not a regular file"));
  CHECK(contains(refusal_of([&] { repair_tail(scratch.path().string()); }), "a folder, not a file"));
}

TEST_CASE("read_records: problems beyond a thousand are counted and long ones cut",
          "[record_file][hostile]") {
  std::string text = Json(samples::gpu_record("bf16", 100)).dump() + "\n";  // without a record there is one problem
  text += "{\"schema\":1,\"" + std::string(100'000, 'k') + "\":1}\n";
  for (int i = 0; i < 3000; ++i) text += "no record\n";
  const RecordSet set = read_text(text);
  CHECK(set.problems.size() == kMostProblems + 1);
  CHECK(set.problems.front().size() < 1000);
  CHECK(set.problems.back() == "and 2001 more problems");
}

TEST_CASE("repair_tail: finds the last line at any length", "[record_file][hostile]") {
  for (const std::size_t length : {0u, 1u, 65'535u, 65'536u, 65'537u, 200'000u}) {
    const TempDirectory scratch;
    const std::string good = "{\"a\":\"" + std::string(length, 'x') + "\"}\n",
                      half = "{\"b\":\"" + std::string(length, 'y');
    const std::string path = scratch.write("r.jsonl", good + half);
    INFO(length);
    CHECK(repair_tail(path));
    CHECK(file_text(path) == good);
    CHECK(file_text(path + ".broken") == half + "\n");
    CHECK_FALSE(repair_tail(path));
  }
}

TEST_CASE("repair_tail: a complete last line beyond a limit is kept and reported", "[record_file][hostile]") {
  const TempDirectory scratch;
  std::string many = "{\"schema\":1";
  for (int i = 0; i < 300; ++i) many += ",\"k" + std::to_string(i) + "\":1";
  const std::string deep = "{\"a\":" + std::string(40, '[') + std::string(40, ']') + "}";
  for (const std::string& line : {many + "}", deep})
    for (const char* end : {"\n", ""}) {
      const std::string path = scratch.write("r.jsonl", "{}\n" + line + end);
      CHECK(contains(repair_tail(path).value_or(""),
                     "the last line is whole, but cannot be read as a record: "));
      CHECK(file_text(path) == "{}\n" + line + "\n");
      CHECK_FALSE(std::filesystem::exists(path + ".broken"));
    }
  const std::string path = scratch.write("r.jsonl", "{}\n" + many);
  CHECK(contains(repair_tail(path).value_or(""), "only half written"));
  CHECK(file_text(path) == "{}\n");
}

TEST_CASE("Schema::violations: stops at a thousand", "[schema][hostile]") {
  Json json = samples::gpu_record("bf16", 250);
  json["training"]["loss"] = Json(std::vector<std::string>(5000, "x"));
  const auto found = Schema::record().violations(json);
  CHECK(found.size() == Schema::kMostViolations);
  CHECK(found.back() == "/training/loss/999: not number or null but string");
  // Missing and unknown keys of objects count as well.
  json = samples::gpu_record("bf16", 250);
  json["breakdown"]["ops"] = Json::array();
  for (int i = 0; i < 3000; ++i) json["breakdown"]["ops"].push_back(Json::object());
  CHECK(Schema::record().violations(json).size() == Schema::kMostViolations);
  json["breakdown"]["ops"].erase(json["breakdown"]["ops"].begin() + 150, json["breakdown"]["ops"].end());
  for (Json& op : json["breakdown"]["ops"])
    for (int key = 0; key < 20; ++key) op["k" + std::to_string(key)] = key;
  CHECK(Schema::record().violations(json).size() == Schema::kMostViolations);
}

TEST_CASE("make_report: extreme numbers of valid records do not stop any format", "[report][hostile]") {
  // All values at the limits of the schema at once.
  std::vector<Record> records;
  for (const char* recipe : {"bf16", "mxfp8"})
    for (const double value : {0.0, 1e308}) {
      Record r = samples::gpu_record(recipe, 200, 0, value > 0 ? 1 : 2);
      r.case_fields["gpus"] = value > 0 ? 9007199254740992 : 1;
      r.case_fields["shard_group"] = value > 0 ? Json(1e300) : Json(-1);
      r.case_fields["parallel"] = "hsdp";
      r.timing->median_ms = value;
      r.timing->samples_ms = {value, value};
      r.metrics->tokens_per_s = r.metrics->tflops_per_gpu = value;
      r.metrics->peaks->bf16_tflops = value;
      r.memory->measured->peak = value > 0 ? 9007199254740992 : 0;
      r.breakdown->ops = {{"matmul fprop", "gemm", 4294967295, value, value, value}};
      r.breakdown->gemm_ms = value;
      r.communication->collectives.front().bus_gb_per_s = value;
      r.telemetry->ecc_errors = 4294967295;
      r.training->loss.assign(200, value);
      r.training->loss.back() = -value;
      records.push_back(Json::parse(Json(r).dump()).get<Record>());
      CHECK(Schema::record().violations(Json(r)).empty());
    }
  const RecordSet set = samples::set_of(records);
  CHECK(!render_term(make_report(set)).empty());
  CHECK(!render_markdown(make_report(set)).empty());
  CHECK(!render_html(make_report(set)).empty());
  CHECK(!csv_of(set).empty());
  CHECK(!make_json(set).dump().empty());
}
