// Tests which records are compared with each other, and the results.
#include "tools/analysis/analysis.h"

#include <cmath>

#include "kernels/testing/catch.h"
#include "results/record/record_samples.h"

using namespace precbench;
using samples::set_of;

namespace {

Analysis analyze(const RecordSet& set, RowsBy by = RowsBy::recipe) {
  return analyze(all_of(set), Workloads(all_of(set)), by);
}

bool near(const std::optional<double>& value, double expected) {
  return value && std::fabs(*value - expected) <= 1e-9 * std::fmax(1, std::fabs(expected));
}

Record with(Record record, const std::string& key, const nlohmann::ordered_json& value) {
  record.case_fields[key] = value;
  return record;
}

}  // namespace

TEST_CASE("analyze: a native recipe is compared with the BF16 row of its group", "[analysis]") {
  // BF16 comes second: the order of the records does not matter.
  const auto records =
      set_of({samples::gpu_record("blockwise", 200, 0.01), samples::gpu_record("bf16", 250)});
  const Analysis analysis = analyze(records);
  REQUIRE(analysis.groups.size() == 1);
  REQUIRE(analysis.groups[0].rows.size() == 2);
  const Row& bf16 = analysis.groups[0].rows[0];
  const Row& blockwise = analysis.groups[0].rows[1];
  CHECK(bf16.fields["recipe"] == "bf16");
  CHECK(near(bf16.speedup, 1));
  CHECK(near(blockwise.speedup, 1.25));
  CHECK(near(blockwise.tokens_per_s, 81920));
  CHECK(near(blockwise.loss_delta, 0.01));
  const double bf16_peak = static_cast<double>(records.records[1].record.memory->measured->peak);
  CHECK(near(blockwise.memory_ratio,
             static_cast<double>(records.records[0].record.memory->measured->peak) / bf16_peak));
  // The samples are median * (1 + 0.0004 i), i = -5..5: the quartiles are at i = +-2.5.
  CHECK(near(blockwise.relative_iqr, 0.002));
  CHECK(analysis.constants["seq"] == 2048);
  CHECK(analysis.constants["machine"] == "NVIDIA H200");
  CHECK_FALSE(analysis.constants.contains("recipe"));
}

TEST_CASE("analyze: an emulated recipe has a loss but no speed and no ratio", "[analysis]") {
  Record sloppy = samples::cpu_record("mxfp8", 0.02);
  sloppy.metrics->tokens_per_s = 99;  // even if a record claims a speed
  const auto records = set_of({samples::cpu_record("bf16"), sloppy});
  const Row row = analyze(records).groups.at(0).rows.at(1);
  CHECK_FALSE(row.tokens_per_s);
  CHECK_FALSE(row.relative_iqr);
  CHECK_FALSE(row.speedup);
  CHECK_FALSE(row.memory_ratio);
  CHECK(near(row.loss_delta, 0.02));
}

TEST_CASE("analyze: one emulated GEMM makes the recipe emulated", "[analysis]") {
  Record record = samples::gpu_record("blockwise", 200);
  record.support->wgrad = {ExecutionPath::emulated, "no such mode"};
  const auto records = set_of({samples::gpu_record("bf16", 250), record});
  CHECK_FALSE(analyze(records).groups.at(0).rows.at(1).speedup);
}

