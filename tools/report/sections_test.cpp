// Tests report sections: comparisons, names and omissions.
#include "tools/report/sections.h"

#include <regex>
#include <set>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "results/record/step_time.h"
#include "tools/report/sections_testing.h"

using namespace precbench;

TEST_CASE("label_of: names the recipe and its non-default modifiers", "[sections]") {
  Row row;
  row.fields = nlohmann::ordered_json{
      {"recipe", "tensorwise"}, {"gather", "bf16"}, {"reduce_amax", "off"}, {"head", "bf16"}};
  CHECK(label_of(row) == "tensorwise");
  row.fields["gather"] = "fp8";
  CHECK(label_of(row) == "tensorwise + gather fp8");
  row.fields["keep_bf16"] = "first:1";
  CHECK(label_of(row) == "tensorwise + gather fp8 + keep_bf16 first:1");
}

TEST_CASE("setting_of: adjacent fields of equal value are merged unless they are numbers", "[sections]") {
  std::vector<Record> records;
  for (const char* format : {"bf16", "fp32"})
    for (const int gpus : {1, 2})
      records.push_back(with(
          with(with(with(samples::gpu_record("bf16", 250), "batch", gpus), "gpus", gpus), "master", format),
          "moments", format));
  const RecordSet set = samples::set_of(records);
  const MachineRecords machine = make_input(set).machines.front();
  CHECK(setting_of(machine, machine.analysis.groups.front().rows.front()) ==
        "llama3.2-1b, batch 1, gpus 1, master/moments bf16");
}

TEST_CASE("convergence section: the held-out loss has a column if there is one", "[sections][held_out]") {
  std::vector<Record> records;
  for (const int seed : {1, 2})
    for (const char* recipe : {"bf16", "blockwise"}) {
      records.push_back(samples::gpu_record(recipe, 200, 0, seed));
      const double more = std::string(recipe) == "bf16" ? 0 : 0.0125;
      records.back().training->evaluations = {{50, 640, 3.5, 0.2, 3.5},
                                              {100, 640, 2.5 + more + seed, 0.025, 2.5 + 0.4 * more + seed}};
    }
  const std::string text = section_of(records, "Convergence");
  INFO(text);
  CHECK(contains(text, "held-out loss (nats)"));
  CHECK(contains(lines_with(text, "blockwise").front(), "4.0125 +-0.0250"));
  CHECK(contains(lines_with(text, "blockwise").front(), "4.0050 +-0.0250"));
  CHECK(contains(lines_with(text, "blockwise").front(), "+0.0125 [+0.0125, +0.0125]"));
  for (Record& record : records) record.training->evaluations.clear();
  CHECK_FALSE(contains(section_of(records, "Convergence"), "eld-out"));
}

TEST_CASE("make_input: recipes keep their line types however many there are", "[sections]") {
  RecordSet set = samples::set_of(two_gathers("rowwise"));
  std::map<std::string, int> styles = make_input(set).styles;
  CHECK(styles.at("bf16") == 1);
  CHECK(styles.at("rowwise") == 2);
  CHECK(styles.at("rowwise + gather fp8") == 2 + kRecipeStyles);
  std::vector<Record> many = {samples::gpu_record("bf16", 250)};
  for (int i = 0; i < 20; ++i)
    for (const char* gather : {"bf16", "fp8", "e5m2", "e2m1"})
      many.push_back(with(samples::gpu_record("recipe" + std::to_string(i), 200), "gather", gather));
  set = samples::set_of(many);
  styles = make_input(set).styles;
  std::set<int> others;
  for (const auto& [label, style] : styles) {
    CHECK(style >= 1);
    CHECK(style <= kRecipeStyles * kModifierStyles);
    if (label != "bf16") others.insert(style);
  }
  CHECK(others.count(1) == 0);
  CHECK(others.size() == (kRecipeStyles - 1) * kModifierStyles);
}

