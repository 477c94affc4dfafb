// The table of formats. See log_format.h.
#include "tools/import/log_format.h"

#include <fmt/format.h>

#include "kernels/base/errors.h"

namespace precbench {

const std::vector<LogFormat>& log_formats() {
  static const std::vector<LogFormat> formats = {
      {"torchtitan", "torchtitan", "step: N  loss: X  memory: X  tps: X", true, 1, "step", torchtitan_reader},
      {"megatron-bridge", "Megatron-Bridge", "Step Time : Xs GPU utilization: X", true, 4, "window",
       megatron_bridge_reader},
      {"megatron-lm", "Megatron-LM", "iteration N/ N | ... | elapsed time per iteration (ms): X", true, 4,
       "window", megatron_lm_reader},
      {"nemo", "NeMo", "Training epoch N, iteration N/N | ... | train_step_timing in s: X", false, 4, "step",
       nemo_reader},
      {"pytorch-baseline", "pytorch_baseline", "{\"median_ms\": X, \"tokens_per_s\": X, ...}", true, 0,
       "step", baseline_reader},
      {"trainer-state", "Transformers", "trainer_state.json", true, 0, "window", trainer_state_reader},
      {"axolotl", "axolotl", "{'loss': X, ..., 'memory/max_allocated (GiB)': X}", false, 1, "window",
       axolotl_reader},
      {"trainer", "Transformers", "{'loss': X, 'learning_rate': X, 'epoch': X}", false, 1, "window",
       trainer_lines_reader},
      {"nanochat", "nanochat", "step N/N (X%) | loss: X | lrm: X | dt: Xms | tok/sec: X", false, 4, "ema",
       nanochat_reader},
      {"llm.q", "llm.q", "[T] step N [X%] | time: X ms | norm X | loss X | tps X", false, 1, "step",
       llmq_reader},
      {"deepspeed", "DeepSpeed", "global_step=N, ... CurrSamplesPerSec=X, MemAllocated=XGB", false, 4, "step",
       deepspeed_reader},
      {"llm.c", "llm.c", "step N/N | loss X (Xz)| ... | X ms | ... | N tok/s", false, 1, "step", llmc_reader},
      {"composer", "Composer", "[batch=N/N]: Train loss/train/total: X", false, 4, "step", composer_reader},
  };
  return formats;
}

const LogFormat& find_log_format(const std::string& name) {
  std::string names;
  for (const LogFormat& format : log_formats()) {
    if (name == format.name) return format;
    names += (names.empty() ? "" : ", ") + std::string(format.name);
  }
  throw InvalidInput(fmt::format("--as: unknown format \"{}\"; it is one of {}", name, names));
}

}  // namespace precbench
