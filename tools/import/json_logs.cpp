// Readers of logs that consist of objects: trainer_state.json and console lines of Transformers, axolotl's, and lines of
// our PyTorch baseline.
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "kernels/base/errors.h"
#include "kernels/base/untrusted_input.h"
#include "tools/import/line_scan.h"
#include "tools/import/log_format.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Limits of trainer_state.json: 200,000 entries of its history are within them.
constexpr JsonLimits kStateLimits{
    .bytes = std::size_t{64} << 20, .depth = 16, .members = 4096, .values = 4'000'000};

std::optional<double> number_at(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

std::optional<std::int64_t> count_at(const Json& json, const char* key) {
  const auto value = number_at(json, key);
  if (!value || !(*value > 0 && *value <= 0x1p53) || std::floor(*value) != *value) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

std::optional<std::string> word_at(const Json& json, const char* key) {
  constexpr std::size_t kLongest = 200;
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) return std::nullopt;
  return found->get<std::string>().substr(0, kLongest);
}

/// trainer_state.json has no times of steps. Its train_runtime includes evaluation.
class TrainerStateReader : public LogReader {
 public:
  LineKind read(std::string_view line, RunCollector&) override {
    const std::string_view text = trimmed(line);
    if (text.empty() && text_.empty()) return LineKind::other;
    if (text_.empty() && text.front() != '{') failed_ = true;
    if (failed_ || text_.size() + line.size() > kStateLimits.bytes) {
      failed_ = true;
      text_.clear(), text_.shrink_to_fit();
      return LineKind::other;
    }
    text_.append(line).push_back('\n');
    seen_ = seen_ || line.find("\"log_history\"") != std::string_view::npos;
    return LineKind::other;
  }

  std::size_t finish(RunCollector& runs) override {
    if (failed_ || !seen_) return 0;
    // Python writes NaN, which JSON has not.
    const std::string quoted = with_quoted_constants(text_);
    if (beyond(quoted, kStateLimits)) return 0;
    const Json state = Json::parse(quoted, nullptr, false);
    const auto history = state.is_object() ? state.find("log_history") : state.end();
    if (!state.is_object() || history == state.end() || !history->is_array()) return 0;
    whole_ = true;
    bool evaluations = false;
    std::size_t used = 0;
    for (const Json& entry : *history) {
      if (!entry.is_object()) continue;
      evaluations = evaluations || entry.contains("eval_loss") || entry.contains("eval_runtime");
      const auto step = count_at(entry, "step");
      const auto loss = loss_of(entry);
      if (!step || !loss) continue;
      runs.add({.step = *step, .loss = loss});
      ++used;
    }
    for (const Json& entry : *history) {
      const auto seconds = entry.is_object() ? number_at(entry, "train_runtime") : std::nullopt;
      const auto steps = seconds ? count_at(entry, "step") : std::nullopt;
      if (!steps || !(*seconds > 0)) continue;
      WholeRun whole{*steps, *seconds, {}, {}, evaluations, false};
      if (const auto tokens = count_at(entry, "num_input_tokens_seen"))
        whole.tokens = static_cast<double>(*tokens);
      if (!whole.tokens)
        if (const auto tokens = count_at(state, "num_input_tokens_seen"))
          whole.tokens = static_cast<double>(*tokens);
      whole.flops = number_at(entry, "total_flos");
      runs.whole(whole);
      ++used;
    }
    return used;
  }
  bool recognised() const override { return seen_ && !failed_; }
  bool read_whole() const override { return whole_; }
  bool takes_cut_line() const override { return true; }

 private:
  /// Returns the loss of an entry; NaN where Python wrote it.
  static std::optional<double> loss_of(const Json& entry) {
    if (const auto loss = number_at(entry, "loss")) return loss;
    const auto word = word_at(entry, "loss");
    return word ? leading_number(*word) : std::nullopt;
  }

  std::string text_;
  bool seen_ = false, failed_ = false, whole_ = false;
};

/// Lines that Transformers' Trainer prints, a Python dict each. They have neither step nor time: lines are counted. axolotl
/// adds memory, and tokens/s of tokens with a label alone, which it divides by the logging interval: not read.
class TrainerLinesReader : public LogReader {
 public:
  explicit TrainerLinesReader(bool axolotl) : axolotl_(axolotl) {}

  LineKind read(std::string_view line, RunCollector& runs) override {
    const auto begin = line.find("{'");
    if (begin == std::string_view::npos) return LineKind::other;
    const std::string_view text = line.substr(begin);
    if (text.find("'eval_") != std::string_view::npos) return LineKind::header;
    if (text.find("'train_runtime'") != std::string_view::npos) {
      runs.end_run();
      return LineKind::header;
    }
    const auto loss = value_of(text, "'loss':");
    if (!loss || text.find("'learning_rate'") == std::string_view::npos) return LineKind::other;
    marked_ = marked_ || text.find("'memory/") != std::string_view::npos ||
              text.find("'tokens") != std::string_view::npos;
    const LogSample* const last = runs.last();
    runs.add({.step = last ? last->step + 1 : 1, .loss = loss});
    runs.facts().counts_lines = true;
    for (const char* const key : {"'memory/max_allocated (GiB)':", "'memory/max_mem_allocated(gib)':"})
      if (const auto gib = value_of(text, key)) runs.memory(MemoryKind::allocated, *gib * 0x1p30);
    return LineKind::step;
  }
  bool recognised() const override { return !axolotl_ || marked_; }

 private:
  /// Returns the number behind a key, which newer versions quote.
  static std::optional<double> value_of(std::string_view text, std::string_view key) {
    const auto rest = text_after(text, key);
    if (!rest) return std::nullopt;
    std::string_view value = trimmed(*rest);
    if (!value.empty() && value.front() == '\'') value.remove_prefix(1);
    return leading_number(value);
  }

  bool axolotl_, marked_ = false;
};

/// Returns the preset that the baseline calls `name`; other names are those of presets. Null for the first blocks of a model, "8b/6".
std::optional<std::string> preset_of_baseline(const std::optional<std::string>& name) {
  constexpr std::pair<const char*, const char*> kNames[] = {{"1b", "llama3.2-1b"},
                                                            {"3b", "llama3.2-3b"},
                                                            {"8b", "llama3.1-8b"},
                                                            {"1.5b", "qwen2.5-1.5b"},
                                                            {"7b", "qwen2.5-7b"}};
  if (!name || name->find('/') != std::string::npos) return std::nullopt;
  for (const auto& [theirs, ours] : kNames)
    if (*name == theirs) return ours;
  return name;
}

/// Lines of tools/pytorch_baseline/pytorch_step.py: a whole run each, over all GPUs.
class BaselineReader : public LogReader {
 public:
  LineKind read(std::string_view line, RunCollector& runs) override {
    const std::string_view text = trimmed(line);
    if (!text.starts_with("{") || text.find("\"run_ms\"") == std::string_view::npos) return LineKind::other;
    constexpr JsonLimits kLineLimits{.bytes = std::size_t{64} << 10, .depth = 4, .members = 100};
    if (beyond(text, kLineLimits)) return LineKind::other;
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object()) return LineKind::other;
    const auto tokens = number_at(json, "tokens_per_s");
    const auto batch = count_at(json, "batch"), seq = count_at(json, "seq"), gpus = count_at(json, "gpus");
    constexpr std::int64_t kMost = std::int64_t{1} << 24;
    if (!tokens || !(*tokens > 0) || !batch || !seq || !gpus || *batch > kMost || *seq > kMost ||
        *gpus > kMost)
      return LineKind::other;
    const std::int64_t passes = count_at(json, "accumulation").value_or(1);
    const std::int64_t tensor = count_at(json, "tensor").value_or(1);  // ranks that share sequences
    if (passes > kMost || tensor < 1 || *gpus % tensor != 0 ||
        static_cast<double>(*batch) * static_cast<double>(*gpus) * static_cast<double>(passes) > 0x1p40)
      return LineKind::other;
    runs.end_run();
    RunFacts& facts = runs.starting_facts();
    facts.model = preset_of_baseline(word_at(json, "model"));
    facts.recipe = word_at(json, "recipe");
    facts.gpu = word_at(json, "gpu");
    facts.version = word_at(json, "torch");
    facts.created = word_at(json, "created");
    facts.seq = seq, facts.local_batch = batch, facts.gpus = gpus;
    const std::int64_t global_batch = *batch * (*gpus / tensor) * passes;
    facts.global_batch = global_batch;
    // Its tokens/s are of the better of the median step and of the mean of a run, both after warm-up.
    const double step_tokens = static_cast<double>(global_batch) * static_cast<double>(*seq);
    runs.whole({1, step_tokens / *tokens, step_tokens, {}, false, true});
    if (const auto gib = number_at(json, "peak_gib")) runs.memory(MemoryKind::allocated, *gib * 0x1p30);
    return LineKind::step;
  }
  bool takes_cut_line() const override { return true; }
};

}  // namespace

std::unique_ptr<LogReader> trainer_state_reader() { return std::make_unique<TrainerStateReader>(); }
std::unique_ptr<LogReader> axolotl_reader() { return std::make_unique<TrainerLinesReader>(true); }
std::unique_ptr<LogReader> trainer_lines_reader() { return std::make_unique<TrainerLinesReader>(false); }
std::unique_ptr<LogReader> baseline_reader() { return std::make_unique<BaselineReader>(); }

}  // namespace precbench
