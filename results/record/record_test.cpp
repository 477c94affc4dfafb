// Agreement of the record and its schema, in both directions and for each field.
#include "results/record/record.h"

#include <algorithm>
#include <limits>
#include <set>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "results/record/record_line.h"
#include "results/record/record_samples.h"
#include "results/record/schema.h"
#include "results/record/valid_json_testing.h"

using namespace precbench;
using Json = nlohmann::ordered_json;

namespace {

const StudyPlace kPlace = {.study = "0123456789abcdef",
                           .part = StudyPart::bits,
                           .trunk = 1,
                           .age = 100,
                           .seed = 1,
                           .rung = 2,
                           .base = "rowwise",
                           .asked = true,
                           .apart_from = "mxfp8",
                           .breaks = false,
                           .margin = 0.0025,
                           .level = 0.05,
                           .trained_tokens = 2'000'000'000'000,
                           .steady = true};

/// Collects pointers to every value in `json`, containers and array elements included.
void pointers(const Json& json, const std::string& here, std::vector<std::string>& found) {
  if (!here.empty()) found.push_back(here);
  if (json.is_object())
    for (const auto& item : json.items()) pointers(item.value(), here + "/" + item.key(), found);
  if (json.is_array())
    for (std::size_t i = 0; i < json.size(); ++i) pointers(json[i], here + "/" + std::to_string(i), found);
}

bool blamed(const std::vector<std::string>& violations, const std::string& pointer) {
  for (const std::string& line : violations)
    if (line.rfind(pointer + ":", 0) == 0) return true;
  return false;
}

/// Returns true for case fields and contents of a definition's parts, which reading does not check.
bool is_writers_own(const std::string& place) {
  if (place.rfind("/case/", 0) == 0) return true;
  return place.rfind("/definition/", 0) == 0 && std::count(place.begin(), place.end(), '/') > 2;
}

/// Returns true for optional keys: see the tests of older records; a definition only has the keys it needs.
bool may_be_missing(const std::string& place, const std::string& key) {
  static const std::set<std::string> kTiming = {"wall_ms", "cpu_ms", "cpu_wait_ms", "runs", "between_runs"},
                                     kDefinition = {"reference",      "sliding_window", "max_positions",
                                                    "rope_scaling",   "granularity",    "scale",
                                                    "scale_rounding", "linears",        "optimizer",
                                                    "gradients"};
  if (place == "/timing") return kTiming.contains(key);
  if (place == "/training") return key == "evaluations";
  if (place == "/fidelity/0") return key == "outputs";
  if (place.empty()) return key == "definition" || key == "durations" || key == "fidelity";
  return place.rfind("/definition/", 0) == 0 &&
         (kDefinition.contains(key) || place.ends_with("/rope_scaling") || place.ends_with("/linears") ||
          place.ends_with("/optimizer") || place.ends_with("/gradients"));
}

}  // namespace

TEST_CASE("Record: every status satisfies the schema and survives a round trip", "[record]") {
  std::vector<Record> records = {samples::gpu_record("bf16", 250), samples::gpu_record("blockwise", 200),
                                 samples::cpu_record("bf16"), samples::cpu_record("mxfp8"), Record{}};
  records.back().case_fields = samples::gpu_record("bf16", 250).case_fields;
  records.back().definition = samples::definition("bf16", 1);
  for (Status status : {Status::oom, Status::unsupported, Status::timeout, Status::crashed, Status::diverged})
    records.push_back(samples::failed_record("rowwise", status, "because"));
  for (const Record& record : records) {
    INFO(Json(record).dump());
    valid_json(record);
  }
}

TEST_CASE("Schema: a wrong type at any place of a record is found", "[record]") {
  const Json good = samples::gpu_record("blockwise", 200);
  std::vector<std::string> places;
  pointers(good, "", places);
  REQUIRE(places.size() > 300);
  for (const std::string& place : places) {
    Json bad = good;
    bad[Json::json_pointer(place)] = Json::array({Json::array()});  // no field is an array of arrays
    INFO(place);
    const auto found = Schema::record().violations(bad);
    CHECK((blamed(found, place) || blamed(found, place + "/0")));
    if (!is_writers_own(place)) CHECK_THROWS_AS(bad.get<Record>(), InvalidInput);
  }
}

