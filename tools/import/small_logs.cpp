// Readers of logs with one form of line: nanochat, llm.q, llm.c and DeepSpeed.
#include <string>

#include "tools/import/line_scan.h"
#include "tools/import/log_format.h"

namespace precbench {
namespace {

/// nanochat prints a smoothed loss, and tokens of all GPUs. Its MFU has a fixed peak in older versions and counts attention
/// alone with --fp8, so it is not read.
class NanochatReader : public LogReader {
 public:
  LineKind read(std::string_view line, RunCollector& runs) override {
    const auto rest = text_after(line, "step ");
    const auto ms = number_after(line, "dt:"), tokens = number_after(line, "tok/sec:");
    if (rest && ms && tokens && line.find("lrm:") != std::string_view::npos) {
      const auto step = leading_count(*rest);
      if (!step) return LineKind::other;
      runs.add(
          {.step = *step, .step_s = *ms / 1e3, .tokens_per_s = *tokens, .loss = number_after(line, "loss:")});
      return LineKind::step;
    }
    if (const auto tokens_per_step = count_after(line, "Total batch size");
        tokens_per_step && *tokens_per_step > 0) {
      runs.starting_facts().tokens_per_step = tokens_per_step;
      return LineKind::header;
    }
    if (const auto mib = number_after(line, "Peak memory usage:")) {
      runs.memory(MemoryKind::allocated, *mib * 0x1p20);
      return LineKind::header;
    }
    const bool bpb = line.find("Validation bpb:") != std::string_view::npos;
    return bpb || line.find("Estimated FLOPs per token:") != std::string_view::npos ? LineKind::header
                                                                                    : LineKind::other;
  }
};

/// llm.q: lines of its console, and objects of its log.json, one a line. "sol" is a share of the speed of light and no MFU.
class LlmqReader : public LogReader {
 public:
  LineKind read(std::string_view line, RunCollector& runs) override {
    if (line.find("\"log\":") != std::string_view::npos) return read_object(line, runs);
    if (const auto rest = text_after(line, "[T] step ")) {
      const auto step = leading_count(*rest);
      auto time = text_after(line, "time:");
      const auto number = time ? take_number(*time) : std::nullopt;
      if (!step || !number) return LineKind::other;
      LogSample sample;
      sample.step = *step;
      sample.step_s = trimmed(*time).starts_with("ms") ? *number / 1e3 : *number;
      sample.loss = number_after(line, "loss ");
      if (auto tps = text_after(line, "tps "))
        if (const auto tokens = take_number(*tps))
          sample.tokens_per_s = *tokens * (tps->starts_with("k") ? 1e3 : 1);
      // A rate in thousands has three digits, the time at least four.
      if (text_after(line, "tps ").value_or("").find('k') != std::string_view::npos)
        sample.tokens_per_s.reset();
      runs.add(sample);
      return LineKind::step;
    }
    return line.find("[V] step") != std::string_view::npos ? LineKind::header : LineKind::other;
  }

 private:
  static LineKind read_object(std::string_view line, RunCollector& runs) {
    if (line.find("\"log\": \"step\"") != std::string_view::npos) {
      const auto step = count_after(line, "\"step\":");
      const auto ms = number_after(line, "\"duration_ms\":"), tokens = number_after(line, "\"step_tokens\":");
      if (!step || !ms || !tokens || !(*ms > 0)) return LineKind::other;
      runs.add({.step = *step,
                .step_s = *ms / 1e3,
                .tokens_per_s = *tokens / *ms * 1e3,
                .loss = number_after(line, "\"loss\":")});
      return LineKind::step;
    }
    if (line.find("\"log\": \"gpu-model\"") != std::string_view::npos) {
      const auto name = text_after(line, "\"name\": \"");
      const std::size_t end = name ? name->find('"') : std::string_view::npos;
      if (end == std::string_view::npos) return LineKind::other;
      RunFacts& facts = runs.starting_facts();
      facts.gpu = std::string(name->substr(0, end));
      facts.gpus = facts.gpus.value_or(0) + 1;  // a line for each rank
    }
    return LineKind::header;
  }
};

/// llm.c: its tokens/s are an exponential average, so the time of the step counts. main.log has losses alone.
class LlmcReader : public LogReader {
 public:
  LineKind read(std::string_view line, RunCollector& runs) override {
    if (line.starts_with("s:")) return read_main(line.substr(2), runs);
    if (line.find("| norm ") != std::string_view::npos && line.find("tok/s") != std::string_view::npos) {
      const auto rest = text_after(line, "step ");
      const auto step = rest ? leading_count(*rest) : std::nullopt;
      const std::size_t ms = line.find(" ms |");
      const std::size_t bar = ms == std::string_view::npos ? ms : line.rfind('|', ms);
      if (!step || bar == std::string_view::npos) return LineKind::other;
      LogSample sample{.step = *step, .loss = number_after(line, "loss ")};
      if (const auto time = leading_number(line.substr(bar + 1))) sample.step_s = *time / 1e3;
      if (!sample.step_s) return LineKind::other;
      runs.add(sample);
      return LineKind::step;
    }
    if (line.find("total_batch_size=") != std::string_view::npos) {
      RunFacts& facts = runs.starting_facts();
      facts.local_batch = count_after(line, "B=");
      facts.seq = count_after(line, "T=");
      facts.gpus = count_after(line, "num_processes=");
      facts.tokens_per_step = count_after(line, "total_batch_size=");
      return LineKind::header;
    }
    if (const auto mib = number_after(line, "device memory usage:")) {
      runs.memory(MemoryKind::driver, *mib * 0x1p20);
      return LineKind::header;
    }
    const bool known = line.starts_with("val loss ") || line.starts_with("total average iteration time:");
    return known ? LineKind::header : LineKind::other;
  }