TEST_CASE("scaling section: shows the one-GPU row once and constants above and the fastest recipe",
          "[sections]") {
  const std::string text = section_of(two_gathers("tensorwise"), "Scaling over GPUs");
  INFO(text);
  CHECK(contains(text, "llama3.2-1b, 2 GPUs: 2.50x over bf16 with tensorwise + gather fp8"));
  CHECK(lines_with(text, "tensorwise  ").size() == 3);  // 1 and 2 GPUs with one gather, 2 with the other
  CHECK_FALSE(contains(text, "gather bf16"));
  CHECK(contains(text, "step (ms)"));
  CHECK(contains(text, "exposed communication (ms)"));
  CHECK_FALSE(std::regex_search(text, std::regex("batch \\(sequences\\)  ")));  // no column
}

TEST_CASE("scaling section: small traffic keeps its digits and only existing columns are explained",
          "[sections]") {
  std::vector<Record> records = two_gathers("tensorwise");
  // Every record's prediction is 2% above its own step.
  for (Record& record : records)
    if (record.timing)
      record.predicted = PredictedStep{1.02 * step_ms_of_speed(record).value(), 0, 0, 0, "h200"};
  const std::string text = section_of(records, "Scaling over GPUs");
  INFO(text);
  CHECK(contains(text, "sent per GPU 3 MB"));
  CHECK(contains(text, "(+2.0%)"));
  CHECK(contains(text, "Predicted step: what the cost model gave"));
  for (Record& record : records) record.breakdown.reset(), record.predicted.reset();
  const std::string bare = section_of(records, "Scaling over GPUs");
  INFO(bare);
  CHECK_FALSE(contains(bare, "Predicted"));
  CHECK_FALSE(contains(bare, "Exposed"));
  CHECK(contains(bare, "Efficiency: "));
  CHECK(wire_text(5'420'000'000) == "5.42 GB");
  CHECK(wire_text(1500) == "1.5 kB");
}

TEST_CASE("scaling section: ranks that share sequences are compared with one GPU", "[sections][context]") {
  using Fields = std::vector<std::pair<const char*, const char*>>;
  for (const auto& [axis, others] : {std::pair<const char*, Fields>{"context", {}},
                                     {"context", {{"context_exchange", "ring"}}},
                                     {"tensor", {{"tensor_gather", "fp8"}}}}) {
    std::vector<Record> records = two_gathers("tensorwise");
    for (Record& record : records) {
      record.case_fields[axis] = record.case_fields["gpus"];
      if (record.case_fields["gpus"] == 1) continue;
      for (const auto& [field, value] : others) record.case_fields[field] = value;
    }
    const std::string text = section_of(records, "Scaling over GPUs");
    INFO(text);
    CHECK(contains(text, std::string("  ") + axis + "  "));
    CHECK(contains(text, "Efficiency: "));
  }
}

TEST_CASE("speed section: SOL measured uses the best rates of all cases", "[sections]") {
  const auto measured = [](const char* recipe, double bf16, double fp8) {
    Record record = samples::gpu_record(recipe, 100);
    record.breakdown->ops = {{"matmul fprop", "gemm", 1, 20, 20e12, 1},
                             {"matmul wgrad", "gemm", 1, 20, 20e12, 1},
                             {"adamw", "optimizer", 1, 20, 0, 4e10}};
    record.metrics->peaks->measured_bf16_tflops = bf16;
    record.metrics->peaks->measured_fp8_tflops = fp8 > 0 ? std::optional(fp8) : std::nullopt;
    record.metrics->peaks->measured_copy_gb_per_s = 4000;
    return record;
  };
  Record bf16 = measured("bf16", 500, 0), wide = measured("rowwise_gw_hp", 800, 1000),
         rowwise = measured("rowwise", 400, 800), mixed = measured("blockwise", 800, 1000);
  // 10 ms of AdamW, plus the GEMMs at each record's own rates, over 100 ms.
  bf16.metrics->mfu_measured = (10 + 40 + 40) / 100.0;
  wide.metrics->mfu_measured = (10 + 20 + 25) / 100.0;
  rowwise.metrics->mfu_measured = (10 + 25 + 25) / 100.0;
  mixed.metrics->mfu_measured = 0.52;  // no choice of rates gives this
  const std::string text = section_of({bf16, wide, rowwise, mixed}, "Results");
  INFO(text);
  CHECK(contains(text, "SOL measured"));
  CHECK_FALSE(contains(text, "MFU measured"));
  CHECK(contains(lines_with(text, "bf16  ").front(), " 60.0% "));
  CHECK(contains(lines_with(text, "rowwise_gw_hp ").front(), " 55.0% "));
  CHECK(contains(lines_with(text, "rowwise  ").front(), " 50.0% "));
  CHECK(std::regex_search(lines_with(text, "blockwise ").front(), std::regex("blockwise +67.9% +- ")));
}

TEST_CASE("analyze: committed records suffice for SOL measured", "[sections]") {
  const RecordSet set = read_records({PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl.xz"});
  const ReportInput input = make_input(set);
  for (const Group& group : input.machines.at(0).analysis.groups)
    for (const Row& row : group.rows)
      if (row.comparable()) {
        REQUIRE(row.sol_measured);
        CHECK(*row.sol_measured <= *row.record().metrics->mfu_measured * (1 + 1e-9));
      }
}

TEST_CASE("report: a model edited between sweeps is shown as two with a warning", "[sections]") {
  std::vector<Record> records;
  for (const char* version : {"a", "b"})
    for (const int seed : {1, 2}) {
      records.push_back(
          with(samples::of_schema_1(samples::gpu_record("bf16", 250, 0, seed)), "model", "out/mini.json"));
      records.back().id += version;
    }
  const std::string text = section_of(records, "Results");
  INFO(text);
  CHECK(lines_with(text, "out/mini.json (version ").size() == 2);
  CHECK(
      contains(section_of(records, "Warnings"), "out/mini.json changed between these cases: version 1 from"));
}

TEST_CASE("scaling section: records without step times still have a table", "[sections]") {
  std::vector<Record> records = two_gathers("rowwise");
  for (Record& record : records)
    if (record.case_fields["gpus"] == 2) record.timing.reset();
  std::string text = section_of(records, "Scaling over GPUs");
  CHECK(contains(text, "rowwise"));
  CHECK_FALSE(contains(text, "%)"));  // there is no measured step to compare with
  for (Record& record : records)
    if (record.case_fields["gpus"] == 2) {
      record.timing = Timing{};
      record.timing->median_ms = 0;
    }
  CHECK(section_of(records, "Scaling over GPUs") == text);
}

TEST_CASE("convergence section: runs of different lengths show no incomparable loss", "[sections]") {
  Record bf16 = with(samples::gpu_record("bf16", 250), "steps", "auto");
  Record rowwise = with(samples::gpu_record("rowwise", 200, 0.25), "steps", "auto");
  rowwise.training->loss.resize(20);
  const std::string text = section_of({bf16, rowwise}, "Convergence");
  INFO(text);
  CHECK_FALSE(contains(text, "final loss"));
  CHECK_FALSE(contains(text, "grad norm"));
  const auto lines = lines_with(text, "rowwise");
  REQUIRE(lines.size() == 1);
  CHECK(std::regex_search(lines.front(), std::regex("\\+0\\.2500 +20$")));
}

TEST_CASE("speed section: columns do not mention GPUs on the CPU device", "[sections]") {
  const std::string text = section_of({samples::cpu_record("bf16"), samples::cpu_record("mxfp8")}, "Results");
  CHECK_FALSE(contains(text, "GPU"));
  CHECK_FALSE(contains(text, "speed-up"));  // only BF16 has one, and it is 1
}

TEST_CASE("environment section: shows clocks and power and temperature and throttling", "[sections]") {
  Record bf16 = samples::gpu_record("bf16", 250), rowwise = samples::gpu_record("rowwise", 200);
  rowwise.telemetry->sm_clock_min_mhz = 1410;
  rowwise.telemetry->temperature_c = 71;
  rowwise.telemetry->throttle_reasons = {"sw_power_cap", "hw_thermal"};
  rowwise.timing->between_runs = 0.004;
  bf16.timing->between_runs.reset();
  const std::string text =
      std::regex_replace(section_of({bf16, rowwise}, "Environment"), std::regex("\n +"), " ");
  INFO(text);
  CHECK(contains(
      text,
      "NVIDIA H200 while sampling: SM clock 1410 to 1980 MHz, a case's median 1980 MHz, power up to "
      "690 W, up to 71 C, throttled (hw_thermal) in 1 of 2 cases, throttled (sw_power_cap) in 2 of 2 "
      "cases"));
  CHECK(contains(text, "1 case on NVIDIA H200 ran twice, A B B A: the two medians lie at most 0.40% apart"));
  CHECK(contains(text, "board GPU-1, host node7"));
  CHECK_FALSE(contains(section_of({samples::cpu_record("bf16")}, "Environment"), "while sampling"));
}

TEST_CASE("environment section: cases of several boards or builds are distinguished", "[sections]") {
  std::vector<Record> records = {samples::gpu_record("bf16", 250), samples::gpu_record("rowwise", 200),
                                 samples::gpu_record("blockwise", 210)};
  records[1].env.gpu->uuid = "GPU-2";
  records[2].env.gpu->uuid = "GPU-2";
  std::string text = section_of(records, "Environment");
  INFO(text);
  CHECK(contains(text, "A, 1 case: board GPU-1\n"));
  CHECK(contains(text, "B, 2 cases: board GPU-2\n"));
  CHECK(contains(text, "the ratios of 1 setting include that difference"));
  const std::string table = section_of(records, "Results");
  CHECK(std::regex_search(table, std::regex("\nbf16 .* A\n")));
  CHECK(std::regex_search(table, std::regex("\nrowwise .* B\n")));
  // Another setting on the other board is compared with nothing here.
  for (std::size_t i : {1u, 2u}) records[i] = with(records[i], "seq", 4096);
  CHECK(contains(section_of(records, "Environment"), "so no ratio includes that difference"));
  CHECK_FALSE(contains(section_of({records[0]}, "Results"), "made in"));
}

TEST_CASE("warnings section: names the cases and explains weights that did not change", "[sections]") {
  std::vector<Record> records;
  for (const char* master : {"bf16", "fp32"})
    for (const int seq : {2048, 4096})
      records.push_back(with(with(samples::gpu_record("bf16", 250), "master", master), "seq", seq));
  for (const std::size_t i : {0u, 1u})
    records[i].warnings = {"33 of 146 parameter tensors did not change in the first step"};
  records[2].warnings = {"another process uses the GPU"};
  const std::string text = section_of(records, "Warnings");
  INFO(text);
  CHECK(contains(text, "2 of 4 cases (master bf16): 33 of 146 parameter tensors"));
  CHECK(contains(text, "1 of 4 cases (seq 2048, master fp32): another process uses the GPU"));
  CHECK(contains(text, "take --master fp32 or a higher --lr"));
  records[0].warnings = records[1].warnings = {};
  CHECK_FALSE(contains(section_of(records, "Warnings"), "--lr"));
}

TEST_CASE("failures section: an unsupported case is referred to its reason", "[sections]") {
  const Record gather =
      samples::failed_record("rowwise", Status::unsupported, "FP8 gather: only sharded ranks gather weights");
  const std::string text =
      section_of({samples::gpu_record("bf16", 250), gather}, "Failed cases (in no ratio)");
  INFO(text);
  CHECK(contains(text, "against unsupported, try: another value of what the reason names"));
}

TEST_CASE("convergence section: losses and gaps without a verdict, and how many runs diverged", "[sections]") {
  std::vector<Record> records;
  for (const int seed : {1, 2, 3})
    for (const char* recipe : {"bf16", "blockwise", "tensorwise"})
      records.push_back(samples::gpu_record(recipe, 250, recipe[1] == 'l' ? 0.001 : 0, seed));
  for (Record& record : records) {
    if (record.case_fields["recipe"] != "tensorwise" || record.case_fields["seed"] == 1) continue;
    record.status = Status::diverged;
    record.error = "the loss is not finite at step 21";
    record.training->loss.resize(20);
  }
  const std::string text = section_of(records, "Convergence");
  INFO(text);
  CHECK(contains(lines_with(text, "blockwise").front(), "+0.0010"));
  CHECK(contains(lines_with(text, "tensorwise").front(), "diverged: 2 of 3 runs"));
  CHECK(contains(text, "above entropy (nats)"));
  CHECK(contains(text, "precbench study judges"));
  for (const char* verdict : {"equivalent", "inconclusive", "worse", "better", "verdict  ", "margin"})
    CHECK_FALSE(contains(text, verdict));
  std::erase_if(records, [](const Record& record) { return record.case_fields["recipe"] != "bf16"; });
  CHECK_FALSE(contains(section_of(records, "Convergence"), "gap"));
}