TEST_CASE("Schema: missing and extra keys of every object are found", "[record]") {
  const Json good = samples::gpu_record("blockwise", 200);
  std::vector<std::string> places;
  pointers(good, "", places);
  places.push_back("");
  for (const std::string& place : places) {
    if (!good[Json::json_pointer(place)].is_object()) continue;
    INFO(place);
    Json extra = good;
    // A case may have any scalar field.
    extra[Json::json_pointer(place)]["not_a_field"] = Json::array();
    CHECK(blamed(Schema::record().violations(extra), place + "/not_a_field"));
    if (place == "/case") continue;
    for (const auto& item : good[Json::json_pointer(place)].items()) {
      if (may_be_missing(place, item.key())) continue;
      Json missing = good;
      missing[Json::json_pointer(place)].erase(item.key());
      INFO(item.key());
      CHECK(blamed(Schema::record().violations(missing), place + "/" + item.key()));
      if (!is_writers_own(place + "/" + item.key())) CHECK_THROWS_AS(missing.get<Record>(), InvalidInput);
    }
  }
}

TEST_CASE("Schema: values out of range are found", "[record]") {
  const Json good = samples::gpu_record("bf16", 250);
  const std::vector<std::pair<std::string, Json>> wrong = {{"/status", "fine"},
                                                           {"/schema", 3},
                                                           {"/case/seq", 0},
                                                           {"/case/gpus", 1.5},
                                                           {"/metrics/mfu_bf16", -0.01},
                                                           {"/timing/stop_reason", "bored"},
                                                           {"/timing/samples_ms/0", -1},
                                                           {"/support/dgrad/path", "native?"},
                                                           {"/memory/measured/peak", -1}};
  for (const auto& [place, value] : wrong) {
    Json bad = good;
    bad[Json::json_pointer(place)] = value;
    INFO(place);
    CHECK(blamed(Schema::record().violations(bad), place));
  }
}

TEST_CASE("record.schema.json: every field has a description and every number a unit", "[record]") {
  std::vector<std::string> places;
  const Json& schema = Schema::record().json();
  pointers(schema, "", places);
  for (const std::string& place : places) {
    const std::string parent = place.substr(0, place.rfind('/'));
    if (parent.size() < 11 || parent.substr(parent.size() - 11) != "/properties") continue;
    const Json& field = schema[Json::json_pointer(place)];
    if (field.contains("$ref")) continue;
    INFO(place);
    CHECK(field.contains("description"));
    const std::string type = field.contains("items") ? field["items"].value("type", Json()).dump() : "";
    const std::string types = type + field.value("type", Json()).dump();
    const bool number =
        types.find("number") != std::string::npos || types.find("integer") != std::string::npos;
    CHECK(number == field.contains("unit"));
  }
}

TEST_CASE("Schema: scalar_fields lists every scalar with its unit", "[record]") {
  const auto fields = Schema::record().scalar_fields();
  const auto unit = [&](const std::string& pointer) -> std::string {
    for (const SchemaField& field : fields)
      if (field.pointer == pointer) return field.unit;
    return "no such field";
  };
  CHECK(unit("/memory/measured/peak") == "bytes");
  CHECK(unit("/metrics/mfu_bf16") == "");
  CHECK(unit("/timing/median_ms") == "ms");
  CHECK(unit("/case/seq") == "tokens");
  CHECK(unit("/status") == "");
  CHECK(unit("/timing/samples_ms") == "no such field");
  // All of them exist in a full record under the same pointer.
  Record full = samples::gpu_record("blockwise", 200);
  full.study = kPlace;
  for (GemmPath* path : {&full.support->fprop, &full.support->dgrad, &full.support->wgrad})
    path->kernels = "own", path->emulated_shapes = "8 x 16 x 24";
  full.support->verified = true;
  full.env.nodes = 2;
  full.env.cpus = 8;
  full.env.cpu_quota = 3.5;
  full.metrics->speed_from = "mean";
  full.metrics->peaks->fp4_tflops = 9000, full.metrics->peaks->measured_fp4_tflops = 8000;
  full.breakdown->routing_ms = 0.5;
  full.training->bytes_per_token = 3.5, full.training->held_out_bytes_per_token = 3.25;
  full.flow = FlowRecord{};
  full.source = ImportSource{};
  full.sensitivity = SensitivityRecord{};
  full.params = ParameterCounts{30, 3};
  full.predicted = PredictedStep{};
  full.moe = MoeRecord{};
  full.moe->ep = 2;
  full.moe->exchange = "slots", full.moe->dispatch = "fp8";
  full.moe->slots = 4;
  full.moe->columns = "exact";
  full.moe->bytes = ExchangeBytes{3, 2, 3, 2};
  full.moe->grouped = "own";
  full.study->against = "nvfp4";
  full.case_fields["lora_rank"] = 8, full.case_fields["lora_alpha"] = 16.0;
  full.case_fields["packing"] = "on";
  const Json record = full;
  for (const SchemaField& field : fields) {
    INFO(field.pointer);
    CHECK(record.contains(Json::json_pointer(field.pointer)));
  }
}

