// Tests of what is inferred from a log's numbers: settled speed, convention of FLOPs, contradictions, and the record.
#include "tools/import/import_run.h"

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "results/record/contradiction.h"
#include "results/record/record_line.h"
#include "results/record/schema.h"
#include "tools/import/import_testing.h"

using namespace precbench;
using namespace precbench::import_testing;

namespace {

LogRun run_of(const std::vector<std::int64_t>& steps) {
  LogRun run;
  for (const std::int64_t step : steps) {
    LogSample sample;
    sample.step = step;
    sample.step_s = 1;
    run.samples.push_back(sample);
  }
  return run;
}

ImportValues recipe(const std::string& name) {
  ImportValues given;
  given.recipe = name;
  return given;
}

std::string megatron_log(double tflops, double ms = 2000) {
  std::string text;
  for (int i = 1; i <= 8; ++i)
    text += fmt::format(
        " iteration {:8}/     100 | consumed samples: {} | elapsed time per iteration (ms): {:.1f} | throughput per GPU (TFLOP/s/GPU): "
        "{:.1f} | global batch size:    64 | lm loss: {:.6E} |\n",
        i, 64 * i, i == 1 ? 9 * ms : ms, i == 1 ? tflops / 9 : tflops, 10.0 - 0.1 * i);
  return text;
}

}  // namespace

TEST_CASE("window_of: the usual distance of lines, whatever the first one and gaps are", "[import]") {
  CHECK(window_of(run_of({1, 10, 20, 30, 90, 100})) == 10);
  CHECK(window_of(run_of({1, 10, 20})) == 10);
  CHECK(window_of(run_of({1, 2, 10})) == 1);
  CHECK(window_of(run_of({15, 43, 44})) == 1);
  CHECK(window_of(run_of({450, 460, 470})) == 10);
  CHECK(window_of(run_of({7})) == 1);
  CHECK(window_of(run_of({})) == 1);
}

TEST_CASE("import_run: torchtitan's speed is tokens over time of lines after compilation", "[import]") {
  const ImportedRun run = imported(torchtitan_log(), recipe("mxfp8"));
  INFO(joined(run.lines));
  REQUIRE(run.record);
  const Record& record = *run.record;
  // Lines 20 to 70; the one of step 10 has the steps that compile.
  const std::vector<double> tps = {6500, 6510, 6490, 6505, 6495, 6500};
  double time = 0;
  for (const double rate : tps) time += 1 / rate;
  const double mean = static_cast<double>(tps.size()) / time;
  CHECK(*record.metrics->tokens_per_s_per_gpu == Approx(mean).epsilon(1e-9));
  CHECK(record.timing->samples_ms.size() == 6);
  CHECK(record.timing->samples_ms.front() == Approx(65536e3 / (4 * 6500.0)));
  CHECK_FALSE(record.timing->iqr_ms);  // of windows
  CHECK(record.source->window_steps == 10);
  CHECK(record.source->first_step == 20);
  CHECK(record.source->last_step == 70);
  CHECK(record.source->steps == std::vector<std::int64_t>{1, 10, 20, 30, 40, 50, 60, 70});
  CHECK(record.source->convention == "full");
  CHECK(*record.source->claimed_mfu == Approx(6500 * kFull / 989e12).epsilon(2e-3));
  CHECK(*record.metrics->mfu_bf16 == Approx(mean * kCausal / 989e12).epsilon(1e-9));
  CHECK(record.source->memory == "reserved");
  CHECK(record.method_version == kImportMethodVersion);
  CHECK_FALSE(record.definition);
  CHECK(record.created == "2026-03-04T10:04:02Z");
  CHECK(Schema::record().violations(record) == std::vector<std::string>{});
  CHECK_FALSE(not_a_record_reason(record));
  CHECK(contradiction(record).value_or("none") == "none");
  CHECK(contains(
      joined(run.lines),
      "llama3.1-8b: 8,030,261,248 parameters and FLOPs/token agree; seq 8192, global batch 8, 4 x NVIDIA H200"));
  CHECK(contains(
      joined(run.lines),
      "tokens/s per GPU 6,500 (steps 20-70, mean; median 6,500)   MFU 33.8% (log: 38.1%; it counts attention in full)"));
}

