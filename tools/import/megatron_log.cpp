// Reads logs of Megatron-LM and of what is built on it: Megatron-Bridge, Primus and NeMo 2.

#include "tools/import/line_scan.h"
#include "tools/import/log_format.h"

namespace precbench {
namespace {

/// Returns iteration and fields of "iteration 20/ 128 | key: value | ..."; null for other lines.
struct Iteration {
  std::int64_t number = 0;
  std::string_view fields;
};
std::optional<Iteration> iteration_of(std::string_view line) {
  auto rest = text_after(line, "iteration ");
  if (!rest) return std::nullopt;
  const auto number = take_number(*rest);
  if (!number || !(*number >= 0 && *number < 0x1p53)) return std::nullopt;
  *rest = trimmed(*rest);
  if (rest->empty() || rest->front() != '/') return std::nullopt;
  rest->remove_prefix(1);
  if (!take_number(*rest)) return std::nullopt;
  *rest = trimmed(*rest);
  if (rest->empty() || rest->front() != '|') return std::nullopt;
  return Iteration{static_cast<std::int64_t>(*number), rest->substr(1)};
}

/// Reads "name ...... value" of Megatron's dump of arguments, and "name: value" of Bridge's configuration.
bool read_argument(std::string_view line, RunCollector& runs) {
  const std::string_view text = trimmed(line);
  std::size_t end = text.find_first_of(" :");
  if (end == std::string_view::npos || end == 0) return false;
  const std::string_view name = text.substr(0, end);
  std::string_view value = trimmed(text.substr(end));
  const bool dots = value.size() > 3 && value.substr(0, 3) == "...";
  if (!dots && (value.empty() || value.front() != ':')) return false;
  value.remove_prefix(dots ? std::min(value.find_first_not_of('.'), value.size()) : 1);
  value = trimmed(value);
  std::optional<std::int64_t> RunFacts::*fact = nullptr;
  if (name == "seq_length" || name == "encoder_seq_length") fact = &RunFacts::seq;
  if (name == "global_batch_size") fact = &RunFacts::global_batch;
  if (name == "micro_batch_size") fact = &RunFacts::local_batch;
  if (name == "world_size") fact = &RunFacts::gpus;
  if (name == "seed") fact = &RunFacts::seed;
  if (fact) {
    const auto count = leading_count(value);
    if (count && *count > 0) runs.starting_facts().*fact = count;
    return count.has_value();
  }
  return dots && !value.empty();
}

/// Reads lines of memory: Megatron-LM's in MiB, Bridge's in GB.
bool read_memory(std::string_view line, RunCollector& runs) {
  if (line.find("[Rank ") == std::string_view::npos || line.find("memory (") == std::string_view::npos)
    return false;
  if (const auto mib = number_after(line, "max allocated:"))
    runs.memory(MemoryKind::allocated, *mib * 0x1p20);
  else if (const auto gb = number_after(line, "mem-max-allocated-gigabytes:"))
    runs.memory(MemoryKind::allocated, *gb * 1e9);
  else
    return false;
  return true;
}

class MegatronReader : public LogReader {
 public:
  explicit MegatronReader(bool bridge) : bridge_(bridge) {}

  LineKind read(std::string_view line, RunCollector& runs) override {
    if (const auto seconds = number_after(line, "Step Time :")) {
      if (!bridge_) return LineKind::header;
      marked_ = true;
      const std::size_t pending = flush(runs);
      held_.emplace();
      held_->step_s = *seconds;
      held_->tflops = number_after(line, "GPU utilization:");
      return pending > 0 ? LineKind::step : LineKind::header;
    }
    if (const auto iteration = iteration_of(line))
      return read_iteration(*iteration, runs) ? LineKind::step : LineKind::other;
    if (line.find("gigabytes:") != std::string_view::npos) marked_ = true;
    if (read_memory(line, runs) || read_argument(line, runs)) return LineKind::header;
    if (const auto ranks = count_after(line, "using world size:"); ranks && *ranks > 0) {
      runs.starting_facts().gpus = ranks;
      return LineKind::header;
    }
    if (line.find("Number of parameters in") != std::string_view::npos ||
        line.find("Theoretical memory footprints") != std::string_view::npos ||
        line.find("[before the start of training step]") != std::string_view::npos)
      return LineKind::header;
    return LineKind::other;
  }