TEST_CASE("Record: study survives a round trip and is absent otherwise", "[record]") {
  Record record = samples::gpu_record("blockwise", 200);
  CHECK(!Json(record).contains("study"));
  record.study = kPlace;
  const Json json = valid_json(record);
  CHECK(json.get<Record>().study == kPlace);
  Json wrong = json;
  wrong["study"]["part"] = "spoon";
  CHECK_THROWS_AS(wrong.get<Record>(), InvalidInput);
}

TEST_CASE("Record: an imported record has a source, no definition and a method version of its own", "[record]") {
  const Json json = valid_json(samples::imported_record("mxfp8", 250));
  CHECK_FALSE(not_a_record_reason(json));
  CHECK_FALSE(Json(samples::gpu_record("mxfp8", 250)).contains("source"));
  Json as_measured = json;
  as_measured["method_version"] = kMethodVersion;
  CHECK(not_a_record_reason(as_measured).value_or("").find("/source") != std::string::npos);
  CHECK_THROWS_AS(as_measured.get<Record>(), InvalidInput);
  Json without_source = samples::gpu_record("mxfp8", 250);
  without_source["method_version"] = kImportMethodVersion;
  CHECK(not_a_record_reason(without_source).value_or("").find("/source") != std::string::npos);
  CHECK_THROWS_AS(without_source.get<Record>(), InvalidInput);
  Json wrong = json;
  wrong["source"]["memory"] = "resident";
  CHECK_FALSE(Schema::record().violations(wrong).empty());
}

TEST_CASE("Record: members of younger programs are written only if known", "[record]") {
  struct Member {
    const char* pointer;
    void (*set)(Record&);
    Json value;
  };
  const Member members[] = {
      {"/predicted",
       [](Record& r) {
         r.predicted = PredictedStep{251, 240, 262, 0.1, "h200"};
       },
       {{"step_ms", 251.0}, {"low_ms", 240.0}, {"high_ms", 262.0}, {"borrowed", 0.1}, {"rates", "h200"}}},
      {"/breakdown/ops/0/shape",
       [](Record& r) {
         r.breakdown->ops.front().shape = std::vector<std::int64_t>{4096, 4096, 1024};
       },
       {4096, 4096, 1024}},
      {"/breakdown/ops/0/formats", [](Record& r) { r.breakdown->ops.front().formats = "e4m3 1x32 ue8m0"; },
       "e4m3 1x32 ue8m0"},
      {"/env/nodes", [](Record& r) { r.env.nodes = 2; }, 2},
      {"/support/verified", [](Record& r) { r.support->verified = true; }, true},
      {"/support/verified", [](Record& r) { r.support->verified = false; }, false},
      {"/support/wgrad/kernels", [](Record& r) { r.support->wgrad.kernels = "own 256x128"; }, "own 256x128"},
      {"/study/trained_tokens", [](Record& r) { r.study->trained_tokens = 2'000'000'000'000; },
       2'000'000'000'000},
      {"/study/steady", [](Record& r) { r.study->steady = false; }, false},
      {"/study/against", [](Record& r) { r.study->against = "nvfp4"; }, "nvfp4"},
      {"/study/sizes",
       [](Record& r) {
         r.study->sizes = std::vector<StudySize>{{3, 1, 2}, {7, 1, 2}};
       },
       Json::parse(R"([{"trunks":3,"seeds":1,"ages":2},{"trunks":7,"seeds":1,"ages":2}])")},
      {"/training/bytes_per_token", [](Record& r) { r.training->bytes_per_token = 3.35; }, 3.35},
      {"/training/held_out_bytes_per_token", [](Record& r) { r.training->held_out_bytes_per_token = 3.3; },
       3.3},
      {"/fidelity/0/outputs",
       [](Record& r) {
         r.fidelity.front().outputs =
             OutputDistance{640, true, {0.01, 0.009, 0.011}, 0.3, {1e-4, {}, {}}, {}};
       },
       Json::parse(
           R"({"tokens":640,"held_out":true,"log_probability":{"mean":0.01,"low":0.009,"high":0.011},)"
           R"("largest_log_probability":0.3,"kl":{"mean":1e-4,"low":null,"high":null},"largest_kl":null})")}};
  Record base = samples::gpu_record("mxfp8", 250);
  base.study = kPlace;
  base.study->trained_tokens.reset(), base.study->steady.reset();
  base.fidelity.front().outputs.reset();
  const Json without = valid_json(base);
  for (const auto& [pointer, set, value] : members) {
    INFO(pointer);
    const Json::json_pointer place(pointer);
    CHECK_FALSE(without.contains(place));
    Record record = base;
    set(record);
    CHECK(valid_json(record).at(place) == value);
  }
  Json wrong = without;
  wrong["support"]["verified"] = "yes";
  CHECK_THROWS_AS(wrong.get<Record>(), InvalidInput);
}

