// Logs for tests, in the grammar of their programs, and a host that knows one model and one GPU.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/testing/temp_directory.h"
#include "tools/import/import_run.h"
#include "tools/import/read_log.h"

namespace precbench::import_testing {

inline constexpr double kCausal = 51.470401536e9, kFull = 57.912852480e9;  ///< llama3.1-8b at 8,192 tokens

inline ImportModel llama_8b(const std::string& name, std::int64_t seq) {
  if (name != "llama3.1-8b") throw InvalidInput("--model: unknown model \"" + name + "\"");
  const double attention = 12.0 * 32 * 4096 * static_cast<double>(seq), linear = 45.027950592e9;
  return {
      name, 8030261248, 7504924672, linear + attention / 2, linear + attention, linear + attention + 1.6e6};
}

/// Returns a host that knows llama3.1-8b and the H200, and predicts nothing.
inline ImportHost host() {
  ImportHost host;
  host.model = llama_8b;
  host.models_of_size = [](std::int64_t parameters) {
    return parameters == 8030261248 ? std::vector<std::string>{"llama3.1-8b"} : std::vector<std::string>{};
  };
  host.gpu = [](const std::string& words, bool exact) {
    ImportGpu gpu{exact ? words : "NVIDIA H200", {}};
    gpu.peaks.emplace();
    gpu.peaks->bf16_tflops = 989;
    return gpu;
  };
  return host;
}

/// A line of torchtitan every ten steps, and the one of step 1.
struct TorchtitanLines {
  std::vector<double> tps = {1200, 5900, 6500, 6510, 6490, 6505, 6495, 6500};
  double penalty = 0;  ///< added to the loss
  std::string rank = "[rank0]:";
  double flops = kFull;  ///< per token, as the log counts
};

inline std::string torchtitan_header() {
  return "[rank0]:[titan] 2026-03-04 10:00:00,000 - root - INFO - CUDA capacity: NVIDIA H200 with 139.72GiB memory\n"
         "[rank0]:[titan] 2026-03-04 10:00:00,100 - root - INFO - Peak FLOPS used for computing MFU: 9.890e+14\n"
         "[rank0]:[titan] 2026-03-04 10:00:00,200 - root - INFO - Building 1-D device mesh with ['dp_shard'], [4]\n"
         "[rank0]:[titan] 2026-03-04 10:00:01,000 - root - INFO - \x1b[34mModel llama3 8B \x1b[31msize: 8,030,261,248 total "
         "parameters\x1b[39m\n"
         "[rank0]:[titan] 2026-03-04 10:00:02,000 - root - INFO - Training starts at step 1, with local batch size 2, global batch "
         "size 8, sequence length 8192, total steps 100 (warmup 5)\n";
}

inline std::string torchtitan_steps(const TorchtitanLines& lines = {}) {
  std::string text;
  for (std::size_t i = 0; i < lines.tps.size(); ++i) {
    const double tps = lines.tps[i], tflops = tps * lines.flops / 1e12;
    text += fmt::format(
        "{}[titan] 2026-03-04 10:{:02}:{:02},500 - root - INFO - \x1b[31mstep: {:2}  \x1b[32mloss: {:8.5f}  \x1b[38mgrad_norm:  1.5000  "
        "\x1b[33mmemory: {:5.2f}GiB(41.90%)  \x1b[34mtps: {}  \x1b[36mtflops: {:.2f}  \x1b[35mmfu: {:.2f}%\x1b[39m\n",
        lines.rank, 1 + 26 * i / 60, 26 * i % 60, i == 0 ? 1 : 10 * i,
        11.9 / (1 + 0.1 * static_cast<double>(i)) + lines.penalty, 58.0 + 0.05 * static_cast<double>(i),
        fmt::format("{},{:03.0f}", static_cast<int>(tps) / 1000, static_cast<int>(tps) % 1000 + 0.0), tflops,
        100 * tflops / 989);
  }
  return text;
}

inline std::string torchtitan_log(const TorchtitanLines& lines = {}) {
  return torchtitan_header() + torchtitan_steps(lines);
}

/// Reads a text as a log.
inline LogFile log_of(const std::string& text, const LogFormat* format = nullptr) {
  const TempDirectory scratch;
  return read_log(scratch.write("run.log", text), format);
}

/// Returns what the run of a text with one run gives.
inline ImportedRun imported(const std::string& text, const ImportValues& given = {}) {
  const LogFile log = log_of(text);
  if (log.runs.size() != 1) throw InvalidInput(fmt::format("{} runs", log.runs.size()));
  return import_run(log, 1, given, host(), "2026-03-05T00:00:00Z");
}

inline std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace precbench::import_testing
