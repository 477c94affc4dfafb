// Lines of each format: what is read, what is not, and how runs are told apart. The lines are written for these tests.
#include "tools/import/log_format.h"

#include <cmath>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "tools/import/import_testing.h"

using namespace precbench;
using namespace precbench::import_testing;

namespace {

std::string format_of(const LogFile& log) { return log.format ? log.format->name : "none"; }

}  // namespace

TEST_CASE("read_log: a torchtitan log with escapes is read whole", "[import]") {
  const LogFile log = log_of(torchtitan_log());
  REQUIRE(format_of(log) == "torchtitan");
  CHECK(log.lines.used == 8);
  CHECK(log.lines.header == 5);
  CHECK(log.lines.skipped == 0);
  CHECK_FALSE(log.cut);
  REQUIRE(log.runs.size() == 1);
  const LogRun& run = log.runs.front();
  REQUIRE(run.samples.size() == 8);
  CHECK(run.samples[3].step == 30);
  CHECK(*run.samples[3].tokens_per_s_per_gpu == 6510);
  CHECK(*run.samples[3].loss == Approx(9.15385).epsilon(1e-6));
  CHECK(run.samples[3].rank == 0);
  CHECK(run.facts.parameters == 8030261248);
  CHECK(run.facts.gpus == 4);
  CHECK(run.facts.global_batch == 8);
  CHECK(run.facts.seq == 8192);
  CHECK(run.facts.gpu == "NVIDIA H200");
  CHECK(run.memory == MemoryKind::reserved);
  CHECK(run.memory_bytes == std::llround(58.35 * 0x1p30));
}

TEST_CASE("read_log: escapes that lost their ESC byte, wps, and lines of validation", "[import]") {
  const LogFile log = log_of(
      "2024-10-01 10:00:00,000 - root - INFO - step:  1  loss: 10.5000  mmemory: 20.00GiB(50.00%)  wps: 1,100  mfu: 10.00%\n"
      "2024-10-01 10:00:09,000 - root - INFO - validate step: 2  loss: 10.4  memory: 20.00GiB(50.00%)  tps: 9,000\n"
      "2024-10-01 10:00:10,000 - root - INFO - [31mstep:  2  [32mloss: 10.2500  mmemory: 21.00GiB(52.00%)  wps: 2,200  mfu: N/A\n"
      "a line of another program\n");
  REQUIRE(format_of(log) == "torchtitan");
  REQUIRE(log.runs.size() == 1);
  CHECK(log.runs[0].samples.size() == 2);
  CHECK(*log.runs[0].samples[1].tokens_per_s_per_gpu == 2200);
  CHECK_FALSE(log.runs[0].samples[1].mfu);
  CHECK(log.runs[0].memory_bytes == 21 * (std::int64_t{1} << 30));
  CHECK(log.lines.header == 1);
  CHECK(log.lines.skipped == 1);
  CHECK(log.lines.first_skipped == "a line of another program");
}

TEST_CASE("read_log: lines of several ranks count once, and two runs in one log are two", "[import]") {
  const std::string one = torchtitan_steps({.rank = "[rank0]:"}),
                    two = torchtitan_steps({.rank = "[rank1]:"});
  std::string mixed;
  for (std::size_t a = 0, b = 0; a < one.size(); a = one.find('\n', a) + 1, b = two.find('\n', b) + 1)
    mixed += one.substr(a, one.find('\n', a) + 1 - a) + two.substr(b, two.find('\n', b) + 1 - b);
  const LogFile ranks = log_of(mixed);
  REQUIRE(ranks.runs.size() == 1);
  CHECK(ranks.runs[0].samples.size() == 8);
  // All lines of one rank after all of another, as files of ranks are joined.
  CHECK(log_of(one + two).runs.size() == 1);
  const LogFile runs = log_of(torchtitan_log() + torchtitan_log());
  REQUIRE(runs.runs.size() == 2);
  CHECK(runs.runs[1].samples.size() == 8);
  CHECK(runs.runs[1].facts.gpus == 4);
  // Without a header the step that starts again tells.
  CHECK(log_of(one + one).runs.size() == 2);
}

TEST_CASE("read_log: a last line without an end is left out, since a shorter number is another number",
          "[import]") {
  std::string text = torchtitan_log();
  text.resize(text.rfind("tps:") + 7);  // "tps: 6,"
  const LogFile log = log_of(text);
  CHECK(log.cut);
  REQUIRE(log.runs.size() == 1);
  CHECK(log.runs[0].samples.size() == 7);
}