TEST_CASE("import_run: what the log does not say is named with its flag, and there is no record",
          "[import]") {
  const ImportedRun run = imported(torchtitan_log());
  CHECK_FALSE(run.record);
  CHECK(run.missing == std::vector<std::string>{"recipe (--recipe)"});
  CHECK(contains(joined(run.lines), "tokens/s per GPU 6,500"));
  const ImportedRun bare = imported(torchtitan_steps());
  CHECK_FALSE(bare.record);
  CHECK(bare.missing.size() == 6);
  CHECK(contains(joined(bare.lines), "tokens/s per GPU 6,500"));
}

TEST_CASE("import_run: the convention comes from the numbers and catches another length", "[import]") {
  CHECK(imported(torchtitan_log({.flops = kCausal}), recipe("bf16")).record->source->convention == "causal");
  const ImportedRun neither = imported(torchtitan_log({.flops = 1.06 * kCausal}), recipe("bf16"));
  CHECK_FALSE(neither.record->source->convention);
  CHECK(contains(joined(neither.lines), "no match"));
  // Megatron's TFLOP/s need seq, global batch and GPUs: another --seq agrees with no form.
  ImportValues given = recipe("bf16");
  given.model = "llama3.1-8b", given.gpu = "h200", given.gpus = 64, given.seq = 8192;
  const double tflops = kFull * 64 * 8192 / 2.0 / 64 / 1e12;
  const ImportedRun full = imported(megatron_log(tflops), given);
  REQUIRE(full.record);
  CHECK(full.record->source->convention == "full");
  CHECK(*full.record->metrics->tokens_per_s == Approx(64 * 8192 / 2.0));
  given.seq = 4096;
  CHECK_FALSE(imported(megatron_log(tflops), given).record->source->convention);
  given.seq = 8192, given.gpus = 128;
  CHECK_FALSE(imported(megatron_log(tflops), given).record->source->convention);
}

TEST_CASE("import_run: fewer than three settled lines give no speed", "[import]") {
  const ImportedRun run = imported(torchtitan_log({.tps = {1200, 5900, 6500, 6510}}), recipe("bf16"));
  REQUIRE(run.record);
  CHECK_FALSE(run.record->metrics);
  CHECK_FALSE(run.record->timing);
  CHECK(run.record->training->loss.size() == 4);
  CHECK(contains(joined(run.lines), "speed: 2 settled lines, 3 are needed"));
}

TEST_CASE("import_run: steps of a smaller batch, before it has ramped up, are no samples", "[import]") {
  std::string text = megatron_log(100, 2000);
  for (std::size_t at = text.find("size:    64"), lines = 0; lines < 5;
       at = text.find("size:    64", at), ++lines)
    text.replace(at, 11, "size:    16");
  ImportValues given = recipe("bf16");
  given.model = "llama3.1-8b", given.gpu = "h200", given.gpus = 64, given.seq = 8192;
  const ImportedRun run = imported(text, given);
  REQUIRE(run.record);
  CHECK(run.record->source->first_step == 6);
  CHECK(run.record->timing->samples_ms.size() == 3);
}

TEST_CASE("import_run: spikes count in the mean", "[import]") {
  std::string text;
  for (const double s : {90.0, 6.0, 5.0, 9.0, 2.0, 4.0, 2.0, 2.0})
    text += fmt::format("Step Time : {:.2f}s GPU utilization: 300.0MODEL_TFLOP/s/GPU\n", s);
  ImportValues given = recipe("mxfp8");
  given.model = "llama3.1-8b", given.gpu = "h200", given.gpus = 64, given.seq = 8192, given.global_batch = 64;
  const ImportedRun run = imported(text, given);
  REQUIRE(run.record);
  CHECK(run.record->timing->samples_ms == std::vector<double>{2000, 4000, 2000, 2000});
  CHECK(*run.record->metrics->tokens_per_s == Approx(64 * 8192 / 2.5));
  CHECK(*run.record->timing->median_ms == 2000);
}