TEST_CASE("to_json: non-finite values become null and a non-finite loss becomes diverged", "[record]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Record record = samples::gpu_record("tensorwise", 200);
  record.training->loss[7] = nan;
  record.training->grad_norm[7] = std::numeric_limits<double>::infinity();
  record.metrics->tokens_per_s = nan;
  const Json json = valid_json(record);
  CHECK(json["training"]["loss"][7].is_null());
  CHECK(json["training"]["grad_norm"][7].is_null());
  CHECK(json["metrics"]["tokens_per_s"].is_null());
  CHECK(json["status"] == "diverged");
  CHECK(json["error"] == "the loss is not finite at step 7");
  const Record back = json.get<Record>();
  CHECK(std::isnan(back.training->loss[7]));
  CHECK(back.status == Status::diverged);
}

TEST_CASE("Support::path: the weakest GEMM decides", "[record]") {
  Support support;
  CHECK(support.path() == ExecutionPath::native);
  support.wgrad.path = ExecutionPath::emulated;
  CHECK(support.path() == ExecutionPath::emulated);
  support.fprop.path = ExecutionPath::unsupported;
  CHECK(support.path() == ExecutionPath::unsupported);
}

TEST_CASE("Schema: unsupported keywords are refused", "[record]") {
  CHECK_THROWS_AS(Schema(R"({"type": "string", "pattern": "a+"})"), InvalidInput);
  CHECK_THROWS_AS(Schema(R"({"properties": {"a": {"oneOf": []}}})"), InvalidInput);
  CHECK_THROWS_AS(Schema(R"({"$ref": "#/$defs/none"})"), InvalidInput);
  CHECK_THROWS_AS(Schema("{"), InvalidInput);
}

TEST_CASE("from_json: records without interleaved runs are read", "[record]") {
  Json old = samples::gpu_record("bf16", 250);
  old["timing"].erase("runs");
  old["timing"].erase("between_runs");
  CHECK(Schema::record().violations(old) == std::vector<std::string>{});
  const Record record = old.get<Record>();
  CHECK(record.timing->runs.empty());
  CHECK(!record.timing->between_runs.has_value());
  CHECK(record.timing->median_ms == 250);
}

TEST_CASE("from_json: records without evaluations are read and a non-finite loss is null", "[record]") {
  Record record = samples::gpu_record("bf16", 250);
  Json old = record;
  old["training"].erase("evaluations");
  CHECK(Schema::record().violations(old) == std::vector<std::string>{});
  CHECK(old.get<Record>().training->evaluations.empty());
  record.training->evaluations = {{20, 128, 2.5, std::nullopt, std::nullopt},
                                  {40, 128, std::numeric_limits<double>::quiet_NaN(), 0.1, 2.25}};
  const Json json = valid_json(record);
  CHECK(json["training"]["evaluations"].dump() ==
        R"([{"step":20,"tokens":128,"loss":2.5,"loss_error":null,"bf16_loss":null},)"
        R"({"step":40,"tokens":128,"loss":null,"loss_error":0.1,"bf16_loss":2.25}])");
  CHECK(!json.get<Record>().training->evaluations[1].loss.has_value());
}

TEST_CASE("Evaluation: readings are written only if there are any, BF16's without a distance from itself",
          "[record]") {
  Record record = samples::gpu_record("bf16", 250);
  record.training->evaluations = {{20, 128, 2.5, {}, 2.5}, {40, 128, 2.25, {}, 2.25}};
  record.training->evaluations[1].readings = {
      {"bf16", 2.25, {2.0, 2.5}},
      {"rowwise",
       2.5,
       {2.25, std::numeric_limits<double>::quiet_NaN()},
       OutputDistance{128, true, {0.01, 0.009, 0.011}, 0.3, {1e-4, {}, {}}, 0.2}}};
  const Json json = valid_json(record);
  const Json& evaluations = json["training"]["evaluations"];
  CHECK_FALSE(evaluations[0].contains("readings"));
  CHECK(evaluations[1]["readings"][0].dump() == R"({"recipe":"bf16","loss":2.25,"groups":[2.0,2.5]})");
  CHECK(evaluations[1]["readings"][1]["groups"].dump() == "[2.25,null]");
  const auto back = json.get<Record>().training->evaluations;
  CHECK_FALSE(back[0].readings.has_value());
  CHECK(back[1].readings->at(1).outputs->largest_divergence == 0.2);
}

TEST_CASE("from_json: records without fidelity are read and non-finite values are null", "[record]") {
  Record record = samples::gpu_record("mxfp8", 250);
  REQUIRE(record.fidelity.size() == 1);
  Json old = record;
  old.erase("fidelity");
  CHECK(Schema::record().violations(old) == std::vector<std::string>{});
  CHECK(old.get<Record>().fidelity.empty());
  Fidelity& probe = record.fidelity[0];
  probe.whole.error = {std::numeric_limits<double>::infinity(), std::nullopt, std::nullopt};
  probe.roles = {{"norm", std::nullopt, 0.5, 0.25}};
  probe.layers.clear();
  probe.outputs.reset();
  const Json json = valid_json(record);
  CHECK(
      json["fidelity"][0].dump() ==
      R"({"stress":"none","batches":2,"loss_bf16":2.5,"loss_difference":{"mean":0.001,"low":0.0,"high":0.002},)"
      R"("whole":{"error":{"mean":null,"low":null,"high":null},"cosine":{"mean":0.998,"low":0.997,"high":0.999},)"
      R"("bias":{"mean":-0.001,"low":-0.002,"high":0.0}},"roles":[{"name":"norm","error":null,"cosine":0.5,)"
      R"("bias":0.25}],"layers":[]})");
  CHECK(!json.get<Record>().fidelity[0].whole.error.mean.has_value());
  probe.route_flips = RouteFlips{0.25, {0.125, 0.375}};
  CHECK(valid_json(record).get<Record>().fidelity[0].route_flips->layers ==
        std::vector<double>{0.125, 0.375});
  for (const auto& [place, value] : {std::pair<const char*, Json>{"/fidelity/0/batches", 0},
                                     {"/fidelity/0/whole/error", 0.5},
                                     {"/fidelity/0/roles/0/cosine", 1.5},
                                     {"/fidelity/0/roles/0/name", nullptr},
                                     {"/fidelity/0/layers", nullptr}}) {
    INFO(place);
    Json bad = json;
    bad[Json::json_pointer(place)] = value;
    CHECK(Schema::record().violations(bad).size() == 1);
  }
}

TEST_CASE("from_json: schema 1 records are read without definition and written unchanged", "[record]") {
  const Json json = valid_json(samples::of_schema_1(samples::gpu_record("mxfp8", 250)));
  CHECK(!json.contains("definition"));
  CHECK(json.get<Record>().schema == 1);
  Json young = json;
  young["schema"] = 2;
  CHECK_THROWS_AS(young.get<Record>(), InvalidInput);
}

TEST_CASE("Record: sensitivity is valid and survives a round trip and is absent without cells",
          "[record][sensitivity]") {
  Record record = samples::gpu_record("rowwise", 200);
  CHECK(!Json(record).contains("sensitivity"));
  SensitivityRecord& s = record.sensitivity.emplace();
  s.batches = 2, s.loss_bf16 = 2.5, s.quantized_flops = 0.75;
  const MeanInterval price{0.02, 0.018, 0.022}, none{0, std::nullopt, std::nullopt};
  s.cells = {
      {"recipe", CellKind::whole, "rowwise", price, none, {price, price, price}, 0.0},
      {"blocks", CellKind::kept, "7", none, price, {price, price, price}, 0.25, {"first:1", "block:7"}},
      {"operands", CellKind::alone, "weights", price, none, {price, none, none}, std::nullopt, {}, "a note"}};
  s.sums = {{"blocks", CellKind::kept, price, none}};
  s.skipped = {{"elements e4m4", "not grouped yet"}};
  const Json json = valid_json(record);
  CHECK(!json["sensitivity"]["cells"][0].contains("note"));
  std::vector<std::string> places;
  pointers(json["sensitivity"], "/sensitivity", places);
  for (const std::string& place : places) {
    INFO(place);
    Json bad = json;
    bad[Json::json_pointer(place)] = Json::array({Json::array()});
    CHECK(!Schema::record().violations(bad).empty());
    CHECK_THROWS_AS(bad.get<Record>(), InvalidInput);
  }
  for (const char* key : {"cells", "sums", "skipped", "batches", "loss_bf16", "quantized_flops"}) {
    Json missing = json;
    missing["sensitivity"].erase(key);
    CHECK(!Schema::record().violations(missing).empty());
    CHECK_THROWS_AS(missing.get<Record>(), InvalidInput);
  }
}
