// Damaged logs: no crash, no number that a whole line does not have, and every line is counted.
#include <algorithm>
#include <map>
#include <random>

#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"
#include "results/record/contradiction.h"
#include "results/record/record_line.h"
#include "results/text/lines.h"
#include "tools/import/import_testing.h"
#include "tools/import/line_scan.h"

using namespace precbench;
using namespace precbench::import_testing;

namespace {

/// Returns a log of each format, with as many lines as a speed needs.
std::map<std::string, std::string> sound_logs() {
  std::map<std::string, std::string> logs = {{"torchtitan", torchtitan_log()}};
  for (int i = 1; i <= 10; ++i) {
    logs["megatron-bridge"] += fmt::format(
        "Step Time : {}.25s GPU utilization: 411.5MODEL_TFLOP/s/GPU\n [2026-02-01 08:00:{:02}] iteration {:8}/     100 | consumed "
        "samples: {} | elapsed time per iteration (ms): {}250.5 | global batch size:    64 | lm loss: {:.6E} |\n",
        2 + i % 2, 2 * i, i, 64 * i, 2 + i % 2, 9.5 - 0.1 * i);
    logs["nemo"] += fmt::format(
        "Training epoch 0, iteration {}/99 | global_batch_size: 64 | global_step: {} | max_memory_allocated: 62000000000 | "
        "reduced_train_loss: 7.{} | train_step_timing in s: 3.0{} | TFLOPS_per_GPU: 412.5\n",
        i, i, i % 10, i % 10);
    logs["nanochat"] += fmt::format(
        "step {:05}/20000 (0.05%) | loss: 7.{}00000 | lrm: 1.00 | dt: 50{}.50ms | tok/sec: 1,04{},576 | bf16_mfu: 50.00\n",
        i, i % 10, i % 10, i % 10);
    logs["llm.q"] += fmt::format(
        "[T] step {:5} [  1.0%] | time:  500{} ms | norm   9.250000 | loss   8.5{}0000 | tps 10485{} | sol 58.0%\n",
        i, i % 10, i % 10, i % 10);
    logs["deepspeed"] += fmt::format(
        "[2026-02-01 02:00:{:02},417] [INFO] [timer.py:260:stop] epoch=0/micro_step={}/global_step={}, RunningAvgSamplesPerSec=25.5, "
        "CurrSamplesPerSec=26.2{}, MemAllocated=4.00GB, MaxMemAllocated=38.00GB\n",
        i, 4 * i, i, i % 10);
    logs["llm.c"] += fmt::format(
        "step {:4}/100 | loss 4.25{}000 (+nanz)| norm 2.0000 (+nanz)| lr 3.00e-04 | 160.2{} ms | -100.0% bf16 MFU | 51000 tok/s\n",
        i, i % 10, i % 10);
    logs["composer"] += fmt::format(
        "[epoch=1][batch={}/99]:\n         Train loss/train/total: 8.{}\n         Train throughput/tokens_per_sec: 2000{}.5\n",
        i, i % 10, i % 10);
    logs["trainer"] += fmt::format(
        "{{'loss': 2.{}, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.{}}}\n", i % 10, i % 10);
  }
  return logs;
}

/// Returns every value of the log's runs, and steps, as text.
std::vector<std::string> values_of(const LogFile& log) {
  std::vector<std::string> values;
  const auto text = [](const char* name, double value) { return fmt::format("{} {:.17g}", name, value); };
  for (const LogRun& run : log.runs)
    for (const LogSample& sample : run.samples) {
      std::string line = fmt::format("step {}", sample.step);
      for (const auto& [name, value] :
           {std::pair{"time", sample.step_s}, std::pair{"tokens", sample.tokens_per_s},
            std::pair{"per gpu", sample.tokens_per_s_per_gpu}, std::pair{"samples", sample.samples_per_s},
            std::pair{"tflops", sample.tflops}, std::pair{"mfu", sample.mfu}})
        if (value) line += ", " + text(name, *value);
      if (sample.loss) line += ", " + text("loss", *sample.loss);
      values.push_back(line);
    }
  return values;
}

std::int64_t lines_in_text(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n') + (text.ends_with('\n') ? 0 : 1);
}

/// Damages a text in one to four places.
std::string damaged(std::string text, std::mt19937_64& random) {
  const auto below = [&](std::size_t end) {
    return static_cast<std::size_t>(random() % std::max<std::size_t>(end, 1));
  };
  for (std::size_t places = 1 + below(4); places > 0 && !text.empty(); --places) {
    const std::size_t at = below(text.size());
    switch (below(8)) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + below(20));
        break;
      case 2:
        text.insert(at, std::string(1 + below(3), "0123456789.,eE-+"[below(16)]));
        break;
      case 3:
        text.insert(at, "\x1b]0;owned\x07\x1b[2J");
        break;
      case 4:
        text.resize(at);
        break;
      case 5: {  // a line twice
        const std::size_t begin = text.rfind('\n', at) + 1, end = text.find('\n', at);
        if (end != std::string::npos) text.insert(end + 1, text.substr(begin, end + 1 - begin));
        break;
      }
      case 6:
        text.insert(at, "\r");
        break;
      default:
        text.insert(at, "99999999999999999999999999");
    }
  }
  return text;
}

}  // namespace