TEST_CASE("import_run: totals of a run give a speed only if they count tokens and no evaluation",
          "[import]") {
  ImportValues given = recipe("bf16");
  given.model = "llama3.1-8b", given.gpu = "h200", given.gpus = 8, given.seq = 8192, given.global_batch = 8;
  const auto state = [](const std::string& eval, const std::string& tokens) {
    return "{\"log_history\": [\n{\"loss\": 2.5, \"step\": 20},\n" + eval +
           "{\"step\": 40, \"train_runtime\": 100.0" + tokens + ", \"total_flos\": 1.8011819e+16}]}\n";
  };
  const ImportedRun run = imported(state("", ", \"num_input_tokens_seen\": 400000"), given);
  REQUIRE(run.record);
  CHECK(*run.record->metrics->tokens_per_s == Approx(4000));
  CHECK(run.record->source->convention == "parameters");
  CHECK(contradiction(*run.record).value_or("none") == "none");
  const ImportedRun evaluated =
      imported(state("{\"eval_loss\": 2.4, \"step\": 20},\n", ", \"num_input_tokens_seen\": 400000"), given);
  CHECK_FALSE(evaluated.record->metrics);
  CHECK(contains(joined(evaluated.lines), "includes evaluation"));
  const ImportedRun uncounted = imported(state("", ", \"num_input_tokens_seen\": 0"), given);
  CHECK_FALSE(uncounted.record->metrics);
  CHECK(contains(joined(uncounted.lines), "does not count tokens"));
}

TEST_CASE("import_run: values that the log contradicts are refused", "[import]") {
  ImportValues given = recipe("bf16");
  given.gpus = 8;
  CHECK(contains(refusal_of([&] { imported(torchtitan_log(), given); }), "--gpus 8: the log says 4"));
  given = recipe("bf16");
  given.model = "llama3.1-8b", given.gpu = "h200", given.gpus = 128, given.seq = 4096,
  given.global_batch = 128;
  std::string text;
  for (int i = 4; i < 9; ++i)
    text += fmt::format(
        "step {:05}/20000 (0.05%) | loss: 7.5 | lrm: 1.00 | dt: 500.00ms | tok/sec: 1,048,576 | total time: 0.1m\n",
        i);
  CHECK(imported(text, given).record);  // 524,288 tokens a step
  given.global_batch = 64;
  const ImportedRun wrong = imported(text, given);
  CHECK_FALSE(wrong.record);
  CHECK(contains(joined(wrong.lines), "check --seq and --global-batch"));
}

TEST_CASE("import_run: a model of another size gives no record, and a variant does", "[import]") {
  const auto sized = [](const std::string& parameters) {
    std::string text = torchtitan_log();
    const std::string logged = "8,030,261,248";
    text.replace(text.find(logged), logged.size(), parameters);
    ImportValues given = recipe("bf16");
    given.model = "llama3.1-8b";
    return imported(text, given);
  };
  CHECK_FALSE(sized("1,235,814,400").record);
  CHECK(contains(joined(sized("1,235,814,400").lines),
                 "no record: the log's model has 1,235,814,400 parameters"));
  const ImportedRun variant = sized("8,030,300,000");
  REQUIRE(variant.record);
  CHECK(contains(joined(variant.record->warnings), "8,030,300,000 parameters"));
}

TEST_CASE("import_run: the clock of the lines shows a wrong length, batch or number of GPUs", "[import]") {
  // 10 steps of 8 x 8192 tokens on 4 GPUs take 26 s by the clock.
  const auto warned = [](std::int64_t seq, std::int64_t gpus) {
    ImportValues given = recipe("bf16");
    given.model = "llama3.1-8b", given.gpu = "h200", given.seq = seq, given.global_batch = 8,
    given.gpus = gpus;
    const ImportedRun run = imported(torchtitan_steps(), given);
    REQUIRE(run.record);
    return contains(joined(run.record->warnings), "by the clock of the lines a step takes");
  };
  CHECK_FALSE(warned(8192, 4));
  CHECK(warned(4096, 4));
  CHECK(warned(16384, 4));
  CHECK(warned(8192, 2));
  CHECK(warned(8192, 8));
}