TEST_CASE("read_log: Megatron-LM's lines, arguments and memory", "[import]") {
  const LogFile log = log_of(
      "using world size: 16, data-parallel size: 8\n"
      "  seq_length ...................................... 4096\n"
      "  bf16 ............................................ True\n"
      "Number of parameters in transformer block in billions:  6.98\n"
      " [2026-02-01 08:00:10] iteration       10/     500 | consumed samples:         1280 | elapsed time per iteration (ms): 2500.0 | "
      "throughput per GPU (TFLOP/s/GPU): 410.5 | learning rate: 1.000E-05 | global batch size:   128 | lm loss: 9.500000E+00 | loss "
      "scale: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
      "[Rank 0] (after 10 iterations) memory (MB) | allocated: 100.5 | max allocated: 2048.0 | reserved: 3000.0 | max reserved: 3000.0\n"
      " [2026-02-01 08:00:35] iteration       20/     500 | consumed samples:         2560 | elapsed time per iteration (ms): 2400.0 | "
      "learning rate: 1.000E-05 | global batch size:   128 | loss scale: 1.0 | number of skipped iterations:  10 | number of nan "
      "iterations:   0 |\n");
  REQUIRE(format_of(log) == "megatron-lm");
  REQUIRE(log.runs.size() == 1);
  const LogRun& run = log.runs[0];
  REQUIRE(run.samples.size() == 2);
  CHECK(*run.samples[0].step_s == 2.5);
  CHECK(*run.samples[0].tflops == 410.5);
  CHECK(run.samples[0].loss == 9.5);
  CHECK_FALSE(run.samples[1].loss);  // skipped iterations have none
  CHECK(run.facts.gpus == 16);
  CHECK(run.facts.seq == 4096);
  CHECK(run.memory == MemoryKind::allocated);
  CHECK(run.memory_bytes == std::int64_t{2} << 30);
  CHECK(log.lines.skipped == 0);
}

TEST_CASE("read_log: Primus writes now/average, of which the first counts", "[import]") {
  const LogFile log = log_of(
      "[[32m20260201 06:00:00[0m][[36mrank-7/8[0m][[1mINFO [0m] iteration 300/ 500 | consumed samples: 38400 | elapsed time per "
      "iteration (ms): 13000.0/13200.5 | hip mem usage/free/total/usage_ratio: 150.00GB/105.98GB/255.98GB/58.60% | tokens per GPU "
      "(tokens/s/GPU): 10082.5/9900.1 | global batch size: 128 | lm loss: 3.5E+00/3.6E+00 |\n");
  REQUIRE(format_of(log) == "megatron-lm");
  const LogSample& sample = log.runs.at(0).samples.at(0);
  CHECK(*sample.step_s == 13);
  CHECK(*sample.tokens_per_s_per_gpu == 10082.5);
  CHECK(log.runs[0].memory == MemoryKind::driver);
}

