// Tests the matching of records with a baseline, in the present schema and in schema 1, and
// differences of work.
#include "tools/gate/gate_work.h"

#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "tools/gate/check_command.h"
#include "tools/gate/gate_testing.h"

using namespace precbench;
using namespace precbench::gate_testing;
using samples::redefined;
using samples::set_of;

namespace {

const Record kWorkBase = samples::gpu_record("mxfp8", 250);

/// Returns a record with another id, as after an edit of its definition.
Record edited(Record record) {
  record.id += "-edited";
  return record;
}

/// Returns the records of a committed file with one model.
RecordSet committed(const std::string& path, const std::string& model) {
  RecordSet set = read_records({PRECBENCH_SOURCE_DIR "/results/" + path});
  std::erase_if(set.records,
                [&](const LocatedRecord& located) { return located.record.case_fields["model"] != model; });
  REQUIRE(!set.records.empty());
  return set;
}

/// Returns the same cases as the present program would write them.
RecordSet of_today(RecordSet set, const nlohmann::ordered_json& model) {
  for (LocatedRecord& located : set.records) {
    Record& record = located.record;
    record.schema = 2;
    record.id += " of today";
    record.definition = samples::definition("mxfp8", 42);
    (*record.definition).model = std::make_shared<const nlohmann::ordered_json>(model);
  }
  return set;
}

/// Returns a definition's model with `keys` instead of RoPE scaling.
nlohmann::ordered_json model_with(const nlohmann::ordered_json& keys) {
  nlohmann::ordered_json model = *samples::definition("mxfp8", 42).model;
  model.erase("rope_scaling");
  model.update(keys);
  return model;
}

const nlohmann::ordered_json kPlain = model_with(nlohmann::ordered_json::object());
/// The RoPE scaling of llama3.2-1b.
const nlohmann::ordered_json kStretched = model_with({{"rope_scaling",
                                                       {{"factor", 32.0},
                                                        {"high_freq_factor", 4.0},
                                                        {"low_freq_factor", 1.0},
                                                        {"original_max_position_embeddings", 8192.0},
                                                        {"rope_type", "llama3"}}}});

/// Returns rules for memory only, which does not depend on a record's length.
GateRules memory_only() {
  GateRules rules;
  rules.tokens_per_s.reset();
  rules.loss = false;
  return rules;
}

}  // namespace

TEST_CASE("judge: an edited definition is MISSING and the field named", "[gate]") {
  const Record floor = redefined(kWorkBase, &DefinitionRecord::recipe, "/fprop/a/scale_rounding", "floor");
  const std::string difference =
      "definition.recipe.fprop.a.scale_rounding: rceil here, floor in the baseline";
  const MetricResult by_fields = metric_of(judge_one(edited(floor), kWorkBase), "run");
  CHECK(by_fields.verdict == GateVerdict::missing);
  CHECK(by_fields.reason == "other work under the same names: " + difference);
  CHECK(metric_of(judge_one(floor, kWorkBase), "run").reason ==
        "other work under the same id: " + difference);
  CHECK(metric_of(judge_one(edited(redefined(kWorkBase, &DefinitionRecord::model, "/layers", 17)), kWorkBase),
                  "run")
            .reason ==
        "other work under the same names: definition.model.layers: 16 here, 17 in the baseline");
}

TEST_CASE("judge: an edited case that is emulated now is MISSING", "[gate]") {
  Record run = edited(redefined(kWorkBase, &DefinitionRecord::recipe, "/fprop/a/scale_rounding", "floor"));
  run.support->fprop.path = ExecutionPath::emulated;
  run.metrics = Metrics{};
  CHECK(verdict_of(judge_one(kWorkBase, run), "run") == GateVerdict::missing);
  run.id = kWorkBase.id, run.definition = kWorkBase.definition;
  CHECK(contains(refusal_of([&] { judge_one(kWorkBase, run); }), "they are not compared"));
}

TEST_CASE("judge: the same definition under another name is the same case", "[gate]") {
  Record run = kWorkBase;
  run.case_fields["model"] = "copies/llama.json";
  CHECK(judge_one(kWorkBase, run).exit_status() == 0);
  run.case_fields["seq"] = 4096;
  CHECK(judge_one(kWorkBase, run).exit_status() == 3);
}

TEST_CASE("answers: fields shared by several records match none of them", "[gate]") {
  const RecordSet two = set_of({edited(kWorkBase), edited(edited(kWorkBase))});
  CHECK(answers(set_of({kWorkBase}), two).empty());
  CHECK(answers(two, set_of({kWorkBase})).empty());
  CHECK(answers(set_of({kWorkBase}), set_of({edited(kWorkBase)})).size() == 1);
}

TEST_CASE("answers: schema 1 baselines are matched by their fields", "[gate]") {
  for (const auto& [path, model, definition] :
       {std::tuple{"baseline/cpu-tiny.jsonl", "tiny", kPlain},
        std::tuple{"baseline/nvidia-h200-schema-1.jsonl.xz", "llama3.2-1b", kStretched}}) {
    INFO(path);
    const RecordSet baseline = committed(path, model), run = of_today(baseline, definition);
    CHECK(answers(baseline, run).size() == baseline.records.size());
    CHECK(judge(baseline, run, memory_only()).exit_status() == 0);
    CHECK(judge(run, baseline, memory_only()).exit_status() == 0);
    const RecordSet biased = of_today(baseline, model_with({{"qkv_bias", true}}));
    CHECK(judge(baseline, biased, memory_only()).exit_status() == 3);
  }
}

TEST_CASE("judge: a schema 1 record without RoPE scaling is not compared with a model that has it",
          "[gate]") {
  const RecordSet old = committed("h200x4/scaling.jsonl.xz", "llama3.2-1b");
  const GateResult result = judge(old, of_today(old, kStretched), memory_only());
  CHECK(result.exit_status() == 3);
  CHECK(contains(result.cases.at(0).metrics.at(0).reason,
                 "a model without RoPE scaling or biases by its id, but definition.model has them"));
  CHECK(judge(old, of_today(old, kPlain), memory_only()).exit_status() == 0);
}

TEST_CASE("check: --accept replaces matched records of an older baseline", "[gate]") {
  const TempDirectory directory;
  const std::string baseline = directory / "baseline.jsonl", run = directory / "run.jsonl";
  const RecordSet old = committed("baseline/cpu-tiny.jsonl", "tiny");
  for (const LocatedRecord& located : old.records) append_record(baseline, located.record);
  for (const LocatedRecord& located : of_today(old, kPlain).records) append_record(run, located.record);
  CheckOptions options;
  options.baseline = baseline;
  options.paths = {run};
  options.accept = true;
  CHECK(check(options, [](const nlohmann::ordered_json&) { return std::string(); }) == 0);
  const RecordSet now = read_records({baseline});
  CHECK(now.problems.empty());
  REQUIRE(now.records.size() == old.records.size());
  for (const LocatedRecord& located : now.records) CHECK(located.record.schema == 2);
}