 private:
  static LineKind read_main(std::string_view rest, RunCollector& runs) {
    const auto step = leading_count(rest);
    if (!step) return LineKind::other;
    const auto loss = number_after(rest, "trl:");
    if (!loss)
      return text_after(rest, "tel:") || text_after(rest, "eval:") ? LineKind::header : LineKind::other;
    runs.add({.step = *step, .loss = loss});
    return LineKind::step;
  }
};

/// DeepSpeed counts samples of all GPUs; "GB" of its memory are GiB. Its oldest lines have no step that ascends.
class DeepspeedReader : public LogReader {
 public:
  LineKind read(std::string_view line, RunCollector& runs) override {
    auto samples = number_after(line, "CurrSamplesPerSec=");
    if (!samples) samples = number_after(line, "SamplesPerSec=");
    if (!samples)
      return line.find("[logging.py:") != std::string_view::npos &&
                     line.find("step=") != std::string_view::npos
                 ? LineKind::header
                 : LineKind::other;
    auto step = count_after(line, "global_step=");
    if (!step) step = old_step(line);
    if (!step) return LineKind::other;
    runs.add({.step = *step, .samples_per_s = *samples});
    if (const auto gib = number_after(line, "MaxMemAllocated="))
      runs.memory(MemoryKind::allocated, *gib * 0x1p30);
    return LineKind::step;
  }

 private:
  /// Returns the step of "[timer.py:198:stop] 0/20, ...", after the epoch.
  static std::optional<std::int64_t> old_step(std::string_view line) {
    auto rest = text_after(line, ":stop] ");
    if (!rest || !take_number(*rest) || rest->empty() || rest->front() != '/') return std::nullopt;
    return leading_count(rest->substr(1));
  }
};

/// Composer's console log: a block of metrics of a batch, one a line. Its TFLOP/s have a denominator that varies with the
/// precision, so they are not read.
class ComposerReader : public LogReader {
 public:
  LineKind read(std::string_view line, RunCollector& runs) override {
    bool begins = false;
    if (const auto batch = count_after(line, "[batch=")) {
      begins = flush(runs);
      open_.emplace();
      open_->step = *batch;
    }
    const auto metric = text_after(line, "Train ");
    if (!metric) return read_header(line, runs, begins);
    const std::size_t colon = metric->find(':');
    const auto value =
        colon == std::string_view::npos ? std::nullopt : leading_number(metric->substr(colon + 1));
    if (!value || !open_) return LineKind::other;
    const std::string_view name = metric->substr(0, colon);
    any_ = true;
    if (name == "throughput/tokens_per_sec") open_->tokens_per_s = *value;
    if (name == "throughput/device/tokens_per_sec") open_->tokens_per_s_per_gpu = *value;
    if (name == "throughput/samples_per_sec") open_->samples_per_s = *value;
    // The name of the loss differs between programs; the language model's own counts first.
    if (name == "metrics/train/LanguageCrossEntropy" || (name == "loss/train/total" && !open_->loss))
      open_->loss = *value;
    if (name.ends_with("peak_reserved_mem")) runs.memory(MemoryKind::reserved, *value * 1e9);
    if (name.ends_with("peak_allocated_mem")) runs.memory(MemoryKind::allocated, *value * 1e9);
    return begins ? LineKind::step : LineKind::header;
  }

  std::size_t finish(RunCollector& runs) override { return flush(runs) ? 1 : 0; }
  bool recognised() const override { return any_; }

 private:
  LineKind read_header(std::string_view line, RunCollector& runs, bool begins) {
    if (begins) return LineKind::step;
    if (const auto count = count_after(line, "num_gpus_per_node:");
        count && *count > 0 && *count < kMostRanks) {
      gpus_per_node_ = *count;
    } else if (const auto nodes = count_after(line, "num_nodes:");
               nodes && *nodes > 0 && *nodes < kMostRanks) {
      if (gpus_per_node_ > 0) runs.starting_facts().gpus = gpus_per_node_ * *nodes;
    } else {
      return open_ && line.find("[batch=") != std::string_view::npos ? LineKind::header : LineKind::other;
    }
    return LineKind::header;
  }

  bool flush(RunCollector& runs) {
    if (!open_) return false;
    if (any_) runs.add(*open_);
    const bool added = any_;
    open_.reset();
    return added;
  }

  static constexpr std::int64_t kMostRanks = 1'000'000;
  std::optional<LogSample> open_;  ///< the block that is being read
  bool any_ = false;               ///< a metric was read
  std::int64_t gpus_per_node_ = 0;
};

}  // namespace

std::unique_ptr<LogReader> nanochat_reader() { return std::make_unique<NanochatReader>(); }
std::unique_ptr<LogReader> llmq_reader() { return std::make_unique<LlmqReader>(); }
std::unique_ptr<LogReader> llmc_reader() { return std::make_unique<LlmcReader>(); }
std::unique_ptr<LogReader> deepspeed_reader() { return std::make_unique<DeepspeedReader>(); }
std::unique_ptr<LogReader> composer_reader() { return std::make_unique<ComposerReader>(); }

}  // namespace precbench