TEST_CASE("read_log: Megatron-Bridge's line of the step time belongs to the iteration behind it",
          "[import]") {
  const LogFile both = log_of(
      "w0 Step Time : 9.00s GPU utilization: 600.5MODEL_TFLOP/s/GPU\n"
      "w0  [2026-02-01 15:00:09] iteration        7/      50 | consumed samples: 3584 | elapsed time per iteration (ms): 9001.5 | global "
      "batch size:   512 | lm loss: 8.000000E+00 |\n"
      "[Rank 0] (after 7 iterations) memory (GB) | mem-allocated-gigabytes: 10.5 | mem-max-allocated-gigabytes: 12.5\n");
  REQUIRE(format_of(both) == "megatron-bridge");
  REQUIRE(both.runs.at(0).samples.size() == 1);
  CHECK(*both.runs[0].samples[0].step_s == 9.0015);
  CHECK(*both.runs[0].samples[0].tflops == 600.5);
  CHECK(both.runs[0].memory_bytes == 12'500'000'000);
  std::string alone;
  for (int i = 0; i < 9; ++i)
    alone += fmt::format("Step Time : {}.5s GPU utilization: 300.0MODEL_TFLOP/s/GPU\n", i < 4 ? 9 : 2);
  const LogFile steps = log_of(alone);
  REQUIRE(format_of(steps) == "megatron-bridge");
  REQUIRE(steps.runs.at(0).samples.size() == 9);
  CHECK(steps.runs[0].samples[8].step == 9);
  CHECK(steps.lines.used == 9);
  CHECK(steps.lines.header == 0);
}

TEST_CASE("read_log: NeMo's lines behind a launcher's prefix", "[import]") {
  std::string text;
  for (int i = 0; i < 4; ++i)
    text += fmt::format(
        "[2026-02-01T14:00:0{}+00:00] job/0 Training epoch 0, iteration {}/99 | lr: 1e-05 | global_batch_size: 64 | global_step: {} | "
        "max_memory_reserved: 64000000000 | max_memory_allocated: 62000000000 | reduced_train_loss: 7.{} | train_step_timing in s: 3.0{} | "
        "TFLOPS_per_GPU: 1.1e+03 | consumed_samples: {}\n",
        i, i, i, i, i, 64 * (i + 1));
  const LogFile log = log_of(text);
  REQUIRE(format_of(log) == "nemo");
  REQUIRE(log.runs.at(0).samples.size() == 4);
  CHECK(log.runs[0].samples[0].step == 0);
  CHECK(*log.runs[0].samples[2].step_s == 3.02);
  CHECK(*log.runs[0].samples[2].tflops == 1100);
  CHECK(log.runs[0].memory_bytes == 62'000'000'000);
}

TEST_CASE("read_log: trainer_state.json has losses, and totals alone have times", "[import]") {
  const std::string text =
      "{\"epoch\": 1.0, \"global_step\": 40,\n \"log_history\": [\n"
      "  {\"epoch\": 0.5, \"loss\": 2.5, \"step\": 20},\n  {\"epoch\": 1.0, \"loss\": NaN, \"step\": 40},\n"
      "  {\"step\": 40, \"train_runtime\": 100.0, \"num_input_tokens_seen\": 400000, \"total_flos\": 1.8e16}],\n"
      " \"max_steps\": 40}";
  const LogFile log = log_of(text);
  REQUIRE(format_of(log) == "trainer-state");
  REQUIRE(log.runs.size() == 1);
  CHECK(log.runs[0].samples.size() == 2);
  CHECK(std::isnan(*log.runs[0].samples[1].loss));
  REQUIRE(log.runs[0].whole);
  CHECK(*log.runs[0].whole->tokens == 400000);
  CHECK_FALSE(log.runs[0].whole->evaluations);
  // Half of it is no JSON, so nothing is known.
  CHECK(format_of(log_of(text.substr(0, text.size() / 2))) == "none");
}

TEST_CASE("read_log: lines of Transformers and axolotl are told apart by their keys", "[import]") {
  const LogFile plain = log_of(
      "  5%|#    | 10/200 [00:10<03:10]\r{'loss': 2.1, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
      "{'loss': '2.0', 'grad_norm': '0.4', 'learning_rate': '1e-05', 'epoch': '0.2'}\n"
      "{'eval_loss': 1.9, 'eval_runtime': 3.0, 'epoch': 0.2}\n"
      "{'train_runtime': 60.0, 'train_loss': 2.05, 'epoch': 0.2}\n");
  REQUIRE(format_of(plain) == "trainer");
  REQUIRE(plain.runs.at(0).samples.size() == 2);
  CHECK(plain.runs[0].samples[1].loss == 2.0);
  CHECK(plain.lines.header == 2);
  const LogFile axolotl = log_of(
      "{'loss': 2.1, 'learning_rate': 1e-05, 'memory/max_allocated (GiB)': 17.5, 'tokens_per_second_per_gpu': 900.0, 'epoch': 0.1}\n");
  REQUIRE(format_of(axolotl) == "axolotl");
  CHECK(axolotl.runs.at(0).memory_bytes == std::llround(17.5 * 0x1p30));
  CHECK_FALSE(axolotl.runs[0]
                  .samples.at(0)
                  .tokens_per_s_per_gpu);  // labelled tokens alone, over the logging interval
}

TEST_CASE("read_log: nanochat, llm.q, llm.c, DeepSpeed and Composer", "[import]") {
  const LogFile nanochat = log_of(
      "step 00010/20000 (0.05%) | loss: 7.500000 | lrm: 1.00 | dt: 500.00ms | tok/sec: 1,048,576 | bf16_mfu: 50.00 | total time: 0.1m\n"
      "Step 00010 | Validation bpb: 1.9\n");
  REQUIRE(format_of(nanochat) == "nanochat");
  CHECK(*nanochat.runs.at(0).samples.at(0).tokens_per_s == 1048576);
  CHECK_FALSE(nanochat.runs[0].samples[0].mfu);

  const LogFile llmq = log_of(
      "[T] step     7 [  1.0%] | time:  5000 ms | norm   9.250000 | loss   8.500000 | tps 104857 | sol 58.0%\n"
      "[V] step     8 [  0.0%] | time:   100 ms | eval   8.400000 | train  8.500000 | tps  200k\n");
  REQUIRE(format_of(llmq) == "llm.q");
  CHECK(*llmq.runs.at(0).samples.at(0).step_s == 5);
  CHECK(llmq.runs[0].samples[0].loss == 8.5);
  CHECK(llmq.lines.header == 1);
  const LogFile json = log_of(
      "[\n  {\"log\": \"gpu-model\", \"rank\": 0, \"name\": \"NVIDIA GeForce RTX 4090\"},\n"
      "  {\"log\": \"step\", \"step\": 3, \"step_tokens\": 524288, \"duration_ms\": 10000, \"loss\": 7.25},\n]\n");
  REQUIRE(format_of(json) == "llm.q");
  CHECK(*json.runs.at(0).samples.at(0).tokens_per_s == Approx(52428.8));
  CHECK(json.runs[0].facts.gpu == "NVIDIA GeForce RTX 4090");

  const LogFile llmc = log_of(
      "batch_size B=4 * seq_len T=1024 * num_processes=2 and total_batch_size=8192\n"
      "step    5/100 | loss 4.250000 (+nanz)| norm 2.0000 (+nanz)| lr 3.00e-04 | 160.25 ms | -100.0% bf16 MFU | 51000 tok/s\n");
  REQUIRE(format_of(llmc) == "llm.c");
  CHECK(*llmc.runs.at(0).samples.at(0).step_s == 0.16025);
  CHECK_FALSE(llmc.runs[0].samples[0].tokens_per_s);  // an exponential average
  CHECK(llmc.runs[0].facts.tokens_per_step == 8192);
  const LogFile main =
      log_of("s:0 tel:11.0\ns:0 trl:11.02 lr:0.000001 norm:14.9\ns:1 trl:10.95 lr:0.000002 norm:15.1\n");
  REQUIRE(format_of(main) == "llm.c");
  CHECK(main.runs.at(0).samples.size() == 2);

  const LogFile deepspeed = log_of(
      "[2026-02-01 02:00:00,415] [INFO] [logging.py:96:log_dist] [Rank 0] step=100, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]\n"
      "[2026-02-01 02:00:00,417] [INFO] [timer.py:260:stop] epoch=0/micro_step=400/global_step=100, RunningAvgSamplesPerSec=25.5, "
      "CurrSamplesPerSec=26.25, MemAllocated=4.00GB, MaxMemAllocated=38.00GB\n"
      "[2026-02-01 02:00:01,000] [INFO] [timer.py:189:stop] 0/140, SamplesPerSec=83.5, MemAllocated=0.26GB, MaxMemAllocated=9.02GB\n");
  REQUIRE(format_of(deepspeed) == "deepspeed");
  REQUIRE(deepspeed.runs.at(0).samples.size() == 2);
  CHECK(*deepspeed.runs[0].samples[0].samples_per_s == 26.25);
  CHECK(deepspeed.runs[0].samples[1].step == 140);

  const LogFile composer = log_of(
      "num_gpus_per_node: 8\nnum_nodes: 2\n[epoch=1][batch=5/9]:\n         Train loss/train/total: 8.5\n"
      "         Train throughput/tokens_per_sec: 20000.0\n         Train throughput/device/tokens_per_sec: 1250.0\n"
      "[epoch=1][batch=6/9]:  Train metrics/train/LanguageCrossEntropy: 8.25\n");
  REQUIRE(format_of(composer) == "composer");
  REQUIRE(composer.runs.at(0).samples.size() == 2);
  CHECK(*composer.runs[0].samples[0].tokens_per_s_per_gpu == 1250);
  CHECK(composer.runs[0].samples[1].loss == 8.25);
  CHECK(composer.runs[0].facts.gpus == 16);
  CHECK(composer.lines.used == 2);
}

TEST_CASE("read_log: our PyTorch baseline's lines are a run each", "[import]") {
  const LogFile log = log_of(
      R"({"model": "llama3.1-8b", "recipe": "bf16", "gpus": 4, "batch": 1, "seq": 4096, "median_ms": 460.0, "run_ms": 459.0, )"
      R"("tokens_per_s": 35695, "peak_gib": 47.0, "created": "2026-02-01T02:00:00Z", "torch": "2.11.0", "gpu": "NVIDIA H200"})"
      "\n"
      R"({"model": "8b", "recipe": "tensorwise", "gpus": 4, "batch": 1, "seq": 4096, "accumulation": 2, "median_ms": 371.0, "run_ms": 380.0, )"
      R"("tokens_per_s": 44162, "peak_gib": 45.0, "created": "2026-02-01T02:01:00Z", "torch": "2.11.0", "gpu": "NVIDIA H200"})"
      "\n"
      R"({"model": "8b", "recipe": "bf16", "gpus": 2, "batch": 1, "seq": 8192, "run_ms": 380.0, "tokens_per_s": 21000, "tensor": 2})"
      "\n");
  REQUIRE(format_of(log) == "pytorch-baseline");
  REQUIRE(log.runs.size() == 3);
  CHECK(log.runs[2].facts.global_batch == 1);  // two tensor-parallel ranks share a sequence
  CHECK(log.runs[1].facts.recipe == "tensorwise");
  CHECK(log.runs[1].whole->seconds == Approx(2 * 4 * 4096 / 44162.0));
  CHECK(log.runs[1].facts.global_batch == 8);
  CHECK(log.runs[1].facts.model == "llama3.1-8b");
}

TEST_CASE("mapped_format: columns of CSV and JSON lines by a file", "[import]") {
  const auto map = [](std::vector<MapItem> items) {
    for (MapItem& item : items) item.place = "map.toml:1";
    return mapped_format(items, "map.toml");
  };
  const std::vector<MapItem> items = {{"program", {"my-trainer"}, {}},
                                      {"step", {"iter"}, {}},
                                      {"loss", {"train/loss"}, {}},
                                      {"step_time", {"dt", "ms"}, {}},
                                      {"tokens_per_s", {"tps", "gpu"}, {}},
                                      {"memory", {"mem", "GiB", "allocated"}, {}},
                                      {"mfu", {"util", "%"}, {}},
                                      {"window", {"mean"}, {}},
                                      {"warmup", {"0"}, {}}};
  const LogFormat format = map(items);
  CHECK(format.program == "my-trainer");
  CHECK(format.window_mean);
  const LogFile csv = log_of(
      "a title\niter, dt,\"train/loss\",tps,mem,util\n10,250.5,\"3.5\",1200,40.5,41\n20,x,3.4,1201,41.5,40\n",
      &format);
  REQUIRE(csv.runs.size() == 1);
  CHECK(csv.lines.used == 2);
  CHECK(csv.lines.header == 1);
  CHECK(csv.lines.skipped == 1);
  const LogSample& sample = csv.runs[0].samples.at(0);
  CHECK(*sample.step_s == Approx(0.2505));
  CHECK(sample.loss == 3.5);
  CHECK(*sample.tokens_per_s_per_gpu == 1200);
  CHECK(*sample.mfu == Approx(0.41));
  CHECK_FALSE(csv.runs[0].samples.at(1).step_s);
  CHECK(csv.runs[0].memory_bytes == std::llround(41.5 * 0x1p30));
  const LogFile json = log_of("{\"iter\": 10, \"dt\": 250.5, \"train/loss\": NaN}\n", &format);
  REQUIRE(json.runs.size() == 1);
  CHECK(std::isnan(*json.runs[0].samples.at(0).loss));
  const auto refusal = [&](MapItem bad) {
    std::vector<MapItem> changed = {{"program", {"p"}, {}}, {"step", {"iter"}, {}}};
    changed.push_back(std::move(bad));
    return refusal_of([&] { map(changed); });
  };
  CHECK(contains(refusal({"step_time", {"dt", "h"}, {}}),
                 "map.toml:1: step_time: unknown unit \"h\"; it is one of s, ms, us"));
  CHECK(contains(refusal({"memory", {"mem", "GiB"}, {}}), "needs [column, unit, kind]"));
  CHECK(contains(refusal({"lose", {"x"}, {}}), "unknown key \"lose\""));
  CHECK(contains(refusal({"window", {"all"}, {}}), "is not one of step, mean"));
  CHECK(contains(refusal({"warmup", {"-1"}, {}}), "is not a number of steps"));
  CHECK(contains(refusal_of([&] { map({{"program", {"p"}, {}}}); }), "step is missing"));
}

TEST_CASE("read_log: text of no known format has no run", "[import]") {
  const LogFile log = log_of("hello\nloss is 3 at step 4\n\x1b]0;title\x07 \xff\xfe\n");
  CHECK(format_of(log) == "none");
  CHECK(log.runs.empty());
  CHECK(log.lines.first_skipped == "hello");
  CHECK_THROWS_AS(find_log_format("tensorboard"), InvalidInput);
}

TEST_CASE("RunCollector: a log has a bounded number of steps", "[import]") {
  RunCollector runs;
  LogSample sample;
  for (std::size_t i = 0; i < RunCollector::kMostSamples; ++i)
    sample.step = static_cast<std::int64_t>(i), runs.add(sample);
  sample.step = static_cast<std::int64_t>(RunCollector::kMostSamples);
  CHECK_THROWS_AS(runs.add(sample), InvalidInput);
}
