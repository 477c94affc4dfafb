// Tests versions of edited files: how they are detected, and which record belongs to which.
#include "tools/analysis/workloads.h"

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_samples.h"
#include "tools/analysis/analysis.h"

using namespace precbench;
using samples::set_of;

namespace {

/// Returns a schema 1 record of mini.json with the recipe; `version` is appended to its id.
Record of_file(const std::string& recipe, int seed, const std::string& version, int minute) {
  Record record = samples::of_schema_1(samples::gpu_record(recipe, 250, 0, seed));
  record.case_fields["model"] = "mini.json";
  record.id += version;
  record.created = "2025-03-01T12:0" + std::to_string(minute) + ":00Z";
  return record;
}

/// Returns the names of the field `key` for all records, in their order.
std::vector<std::string> names(const RecordSet& set, const std::string& key) {
  const Workloads workloads(all_of(set));
  std::vector<std::string> result;
  for (const LocatedRecord& located : set.records) result.push_back(workloads.fields(&located).at(key));
  return result;
}

using Names = std::vector<std::string>;
const std::string kFirst = "mini.json (version 1)", kSecond = "mini.json (version 2)";

}  // namespace

TEST_CASE("Workloads: a new id for equal fields is a new version that later cases join", "[works]") {
  const RecordSet set =
      set_of({of_file("bf16", 1, "a", 1), of_file("bf16", 2, "a", 2), of_file("bf16", 1, "b", 3),
              of_file("rowwise", 1, "b", 4), of_file("bf16", 3, "b", 5)});
  CHECK(names(set, "model") == Names{kFirst, kFirst, kSecond, kSecond, kSecond});
  const auto notes = Workloads(all_of(set)).notes();
  REQUIRE(notes.size() == 1);
  CHECK(contains(notes[0],
                 "mini.json changed between these cases: version 1 from 2025-03-01T12:01:00Z, "
                 "version 2 from 2025-03-01T12:03:00Z;"));
}

TEST_CASE("Workloads: versions follow time rather than the order of the files", "[works]") {
  const RecordSet set = set_of({of_file("bf16", 1, "b", 3), of_file("bf16", 1, "a", 1)});
  CHECK(names(set, "model") == Names{kSecond, kFirst});
}

TEST_CASE("Workloads: model size distinguishes versions if no seed is repeated", "[works]") {
  std::vector<Record> records = {of_file("bf16", 1, "a", 1), of_file("bf16", 2, "b", 2),
                                 of_file("rowwise", 3, "a", 3)};
  CHECK(names(set_of(records), "model") == Names{"mini.json", "mini.json", "mini.json"});
  SECTION("FLOPs") { records[1].flops->per_token *= 2; }
  SECTION("tensors") { records[1].training->params_total = 9; }
  SECTION("vocabulary") { records[1].training->uniform_loss = 5; }
  CHECK(names(set_of(records), "model") == Names{kFirst, kSecond, kFirst});
}

TEST_CASE("Workloads: FLOPs at another sequence length are the same model", "[works]") {
  Record longer = of_file("bf16", 1, "b", 2);
  longer.case_fields["seq"] = 4096;
  longer.flops->per_token *= 2;
  CHECK(names(set_of({of_file("bf16", 1, "a", 1), longer}), "model") == Names{"mini.json", "mini.json"});
}

TEST_CASE("Workloads: models of one name in two folders do not mix whichever came first", "[works]") {
  std::vector<Record> records;
  for (const int minute : {1, 3})
    for (const char* folder : {"a", "b"}) {
      records.push_back(of_file("bf16", 1, folder, minute + (*folder == 'b')));
      records.back().case_fields["batch"] = minute;
    }
  RecordSet set = set_of(records);
  for (std::size_t i = 0; i < 4; ++i) set.records[i].origin = {i % 2 ? "b" : "a", 1};
  CHECK(names(set, "model") == Names{kFirst, kSecond, kFirst, kSecond});
}

TEST_CASE("Workloads: a recipe's formats distinguish its versions and leave the model alone", "[works]") {
  const std::string recipe = "own.json";
  std::vector<Record> records;
  for (const int seed : {1, 2, 3}) records.push_back(of_file(recipe, seed, seed == 1 ? "a" : "b", seed));
  records.push_back(of_file(recipe, 1, "b", 4));
  for (const std::size_t i : {1u, 2u, 3u}) records[i].quantization[0].format = "e5m2 tensor f32";
  const Names versions = {"own.json (version 1)", "own.json (version 2)", "own.json (version 2)",
                          "own.json (version 2)"};
  CHECK(names(set_of(records), "recipe") == versions);
  CHECK(names(set_of(records), "model") == Names(4, "mini.json"));
  // A recipe that no longer quantizes has no format.
  for (const std::size_t i : {1u, 2u, 3u}) records[i].quantization.clear();
  CHECK(names(set_of(records), "recipe") == versions);
  // A new id alone may have either cause: then nothing is compared.
  records = {of_file(recipe, 1, "a", 1), of_file(recipe, 1, "b", 2)};
  CHECK(names(set_of(records), "model") == Names{kFirst, kSecond});
  for (Record& record : records) record.case_fields["model"] = "tiny";
  CHECK(names(set_of(records), "recipe") == Names{"own.json (version 1)", "own.json (version 2)"});
}