  std::size_t finish(RunCollector& runs) override { return flush(runs); }
  bool recognised() const override { return !bridge_ || marked_; }

 private:
  /// Makes a line "Step Time" without a line of its iteration a step of its own.
  std::size_t flush(RunCollector& runs) {
    if (!held_) return 0;
    const LogSample* const last = runs.last();
    held_->step = last ? last->step + 1 : 1;
    runs.add(*held_);
    held_.reset();
    return 1;
  }

  bool read_iteration(const Iteration& iteration, RunCollector& runs) {
    LogSample sample;
    sample.step = iteration.number;
    bool timed = false;
    std::optional<double> driver;
    for (const auto& [key, value] : bar_fields(iteration.fields)) {
      const auto number = leading_number(value);
      if (!number) continue;
      if (key == "elapsed time per iteration (ms)") sample.step_s = *number / 1e3, timed = true;
      if (key == "throughput per GPU (TFLOP/s/GPU)") sample.tflops = *number;
      if (key == "tokens per GPU (tokens/s/GPU)") sample.tokens_per_s_per_gpu = *number;
      if (key == "global batch size") sample.global_batch = *number;
      if (key == "lm loss") sample.loss = *number;
      // Primus: used/free/total/ratio, in GiB.
      if (key.starts_with("hip mem usage")) driver = *number * 0x1p30;
    }
    if (!timed) return false;
    if (held_ && !sample.tflops) sample.tflops = held_->tflops;
    held_.reset();
    runs.add(sample);
    if (driver) runs.memory(MemoryKind::driver, *driver);
    return true;
  }

  bool bridge_, marked_ = false;
  std::optional<LogSample> held_;  ///< of a line "Step Time", which precedes that of its iteration
};

/// NeMo 2 counts iterations from 0; train_step_timing is of that step and has four digits.
class NemoReader : public LogReader {
 public:
  LineKind read(std::string_view line, RunCollector& runs) override {
    const auto rest = text_after(line, "Training epoch ");
    if (!rest) return read_argument(line, runs) ? LineKind::header : LineKind::other;
    const std::size_t at = rest->find("iteration ");
    const auto iteration = at == std::string_view::npos ? std::nullopt : iteration_of(rest->substr(at));
    if (!iteration) return LineKind::other;
    LogSample sample;
    sample.step = iteration->number;
    std::optional<double> allocated, reserved;
    for (const auto& [key, value] : bar_fields(iteration->fields)) {
      const auto number = leading_number(value);
      if (!number) continue;
      if (key == "global_step" && *number >= 0 && *number < 0x1p53)
        sample.step = static_cast<std::int64_t>(*number);
      if (key == "train_step_timing in s") sample.step_s = *number;
      if (key == "TFLOPS_per_GPU") sample.tflops = *number;
      if (key == "tokens_per_sec_per_gpu") sample.tokens_per_s_per_gpu = *number;
      if (key == "global_batch_size") sample.global_batch = *number;
      if (key == "reduced_train_loss") sample.loss = *number;
      if (key == "max_memory_allocated") allocated = *number;
      if (key == "max_memory_reserved") reserved = *number;
    }
    if (!sample.step_s) return LineKind::other;
    runs.add(sample);
    if (allocated)
      runs.memory(MemoryKind::allocated, *allocated);
    else if (reserved)
      runs.memory(MemoryKind::reserved, *reserved);
    return LineKind::step;
  }
};

}  // namespace

std::unique_ptr<LogReader> megatron_bridge_reader() { return std::make_unique<MegatronReader>(true); }
std::unique_ptr<LogReader> megatron_lm_reader() { return std::make_unique<MegatronReader>(false); }
std::unique_ptr<LogReader> nemo_reader() { return std::make_unique<NemoReader>(); }

}  // namespace precbench