TEST_CASE(
    "import: a thousand damaged logs give no crash, no unprintable line and no record that readers refuse",
    "[import]") {
  std::mt19937_64 random(65);
  const auto logs = sound_logs();
  const TempDirectory scratch;
  int records = 0, trials = 0;
  for (const auto& [name, text] : logs) {
    INFO(name);
    REQUIRE(log_of(text).format);
    CHECK(log_of(text).format->name == name);
    for (int i = 0; i < 115; ++i, ++trials) {
      const std::string bad = damaged(text, random);
      LogFile log;
      try {
        log = read_log(scratch.write("run.log", bad), nullptr);
      } catch (const InvalidInput&) {
        continue;
      }
      CHECK(log.lines.used + log.lines.header + log.lines.skipped <= lines_in_text(bad) + 1);
      ImportValues given;
      given.model = "llama3.1-8b", given.recipe = "mxfp8", given.gpu = "h200";
      given.seq = 8192, given.gpus = 512, given.global_batch = 64;
      if (name == "torchtitan") given.gpus.reset(), given.global_batch.reset(), given.seq.reset();
      for (std::size_t run = 1; run <= log.runs.size(); ++run) {
        ImportedRun imported;
        try {
          imported = import_run(log, run, given, host(), "2026-03-05T00:00:00Z");
        } catch (const InvalidInput&) {
          continue;  // the damaged header contradicts a flag
        }
        for (const std::string& line : imported.lines)
          CHECK(indented_line(line, {}).find_first_of("\x1b\x07\x7f\r") == std::string::npos);
        if (!imported.record) continue;
        ++records;
        CHECK(not_a_record_reason(*imported.record).value_or("none") == "none");
        if (imported.record->status == Status::ok)
          CHECK(contradiction(*imported.record).value_or("none") == "none");
      }
    }
  }
  CHECK(trials >= 1000);
  CHECK(records > 300);
}

TEST_CASE("import: a log cut anywhere gives the first steps of the whole one and no others", "[import]") {
  for (const auto& [name, text] : sound_logs()) {
    INFO(name);
    const LogFormat& format = find_log_format(name);
    const std::vector<std::string> whole = values_of(log_of(text, &format));
    for (std::size_t length = 1; length < text.size(); length += 37) {
      const std::vector<std::string> part = values_of(log_of(text.substr(0, length), &format));
      INFO(length);
      REQUIRE(part.size() <= whole.size());
      // The block of a batch that is cut lacks the values behind the cut.
      const std::size_t sure = name == "composer" || name == "megatron-bridge"
                                   ? part.size() - std::min<std::size_t>(part.size(), 1)
                                   : part.size();
      for (std::size_t i = 0; i < sure; ++i) CHECK(part[i] == whole[i]);
    }
  }
}

TEST_CASE("import: a damaged number is no number", "[import]") {
  for (const char* const text :
       {"7,0x6", "7,02", "7.5.1", "65x00", "12e", "1e5x", "12\xc3\xa4", "7,0267", "GiB"}) {
    INFO(text);
    CHECK_FALSE(leading_number(text));
  }
  CHECK(leading_number("7,026 ") == 7026);
  CHECK(leading_number(" 49.59GiB(35.4%)") == 49.59);
  CHECK(leading_number("9.09s GPU") == 9.09);
  CHECK(leading_number("24.7MODEL_TFLOP/s/GPU") == 24.7);
  CHECK(leading_number("13100.0/13240.9") == 13100);
  CHECK(leading_number("1,048,576|") == 1048576);
  CHECK(leading_number("-1.5E+01,") == -15);
}

TEST_CASE("import: every byte of a torchtitan line that is lost costs the line or nothing", "[import]") {
  const std::string text = torchtitan_log();
  const std::vector<std::string> whole = values_of(log_of(text));
  const std::size_t begin = text.find("step: 40") - 40;
  std::size_t other = 0;
  for (std::size_t at = begin; at < begin + 190; ++at) {
    const bool number = (text[at] >= '0' && text[at] <= '9') || text[at] == '.' || text[at] == ',';
    if (number) continue;  // another number, which nothing can tell
    std::string bad = text;
    bad[at] = '#';
    const LogFile log = log_of(bad);
    const std::vector<std::string> values = values_of(log);
    for (const std::string& line : values)
      if (std::find(whole.begin(), whole.end(), line) == whole.end()) ++other;
    if (values.size() < whole.size()) CHECK(log.lines.skipped == 1);
  }
  // A line may lose its TFLOP/s or MFU alone.
  CHECK(other <= 16);
}