TEST_CASE("import_run: lines without steps are called lines", "[import]") {
  std::string text;
  for (int i = 1; i < 4; ++i)
    text +=
        fmt::format("{{'loss': {}.5, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.{}}}\n", 9 - i, i);
  const std::string said = joined(imported(text).lines);
  CHECK(contains(said, "loss 6.5000 at line 3"));
  CHECK(contains(said, "its lines are counted"));
}

TEST_CASE("import_run: counts and rates that no run can have are as if the log did not say them",
          "[import]") {
  ImportValues given = recipe("bf16");
  given.model = "llama3.1-8b", given.gpu = "h200";
  for (const char* ranks : {"0", "-2", "9223372036854775807"}) {
    const ImportedRun run = imported(
        fmt::format(
            "batch_size B=4 * seq_len T=2048 * num_processes={} and total_batch_size=8192\n"
            "step    5/100 | loss 4.255000 (+nanz)| norm 2.0000 (+nanz)| lr 3.00e-04 | 160.25 ms | -100.0% bf16 MFU | 51000 "
            "tok/s\n",
            ranks),
        given);
    CHECK_FALSE(run.record);
    CHECK(run.missing == std::vector<std::string>{"number of GPUs (--gpus)"});
  }
  const auto baseline = [&](const char* rate) {
    return imported(fmt::format(
        "{{\"model\":\"8b\",\"recipe\":\"bf16\",\"gpus\":4,\"batch\":1,\"seq\":4096,\"median_ms\":460.0,\"run_ms\":459.0,"
        "\"tokens_per_s\":{},\"peak_gib\":47.0,\"torch\":\"2.11.0\",\"gpu\":\"NVIDIA H200\"}}\n",
        rate));
  };
  CHECK(baseline("35695").record->metrics);
  for (const char* rate : {"5e-324", "1e300"}) {
    const ImportedRun run = baseline(rate);
    CHECK(contains(joined(run.lines), "speed: the log has no time of the run"));
    CHECK((!run.record || !run.record->metrics));
  }
}

TEST_CASE("import_run: an impossible MFU gives no record", "[import]") {
  ImportValues given = recipe("bf16");
  given.model = "llama3.1-8b", given.gpu = "h200", given.gpus = 2, given.seq = 8192, given.global_batch = 64;
  std::string text;
  for (int i = 4; i < 9; ++i)
    text += fmt::format(
        "step {:05}/20000 (0.05%) | loss: 7.5 | lrm: 1.00 | dt: 500.00ms | tok/sec: 1,048,576 | total time: 0.1m\n",
        i);
  const ImportedRun run = imported(text, given);
  CHECK_FALSE(run.record);
  CHECK(contains(joined(run.lines), "is impossible; check --model"));
}

TEST_CASE("import_run: a loss that is not finite makes the record diverged", "[import]") {
  std::string text = torchtitan_log();
  const std::size_t at = text.rfind("loss:");
  text.replace(at + 5, 9, "      nan");
  const ImportedRun run = imported(text, recipe("nvfp4"));
  REQUIRE(run.record);
  CHECK(run.record->status == Status::diverged);
  CHECK(contains(*run.record->error, "step 70"));
}

TEST_CASE("import_run: the id depends on the work and not on the speed, the log or its length", "[import]") {
  const Record one = *imported(torchtitan_log(), recipe("bf16")).record;
  CHECK(one.id == imported(torchtitan_log({.tps = {900, 5000, 6000, 6001, 6002, 6003, 6004}}), recipe("bf16"))
                      .record->id);
  CHECK(one.id != imported(torchtitan_log(), recipe("mxfp8")).record->id);
  ImportValues seeded = recipe("bf16");
  seeded.seed = 3;
  CHECK(one.id != imported(torchtitan_log(), seeded).record->id);
}