TEST_CASE("analyze: failed cases are rows without ratios and no baseline", "[analysis]") {
  SECTION("a failed recipe") {
    // It diverged after its speed was measured: still no ratio.
    Record diverged = samples::gpu_record("tensorwise", 190);
    diverged.status = Status::diverged;
    const auto records = set_of({samples::gpu_record("bf16", 250), diverged});
    const Row row = analyze(records).groups.at(0).rows.at(1);
    CHECK(row.status == Status::diverged);
    CHECK_FALSE(row.speedup);
    CHECK_FALSE(row.memory_ratio);
    CHECK_FALSE(row.loss_delta);
    CHECK_FALSE(row.tokens_per_s);
  }
  SECTION("a failed bf16") {
    const auto records =
        set_of({samples::failed_record("bf16", Status::oom, "full"), samples::gpu_record("blockwise", 200)});
    const Row row = analyze(records).groups.at(0).rows.at(1);
    CHECK(near(row.tokens_per_s, 81920));
    CHECK_FALSE(row.speedup);
    CHECK_FALSE(row.loss_delta);
  }
  SECTION("an unknown execution path") {
    Record unknown = samples::gpu_record("blockwise", 200);
    unknown.support.reset();
    const auto records = set_of({samples::gpu_record("bf16", 250), unknown});
    CHECK_FALSE(analyze(records).groups.at(0).rows.at(1).speedup);
  }
}

TEST_CASE("analyze: different work or machine or method version gives different groups", "[analysis]") {
  const Record bf16 = samples::gpu_record("bf16", 250);
  Record other = samples::gpu_record("blockwise", 200);
  SECTION("sequence length") { other = with(other, "seq", 4096); }
  SECTION("a field that this program does not know") { other = with(other, "optimizer", "lion"); }
  SECTION("GPU") { other.env.gpu->name = "NVIDIA B200"; }
  SECTION("power limit") { other.env.gpu->power_limit = 400; }
  SECTION("cuBLASLt") { other.env.cublaslt = "12.8"; }
  SECTION("method version") { other.method_version = kMethodVersion + 1; }
  const auto records = set_of({bf16, other});
  const Analysis analysis = analyze(records);
  REQUIRE(analysis.groups.size() == 2);
  REQUIRE(analysis.group_keys.size() == 1);
  for (const Group& group : analysis.groups)
    if (group.rows[0].fields["recipe"] == "blockwise") CHECK_FALSE(group.rows[0].speedup);
}

TEST_CASE("analyze: CPU threads separate groups on the CPU device only", "[analysis]") {
  Record cpu = samples::cpu_record("bf16");
  cpu.env.threads = 2;
  cpu.id = "other";
  const auto on_cpu = set_of({samples::cpu_record("bf16"), cpu});
  CHECK(analyze(on_cpu).groups.size() == 2);
  Record gpu = samples::gpu_record("bf16", 250);
  gpu.env.threads = 2;
  const auto on_gpu = set_of({samples::gpu_record("blockwise", 200), gpu});
  CHECK(analyze(on_gpu).groups.size() == 1);
}

TEST_CASE("by_machine: records are split by machine in order of appearance", "[analysis]") {
  const auto set =
      set_of({samples::cpu_record("bf16"), samples::gpu_record("bf16", 250), samples::cpu_record("mxfp8")});
  const auto parts = by_machine(all_of(set));
  REQUIRE(parts.size() == 2);
  CHECK(parts[0] == RecordRefs{&set.records[0], &set.records[2]});
  CHECK(parts[1] == RecordRefs{&set.records[1]});
}

TEST_CASE("analyze: an empty text equals an unset field", "[analysis]") {
  const auto records = set_of(
      {samples::gpu_record("bf16", 250), with(samples::gpu_record("blockwise", 200), "init_from", "")});
  CHECK(analyze(records).groups.size() == 1);
}

TEST_CASE("analyze: fields that do not change the work separate nothing", "[analysis]") {
  const auto records = set_of({with(samples::gpu_record("bf16", 250), "save_final", "a.safetensors"),
                               with(samples::gpu_record("blockwise", 200), "save_final", "b.safetensors")});
  CHECK(near(analyze(records).groups.at(0).rows.at(1).speedup, 1.25));
}