TEST_CASE("Workloads: changed data and initial weights are different work", "[works]") {
  for (const char* key : {"data", "init_from", "fork_from"}) {
    std::vector<Record> records;
    for (const int minute : {1, 2, 3}) {
      records.push_back(of_file("bf16", 1, minute == 1 ? "a" : "b", minute));
      records.back().case_fields["model"] = "tiny";
      records.back().case_fields[key] = "own";
    }
    records[2].case_fields["seq"] = 4096;
    CHECK(names(set_of(records), key) == Names{"own (version 1)", "own (version 2)", "own (version 2)"});
  }
}

TEST_CASE("Workloads::notes: lists ten versions and counts the others", "[works]") {
  std::vector<Record> records;
  for (int i = 0; i < 150; ++i) {
    records.push_back(of_file("bf16", 1, std::to_string(i), 0));
    records.back().created = "2025-03-01T12:00:00Z";
  }
  const RecordSet set = set_of(records);
  CHECK(names(set, "model").back() == "mini.json (version 150)");
  const auto notes = Workloads(all_of(set)).notes();
  REQUIRE(notes.size() == 1);
  CHECK(contains(notes[0], "version 10 from 2025-03-01T12:00:00Z, and 140 more; they are different work"));
  CHECK_FALSE(contains(notes[0], "version 11 "));
}

TEST_CASE("Workloads: presets of schema 1 have no versions", "[works]") {
  Record other = samples::of_schema_1(samples::gpu_record("bf16", 250));
  other.id += "b";
  other.flops->per_token *= 2;
  CHECK(names(set_of({samples::gpu_record("bf16", 250), other}), "model") == Names(2, "llama3.2-1b"));
}

TEST_CASE("Workloads: a changed built-in has a name for each definition", "[works]") {
  using samples::redefined;
  const Record bf16 = samples::gpu_record("bf16", 250), mxfp8 = samples::gpu_record("mxfp8", 250);
  const Record edited = redefined(mxfp8, &DefinitionRecord::recipe, "/fprop/a/scale_rounding", "floor");
  CHECK(names(set_of({bf16, mxfp8, edited}), "recipe") ==
        Names{"bf16", "mxfp8 (version 1)", "mxfp8 (version 2)"});
  const Record longer = redefined(bf16, &DefinitionRecord::model, "/layers", 17);
  CHECK(names(set_of({bf16, longer, mxfp8}), "model") ==
        Names{"llama3.2-1b (version 1)", "llama3.2-1b (version 2)", "llama3.2-1b (version 1)"});
  const Record wider = redefined(bf16, &DefinitionRecord::init, "/deviation", 0.03);
  CHECK(names(set_of({bf16, wider}), "init_from") == Names{"init_from (version 1)", "init_from (version 2)"});
}

TEST_CASE("Workloads: a fork's weights are named by fork_from and other runs keep init_from", "[works]") {
  using samples::redefined;
  Record drawn = samples::gpu_record("bf16", 250);
  drawn.case_fields["fork_from"] = "";
  std::vector<Record> records = {drawn};
  for (const char* fingerprint : {"1", "2"}) {
    Record fork = redefined(redefined(drawn, &DefinitionRecord::init, "/kind", "fork"),
                            &DefinitionRecord::init, "/fingerprint", fingerprint);
    fork.case_fields["fork_from"] = "trunk";
    records.push_back(fork);
  }
  const RecordSet set = set_of(records);
  const Workloads workloads(all_of(set));
  const nlohmann::ordered_json none, names[] = {none, "trunk (version 1)", "trunk (version 2)"};
  for (std::size_t i = 0; i < records.size(); ++i) {
    const CaseFields fields = workloads.fields(&set.records[i]);
    CHECK(fields.value("init_from", none) == none);
    CHECK(fields.value("fork_from", none) == names[i]);
  }
}

TEST_CASE("Workloads: seeds and kept blocks and citations make no versions and schema 1 joins the only one",
          "[works]") {
  using samples::redefined;
  const Record base = samples::gpu_record("mxfp8", 250);
  const Record kept = redefined(base, &DefinitionRecord::recipe, "/blocks", "1-15"),
               parts = redefined(base, &DefinitionRecord::recipe, "/linears/qkv", "1-15"),
               cited = redefined(base, &DefinitionRecord::recipe, "/reference", "another paper"),
               seed = samples::gpu_record("mxfp8", 250, 0, 2);
  const RecordSet set = set_of({base, kept, parts, cited, seed, samples::of_schema_1(base)});
  CHECK(names(set, "recipe") == Names(6, "mxfp8"));
  CHECK(Workloads(all_of(set)).notes().empty());
}
