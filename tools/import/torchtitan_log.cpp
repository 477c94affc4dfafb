// Reads torchtitan's console log. tps (wps in 2024) is of one GPU, also with tensor or context parallelism, and averages
// over the steps since the line before.
#include <string>

#include "tools/import/line_scan.h"
#include "tools/import/log_format.h"

namespace precbench {
namespace {

/// Returns the product of the numbers in the last pair of brackets, "[2, 4]"; null without one.
std::optional<std::int64_t> product_in_brackets(std::string_view text) {
  const std::size_t open = text.rfind('[');
  if (open == std::string_view::npos) return std::nullopt;
  text.remove_prefix(open + 1);
  constexpr double kMostRanks = 1e7;
  double product = 1;
  bool any = false;
  while (const auto number = take_number(text)) {
    product *= *number, any = true;
    text = trimmed(text);
    if (text.empty() || text.front() != ',') break;
    text.remove_prefix(1);
  }
  if (!any || !(product >= 1 && product <= kMostRanks)) return std::nullopt;
  return static_cast<std::int64_t>(product);
}

/// Returns the ranks of "parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1"; experts reuse them.
std::optional<std::int64_t> ranks_of_parallelism(std::string_view line) {
  double product = 1;
  bool any = false;
  for (const char* const axis : {"pp=", "dp_replicate=", "dp_shard=", "cp=", "tp="})
    if (const auto ranks = count_after(line, axis)) product *= static_cast<double>(*ranks), any = true;
  constexpr double kMostRanks = 1e7;
  if (!any || !(product >= 1 && product <= kMostRanks)) return std::nullopt;
  return static_cast<std::int64_t>(product);
}

class TorchtitanReader : public LogReader {
 public:
  LineKind read(std::string_view line, RunCollector& runs) override {
    if (line.find("validate") != std::string_view::npos && line.find("step:") != std::string_view::npos)
      return LineKind::header;
    if (const auto sample = step_of(line, runs)) {
      runs.add(*sample);
      if (memory_) runs.memory(MemoryKind::reserved, *memory_);
      return LineKind::step;
    }
    return read_header(line, runs) ? LineKind::header : LineKind::other;
  }

 private:
  std::optional<LogSample> step_of(std::string_view line, RunCollector&) {
    const auto step = count_after(line, "step:");
    const auto loss = number_after(line, "loss:");
    auto tps = number_after(line, "tps:");
    if (!tps) tps = number_after(line, "wps:");
    if (!step || !loss || !tps) return std::nullopt;
    if (line.find("loss:") != line.rfind("loss:")) return std::nullopt;  // two lines in one
    LogSample sample;
    sample.step = *step;
    sample.loss = loss;
    sample.tokens_per_s_per_gpu = *tps;
    sample.tflops = number_after(line, "tflops:");
    if (const auto mfu = number_after(line, "mfu:")) sample.mfu = *mfu / 100;
    if (const auto rank = text_after(line, "[rank"))
      if (const auto number = leading_count(*rank); number && *number < kMostRanks)
        sample.rank = static_cast<int>(*number);
    // Lines whose escapes lost a part have "mmemory:".
    const std::size_t memory = line.find("memory:");
    const auto gib =
        memory == std::string_view::npos ? std::nullopt : leading_number(line.substr(memory + 7));
    memory_ = gib ? std::optional(*gib * 0x1p30) : std::nullopt;
    return sample;
  }

  static bool read_header(std::string_view line, RunCollector& runs) {
    if (const auto gpu = text_after(line, "CUDA capacity:")) {
      const std::size_t end = gpu->find(" with ");
      if (end == std::string_view::npos) return false;
      runs.starting_facts().gpu = std::string(trimmed(gpu->substr(0, end)));
      return true;
    }
    if (const auto peak = number_after(line, "Peak FLOPS used for computing MFU:")) {
      runs.starting_facts().peak_flops = *peak;
      return true;
    }
    if (line.find("device mesh with") != std::string_view::npos) {
      const bool named = line.find("dp_shard=") != std::string_view::npos;
      const auto ranks = named ? ranks_of_parallelism(line) : product_in_brackets(line);
      // Later meshes regroup the same ranks.
      RunFacts& facts = runs.starting_facts();
      if (ranks && !facts.gpus) facts.gpus = ranks;
      return ranks.has_value();
    }
    if (const auto model = text_after(line, "Model ");
        model && line.find("total parameters") != std::string_view::npos) {
      const std::size_t size = model->find("size:");
      if (size == std::string_view::npos) return false;
      RunFacts& facts = runs.starting_facts();
      facts.parameters = leading_count(model->substr(size + 5));
      facts.model = std::string(trimmed(model->substr(0, size)));
      return true;
    }
    if (line.find("Training starts at step") != std::string_view::npos) {
      RunFacts& facts = runs.starting_facts();
      facts.local_batch = count_after(line, "local batch size");
      facts.global_batch = count_after(line, "global batch size");
      facts.seq = count_after(line, "sequence length");
      return true;
    }
    if (const auto version = text_after(line, "torchtitan version:")) {
      const std::string_view text = trimmed(*version);
      constexpr std::size_t kLongestVersion = 40;
      runs.starting_facts().version = std::string(text.substr(0, std::min(text.find(' '), kLongestVersion)));
      return true;
    }
    return false;
  }

  static constexpr std::int64_t kMostRanks = 1'000'000;
  std::optional<double> memory_;  ///< of the last line of a step, bytes
};

}  // namespace

std::unique_ptr<LogReader> torchtitan_reader() { return std::make_unique<TorchtitanReader>(); }

}  // namespace precbench