TEST_CASE("analyze: an edited model file is another model in averages and ratios", "[analysis]") {
  std::vector<Record> all;
  for (const int version : {1, 2})
    for (const char* recipe : {"bf16", "rowwise"})
      for (const int seed : {1, 2}) {
        const Record record = samples::gpu_record(recipe, 100 * version, version, seed);
        all.push_back(with(samples::of_schema_1(record), "model", "mini.json"));
        all.back().id += version == 1 ? "a" : "b";
      }
  const auto records = set_of(all);
  const Analysis analysis = analyze(records);
  REQUIRE(analysis.groups.size() == 2);
  CHECK(analysis.group_keys == std::vector<std::string>{"model"});
  for (const Group& group : analysis.groups) {
    REQUIRE(group.rows.size() == 2);
    CHECK(group.rows[1].members.size() == 2);
    CHECK(group.rows[1].paired_seeds == 2);
    CHECK(near(group.rows[1].loss_delta, 0));
    CHECK(near(group.rows[1].speedup, 1));
  }
  CHECK(analysis.groups[1].rows[0].fields["model"] == "mini.json (version 2)");
}

TEST_CASE("analyze: recipe modifiers separate rows and plain BF16 stays the baseline", "[analysis]") {
  const auto records = set_of({samples::gpu_record("bf16", 250), samples::gpu_record("tensorwise", 200),
                               with(samples::gpu_record("tensorwise", 125), "gather", "fp8")});
  const Analysis analysis = analyze(records);
  REQUIRE(analysis.groups.size() == 1);
  CHECK(analysis.row_keys == std::vector<std::string>{"gather"});
  REQUIRE(analysis.groups[0].rows.size() == 3);
  CHECK(near(analysis.groups[0].rows[1].speedup, 1.25));
  CHECK(near(analysis.groups[0].rows[2].speedup, 2));
}

TEST_CASE("analyze: BF16 with the same modifiers is the preferred baseline", "[analysis]") {
  const auto records = set_of({with(samples::gpu_record("bf16", 250), "head", "bf16"),
                               with(samples::gpu_record("bf16", 240), "head", "recipe"),
                               with(samples::gpu_record("tensorwise", 120), "head", "recipe")});
  CHECK(near(analyze(records).groups.at(0).rows.at(2).speedup, 2));
}

TEST_CASE("analyze: seeds are averaged and losses paired by seed", "[analysis]") {
  // BF16 has seeds 1, 2, 3 and the recipe 2, 3, 4: two pairs. Pairing cancels each seed's own offset.
  std::vector<Record> all;
  for (int seed : {1, 2, 3}) all.push_back(samples::gpu_record("bf16", 250 + seed, 0.1 * seed, seed));
  for (int seed : {2, 3, 4})
    all.push_back(samples::gpu_record("rowwise", 200, 0.1 * seed + 0.001 * seed, seed));
  const auto records = set_of(all);
  const Analysis analysis = analyze(records);
  REQUIRE(analysis.groups.size() == 1);
  REQUIRE(analysis.groups[0].rows.size() == 2);
  const Row& row = analysis.groups[0].rows[1];
  CHECK(row.members.size() == 3);
  CHECK(row.paired_seeds == 2);
  CHECK(near(row.loss_delta, 0.0025));
  CHECK(near(row.speedup, 252.0 / 200));
  // By record, each is compared with BF16 of its own seed; seed 4 has none.
  const Analysis single = analyze(records, RowsBy::record);
  REQUIRE(single.groups.size() == 4);
  CHECK(near(single.groups[1].rows.at(1).loss_delta, 0.002));
  CHECK_FALSE(single.groups[3].rows.at(0).speedup);
}

TEST_CASE("analyze: groups are sorted by numeric size rather than by text or record order", "[analysis]") {
  const auto records = set_of({with(samples::gpu_record("bf16", 250), "seq", 16384),
                               with(samples::gpu_record("bf16", 250), "seq", 2048),
                               with(samples::gpu_record("bf16", 250), "seq", 8192)});
  const Analysis analysis = analyze(records);
  REQUIRE(analysis.groups.size() == 3);
  CHECK(analysis.groups[0].rows[0].fields["seq"] == 2048);
  CHECK(analysis.groups[2].rows[0].fields["seq"] == 16384);
}
