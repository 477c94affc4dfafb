// Shared case fields keep their individual values.
#include "results/record/case_fields.h"

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "results/record/record_file.h"
#include "results/record/record_samples.h"

using namespace precbench;
using Json = nlohmann::ordered_json;

namespace {

const Json kCase = {{"model", "tiny"}, {"recipe", "bf16"}, {"seq", 128}, {"lr", 0.0}, {"save", nullptr}};

Json with(const std::string& key, Json value) {
  Json json = kCase;
  json[key] = std::move(value);
  return json;
}

/// Returns the JSON text, since 1 equals 1.0 otherwise.
std::string text(const CaseFields& fields) { return Json(fields).dump(); }

}  // namespace

TEST_CASE("CaseFields: behave like a JSON object of scalars", "[case_fields]") {
  CaseFields fields(kCase);
  CHECK(text(fields) == kCase.dump());
  CHECK(fields.at("seq") == 128);
  CHECK(fields["recipe"] == "bf16");
  CHECK(fields.find("save")->is_null());
  CHECK(fields.find("batch") == nullptr);
  CHECK(fields.value("batch", 7) == 7);
  CHECK(fields.value("seq", 7) == 128);
  fields["batch"] = 4;
  fields["recipe"] = "mxfp8";
  Json expected = with("recipe", "mxfp8");
  expected["batch"] = 4;
  CHECK(text(fields) == expected.dump());
  fields.erase("seq");
  expected.erase("seq");
  CHECK(text(fields) == expected.dump());
  CHECK(text(CaseFields()) == "{}");
  CHECK(CaseFields().items().empty());
  CHECK_THROWS_AS(CaseFields(Json(3)), InvalidInput);
  CHECK_THROWS_AS(std::as_const(fields)["seq"], InvalidInput);
}

TEST_CASE("CaseFields: changing a copy leaves the original unchanged", "[case_fields]") {
  const CaseFields first(kCase);
  CaseFields second = first;
  second["recipe"] = "rowwise";
  CHECK(text(first) == kCase.dump());
  CHECK(text(second) == with("recipe", "rowwise").dump());
  CHECK(&second.at("model") == &first.at("model"));
}

TEST_CASE("CaseFields: share_with shares equal fields and keeps the JSON unchanged", "[case_fields]") {
  const CaseFields first(kCase);
  for (const Json& json :
       {with("recipe", "rowwise"), with("seq", 128.0), with("lr", -0.0), with("save", "w"), kCase}) {
    CaseFields fields(json);
    CHECK(fields.share_with(first));
    CHECK(text(fields) == json.dump());
    CHECK(&fields.at("model") == &first.at("model"));
    // items() returns the fields in order.
    Json object = Json::object();
    for (const auto& item : fields.items()) object[item.key()] = item.value();
    CHECK(object.dump() == json.dump());
    // Fields that share may be shared with in turn.
    CaseFields third(with("model", "small"));
    CHECK(third.share_with(fields));
    CHECK(text(third) == with("model", "small").dump());
  }
}

TEST_CASE("CaseFields: share_with refuses other keys or another order or many differences", "[case_fields]") {
  const CaseFields first(kCase);
  Json less = kCase, many = kCase;
  less.erase("lr");
  const Json other_order = {
      {"recipe", "bf16"}, {"model", "tiny"}, {"seq", 128}, {"lr", 0.0}, {"save", nullptr}};
  for (const Json& json : {less, with("batch", 1), other_order, Json::object()}) {
    CaseFields fields(json);
    CHECK_FALSE(fields.share_with(first));
    CHECK(text(fields) == json.dump());
  }
  for (int i = 0; i < 9; ++i) many["k" + std::to_string(i)] = i;
  Json all_others = many;
  for (int i = 0; i < 9; ++i) all_others["k" + std::to_string(i)] = -i - 1;
  CaseFields fields(all_others);
  CHECK_FALSE(fields.share_with(CaseFields(many)));
  CHECK(text(fields) == all_others.dump());
}

TEST_CASE("read_records: records of a file share equal case fields", "[case_fields][record_file]") {
  const TempDirectory folder;
  std::string lines;
  std::vector<Record> records;
  for (int seed = 0; seed < 6; ++seed) {
    records.push_back(samples::gpu_record(seed % 2 ? "rowwise" : "bf16", 200, 0, seed));
    if (seed >= 4) records.back().case_fields["lr"] = 1e-4 * seed;  // from another sweep
    lines += Json(records.back()).dump() + "\n";
  }
  const RecordSet set = read_records({folder.write("r.jsonl", lines)});
  REQUIRE(set.records.size() == records.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    const CaseFields& fields = set.records[i].record.case_fields;
    CHECK(text(fields) == text(records[i].case_fields));
    CHECK(&fields.at("model") == &set.records[i < 4 ? 0 : 4].record.case_fields.at("model"));
  }
}

TEST_CASE("CaseFieldsChange: shared and separate fields are changed alike", "[case_fields]") {
  const CaseFieldsChange::Rule rule = [](const std::string& key, const Json& value) -> std::optional<Json> {
    if (key == "save") return std::nullopt;
    return value == "bf16" ? Json() : value;
  };
  CaseFieldsChange change(rule);
  const CaseFields first(kCase);
  CaseFields other = first;
  other["save"] = "weights";
  other["seq"] = 256;
  CaseFields stranger = first;
  stranger["recipe"] = "bf16";
  stranger["more"] = 1;
  change.prepare(first);
  for (const CaseFields& fields : {first, other, stranger, CaseFields()}) {
    Json expected = Json::object();
    for (const auto& item : fields.items())
      if (const auto value = rule(item.key(), item.value())) expected[item.key()] = *value;
    CHECK(text(change.of(fields)) == expected.dump());
  }
  CHECK(&std::as_const(change).of(first).at("model") == &std::as_const(change).of(other).at("model"));
}
