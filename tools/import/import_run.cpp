// Joins what the user, the log and its arithmetic say of a run, and makes its record. See import_run.h.
#include "tools/import/import_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <numeric>

#include "kernels/base/errors.h"
#include "kernels/base/fnv1a.h"
#include "kernels/base/plural.h"
#include "results/record/short_text.h"
#include "results/record/statistics.h"
#include "tools/import/line_scan.h"
#include "tools/import/read_log.h"

namespace precbench {
namespace {

constexpr std::size_t kLongestName = 80;

/// Returns "8,030,261,248"; "1e+30" for numbers of a damaged log.
std::string thousands(double value) {
  constexpr double kLargest = 1e15;
  if (!(std::abs(value) < kLargest)) return fmt::format("{:.3g}", value);
  std::string digits = fmt::format("{:.0f}", value);
  for (std::ptrdiff_t at = std::ssize(digits) - 3; at > (digits.front() == '-' ? 1 : 0); at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Returns the seconds of a step by the clock of the lines, pauses included. Null without times, or if they are too close for
/// clocks that show whole seconds.
std::optional<double> clock_step_s(const LogRun& run) {
  constexpr double kShortest = 20;
  const LogSample *first = nullptr, *last = nullptr;
  for (const LogSample& sample : run.samples)
    if (sample.time) (first ? last : first) = &sample;
  if (!last || !(*last->time - *first->time >= kShortest)) return std::nullopt;
  return (*last->time - *first->time) / static_cast<double>(last->step - first->step);
}

/// Returns the usual seconds of a step by the clock of consecutive lines, which a few pauses do not change. Null without enough lines
/// that are far enough apart for clocks that show whole seconds.
std::optional<double> usual_clock_step_s(const LogRun& run) {
  constexpr double kShortest = 5;
  std::vector<double> seconds;
  for (std::size_t i = 1; i < run.samples.size(); ++i) {
    const LogSample &before = run.samples[i - 1], &after = run.samples[i];
    if (before.time && after.time && *after.time - *before.time >= kShortest)
      seconds.push_back((*after.time - *before.time) / static_cast<double>(after.step - before.step));
  }
  if (seconds.size() < kFewestLines) return std::nullopt;
  return sample_statistics(seconds)->median;
}

/// Names how a log counts FLOPs.
const char* counted(const std::string& convention) {
  if (convention == "full") return "it counts attention in full";
  if (convention == "parameters") return "it counts 6 FLOPs for each parameter and no attention";
  return "it counts half of attention, as we do";
}

class RunImport {
 public:
  RunImport(const LogFile& log, std::size_t number, const ImportValues& given, const ImportHost& host)
      : log_(log), run_(log.runs.at(number - 1)), number_(number), given_(given), host_(host) {}

  ImportedRun judge(const std::string& written) {
    find_values();
    find_model();
    find_speed();
    find_convention();
    if (const auto own = mfu(); own && *own > kHighestMfu)
      out_.conflicts.push_back(fmt::format(
          "an MFU of {:.0f}% is impossible; check --model, --seq, --global-batch, --gpus and --gpu",
          100 * *own));
    describe();
    if (out_.missing.empty() && out_.conflicts.empty()) out_.record = make_record(written);
    return std::move(out_);
  }

 private:
  /// Returns the user's value, else the log's. Throws InvalidInput if the log says another one.
  std::optional<std::int64_t> count(const char* flag, const std::optional<std::int64_t>& given,
                                    const std::optional<std::int64_t>& logged) const {
    if (given && logged && *given != *logged)
      throw InvalidInput(fmt::format("{} {}: the log says {}", flag, *given, *logged));
    return given ? given : logged;
  }

  void find_values() {
    const RunFacts& facts = run_.facts;
    seq_ = count("--seq", given_.seq, facts.seq);
    gpus_ = count("--gpus", given_.gpus, facts.gpus);
    std::optional<std::int64_t> batch = facts.global_batch;
    for (const LogSample& sample : run_.samples)
      if (sample.global_batch && *sample.global_batch >= 1 && *sample.global_batch < 0x1p40)
        batch = std::llround(*sample.global_batch);  // of the last line; ramps end there
    if (!batch && facts.tokens_per_step && seq_ && *seq_ > 0 && *facts.tokens_per_step % *seq_ == 0)
      batch = *facts.tokens_per_step / *seq_;
    batch_ = count("--global-batch", given_.global_batch, batch);
    if (seq_ && batch_)
      tokens_ = static_cast<double>(*seq_) * static_cast<double>(*batch_);
    else if (facts.tokens_per_step)
      tokens_ = static_cast<double>(*facts.tokens_per_step);
    recipe_ = given_.recipe ? given_.recipe : facts.recipe;
    if (given_.gpu)
      gpu_ = host_.gpu(*given_.gpu, false);
    else if (facts.gpu)
      gpu_ = host_.gpu(short_printable(*facts.gpu, kLongestName), true);
    need(seq_.has_value(), "seq", "--seq");
    need(batch_.has_value(), "global batch", "--global-batch");
    need(gpus_.has_value(), "number of GPUs", "--gpus");
    need(gpu_.has_value(), "GPU", "--gpu");
    need(recipe_.has_value(), "recipe", "--recipe");
  }

  void need(bool known, const char* what, const char* flag) {
    if (!known) out_.missing.push_back(fmt::format("{} ({})", what, flag));
  }

  void find_model() {
    const RunFacts& facts = run_.facts;
    // The counts of attention need a length; parameters do not.
    const std::int64_t seq = seq_.value_or(1);
    if (given_.model) {
      model_ = host_.model(*given_.model, seq);
    } else if (facts.parameters) {
      const std::vector<std::string> names = host_.models_of_size(*facts.parameters);
      if (!names.empty()) model_ = host_.model(names.front(), seq);
    } else if (facts.model) {
      try {
        model_ = host_.model(*facts.model, seq);
      } catch (const InvalidInput&) {  // a name of the log's program
      }
    }
    need(model_.has_value(), "model", "--model");
    // Tied embeddings or a padded vocabulary explain less.
    if (model_ && facts.parameters && *facts.parameters > 0 &&
        std::abs(std::log(static_cast<double>(model_->parameters) / static_cast<double>(*facts.parameters))) >
            std::log(kOtherModel))
      out_.conflicts.push_back(fmt::format("the log's model has {} parameters, {} has {}; check --model",
                                           thousands(static_cast<double>(*facts.parameters)), model_->name,
                                           thousands(static_cast<double>(model_->parameters))));
  }

  void find_speed() {
    if (batch_)
      for (LogSample& sample : run_.samples)
        if (!sample.global_batch) sample.global_batch = static_cast<double>(*batch_);
    speed_ = speed_of_run(run_, *log_.format, tokens_, gpus_);
    if (tokens_ && speed_.step_tokens && std::abs(*speed_.step_tokens / *tokens_ - 1) > kSameTokens)
      out_.conflicts.push_back(fmt::format(
          "the log's time x tokens/s gives {} tokens in a step, but seq x global batch is {}; check --seq and "
          "--global-batch",
          thousands(*speed_.step_tokens), thousands(*tokens_)));
    if (!tokens_ && speed_.step_tokens) tokens_ = std::round(*speed_.step_tokens);
    check_rates();
    if (run_.whole) use_whole_run();
  }

  /// Compares the rate that a line states with what its time, seq, global batch and GPUs give.
  void check_rates() {
    if (!tokens_ || !gpus_) return;
    std::vector<double> ratios;
    for (const LogSample& sample : run_.samples)
      if (sample.step_s && sample.tokens_per_s_per_gpu && *sample.step_s > 0 &&
          *sample.tokens_per_s_per_gpu > 0)
        ratios.push_back(*tokens_ / *sample.step_s / static_cast<double>(*gpus_) /
                         *sample.tokens_per_s_per_gpu);
    const auto statistics = sample_statistics(ratios);
    if (statistics && std::abs(statistics->median - 1) > kSameTokens)
      out_.conflicts.push_back(fmt::format(
          "seq, global batch and GPUs give {:.3g} times the tokens/s per GPU of the log; check --seq, "
          "--global-batch and --gpus",
          statistics->median));
  }

  /// Takes the speed of a run of which the log has totals alone.
  void use_whole_run() {
    const WholeRun& whole = *run_.whole;
    if (whole.evaluations) {
      speed_.refusal = "the run's time includes evaluation, and the log has no times of steps";
    } else if (!whole.tokens) {
      speed_.refusal =
          "the log does not count tokens (include_num_input_tokens_seen), nor has it times of steps";
    } else if (!(whole.seconds > 0) || whole.steps < 1) {
      speed_.refusal = "the log has no time of the run";
    } else {
      const double steps = static_cast<double>(whole.steps);
      speed_.refusal.clear();
      speed_.window = whole.steps;
      speed_.first_step = 1, speed_.last_step = whole.steps;
      speed_.step_s = {whole.seconds / steps};
      if (gpus_) speed_.per_gpu = {*whole.tokens / whole.seconds / static_cast<double>(*gpus_)};
      whole_rate_ = *whole.tokens / whole.seconds;
    }
  }

  void find_convention() {
    logged_flops_ = logged_flops_per_token(run_, tokens_, gpus_);
    if (logged_flops_ && model_ && seq_) convention_ = convention_of(*logged_flops_, *model_);
    std::vector<double> mfu, tflops;
    const auto collect = [&](const LogSample& sample) {
      if (sample.mfu && std::isfinite(*sample.mfu) && *sample.mfu >= 0) mfu.push_back(*sample.mfu);
      if (sample.tflops && std::isfinite(*sample.tflops) && *sample.tflops >= 0)
        tflops.push_back(*sample.tflops);
    };
    if (speed_.settled.empty())
      for (const LogSample& sample : run_.samples) collect(sample);
    else
      for (const std::size_t i : speed_.settled) collect(run_.samples[i]);
    if (!mfu.empty()) claimed_mfu_ = mean_of(mfu);
    if (!tflops.empty()) claimed_tflops_ = mean_of(tflops);
  }

  bool has_speed() const { return speed_.refusal.empty(); }
  /// Returns tokens/s over all GPUs: tokens over time. Null if unknown.
  std::optional<double> tokens_per_s() const {
    if (!has_speed()) return std::nullopt;
    if (whole_rate_) return whole_rate_;
    if (tokens_ && !speed_.step_s.empty()) return *tokens_ / mean_of(speed_.step_s);
    return std::nullopt;
  }
  std::optional<double> tokens_per_s_per_gpu() const {
    if (!has_speed()) return std::nullopt;
    if (const auto all = tokens_per_s(); all && gpus_) return *all / static_cast<double>(*gpus_);
    if (speed_.per_gpu.empty()) return std::nullopt;
    double time = 0;  // of a token
    for (const double rate : speed_.per_gpu) time += 1 / rate;
    return static_cast<double>(speed_.per_gpu.size()) / time;
  }
  std::optional<double> mfu() const {
    const auto rate = tokens_per_s_per_gpu();
    if (!rate || !model_ || !seq_ || !gpu_ || !gpu_->peaks || !gpu_->peaks->bf16_tflops) return std::nullopt;
    return *rate * model_->causal / (*gpu_->peaks->bf16_tflops * 1e12);
  }

  void say(std::string line) { out_.lines.push_back(std::move(line)); }

  void describe() {
    describe_case();
    describe_speed();
    if (run_.memory)
      say(fmt::format("memory: {:.2f} GiB {}", static_cast<double>(run_.memory_bytes) / 0x1p30,
                      name_of(*run_.memory)));
    describe_loss();
    if (recipe_ && model_) say(fmt::format("recipe: {}", short_printable(*recipe_, kLongestName)));
    if (!out_.missing.empty())
      say(fmt::format("no record: the log does not say {}", fmt::join(out_.missing, ", ")));
    for (const std::string& conflict : out_.conflicts) say("no record: " + conflict);
  }

  void describe_case() {
    std::string line = model_ ? model_->name : std::string("model unknown");
    const RunFacts& facts = run_.facts;
    std::vector<std::string> agree;
    if (model_ && facts.parameters && *facts.parameters == model_->parameters)
      agree.push_back(thousands(static_cast<double>(model_->parameters)) + " parameters");
    if (convention_) agree.emplace_back("FLOPs/token");
    if (!agree.empty()) line += fmt::format(": {} agree", fmt::join(agree, " and "));
    if (!model_ && facts.parameters)
      line += fmt::format(" ({} parameters)", thousands(static_cast<double>(*facts.parameters)));
    if (seq_) line += fmt::format("; seq {}", *seq_);
    if (batch_) line += fmt::format(", global batch {}", *batch_);
    if (gpus_ && gpu_)
      line += fmt::format(", {} x {}", *gpus_, gpu_->name);
    else if (gpu_)
      line += ", " + gpu_->name;
    else if (gpus_)
      line += ", " + plural(static_cast<std::size_t>(*gpus_), "GPU");
    say(std::move(line));
    if (model_ && facts.parameters && *facts.parameters != model_->parameters && out_.conflicts.empty())
      warn(fmt::format("the log's model has {} parameters, {} has {}",
                       thousands(static_cast<double>(*facts.parameters)), model_->name,
                       thousands(static_cast<double>(model_->parameters))));
    if (model_ && seq_ && logged_flops_ && !convention_)
      warn(fmt::format(
          "FLOPs: the log's numbers give {:.4g} GFLOP/token, ours are {:.4g} (half of attention), {:.4g} (all of it); no "
          "match, so its TFLOP/s and MFU are not imported. Check --model, --seq and --gpus",
          *logged_flops_ / 1e9, model_->causal / 1e9, model_->full / 1e9));
  }

  void warn(std::string line) {
    say(line);
    warnings_.push_back(std::move(line));
  }

  void describe_speed() {
    if (const auto clock = clock_step_s(run_)) {
      if (has_speed() && !speed_.step_s.empty() && mean_of(speed_.step_s) > *clock * kLongestOverClock)
        warn(fmt::format(
            "by the clock of the lines a step takes {:.4g} s, by tokens/s {:.4g} s: check --global-batch, --seq and --gpus",
            *clock, mean_of(speed_.step_s)));
      const auto usual = usual_clock_step_s(run_);
      if (usual && has_speed() && !speed_.step_s.empty() && !run_.samples.back().step_s &&
          *usual > mean_of(speed_.step_s) * kPausesOverStep)
        warn(fmt::format(
            "by the clock of the lines a step takes {:.4g} s, by the log's rate {:.4g} s: check --global-batch, --seq and --gpus, "
            "unless the run pauses before every line",
            *usual, mean_of(speed_.step_s)));
      if (!batch_ && !run_.samples.empty() && run_.samples.back().samples_per_s)
        say(fmt::format("global batch: about {:.0f} by the clock of the lines ({:.3f} s a step)",
                        *clock * *run_.samples.back().samples_per_s, *clock));
    }
    if (speed_.step_tokens)
      say(fmt::format("tokens of a step: {} (time x tokens/s)", thousands(*speed_.step_tokens)));
    if (!has_speed()) {
      say("speed: " + speed_.refusal);
      return;
    }
    const std::string steps = run_.whole && run_.whole->settled
                                  ? "after warm-up"
                                  : fmt::format("steps {}-{}", speed_.first_step, speed_.last_step);
    std::string line;
    if (const auto rate = tokens_per_s_per_gpu()) {
      const bool mean = !(run_.whole && run_.whole->settled);
      line = fmt::format("tokens/s per GPU {} ({}{}", thousands(*rate), steps, mean ? ", mean" : "");
      if (!speed_.per_gpu.empty() && speed_.per_gpu.size() > 1)
        line += fmt::format("; median {}", thousands(sample_statistics(speed_.per_gpu)->median));
      line += ")";
    } else if (const auto all = tokens_per_s()) {
      line = fmt::format("tokens/s {} of all GPUs ({}, mean)", thousands(*all), steps);
    } else if (!speed_.step_s.empty()) {
      line = fmt::format("step {:.4g} s ({}, mean; median {:.4g} s)", mean_of(speed_.step_s), steps,
                         sample_statistics(speed_.step_s)->median);
    } else {
      double sum = 0;
      for (const std::size_t i : speed_.settled) sum += run_.samples[i].samples_per_s.value_or(0);
      line = fmt::format("samples/s {:.4g} of all GPUs ({}, mean)",
                         sum / static_cast<double>(speed_.settled.size()), steps);
    }
    if (const auto own = mfu()) line += fmt::format("   MFU {:.1f}%", 100 * *own);
    if (claimed_mfu_)
      line += fmt::format(
          "{}(log: {:.1f}%{})", mfu() ? " " : "   MFU ", 100 * *claimed_mfu_,
          convention_ ? fmt::format("; {}", counted(*convention_)) : "; counted in another way or unknown");
    else if (convention_)
      line += fmt::format(" (the log's TFLOP/s: {})", counted(*convention_));
    say(std::move(line));
    if (run_.whole && !run_.whole->settled)
      warn("the speed is a mean over the whole run, its start included");
  }

  void describe_loss() {
    const LogSample* last = nullptr;
    std::size_t lines = 0;
    for (const LogSample& sample : run_.samples)
      if (sample.loss) last = &sample, ++lines;
    if (last)
      say(fmt::format("loss {:.4f} at {} {} ({}, {})", *last->loss, run_.facts.counts_lines ? "line" : "step",
                      last->step, plural(lines, "line"), kind_of_loss()));
    if (run_.facts.counts_lines)
      warn(
          "the log has no steps, so its lines are counted: compare it only with runs that print a line as often");
  }

  const char* kind_of_loss() const {
    const std::string kind = log_.format->loss;
    return kind == "window" ? "means of the steps between lines"
           : kind == "ema"  ? "smoothed by the program"
                            : "of single steps";
  }

  CaseFields case_fields() const {
    nlohmann::ordered_json fields;
    fields["model"] = model_->name;
    fields["recipe"] = short_printable(*recipe_, kLongestName);
    fields["seq"] = *seq_;
    fields["batch"] = run_.facts.local_batch && *run_.facts.local_batch > 0 ? *run_.facts.local_batch
                      : *batch_ % *gpus_ == 0                               ? *batch_ / *gpus_
                                                                            : 1;
    fields["gpus"] = *gpus_;
    fields["seed"] = given_.seed       ? nlohmann::ordered_json(*given_.seed)
                     : run_.facts.seed ? nlohmann::ordered_json(*run_.facts.seed)
                                       : nlohmann::ordered_json();
    fields["source"] = log_.format->program;
    fields["global_batch"] = *batch_;
    fields["window_steps"] = speed_.window;
    return fields;
  }

  std::string created(const std::string& written) const {
    if (run_.facts.created) return short_printable(*run_.facts.created, kLongestName);
    for (auto sample = run_.samples.rbegin(); sample != run_.samples.rend(); ++sample)
      if (sample->time) return iso_time(*sample->time);
    return written;
  }

  ImportSource make_source() const {
    ImportSource source;
    source.program = log_.format->program;
    source.format = log_.format->name;
    if (run_.facts.version) source.version = short_printable(*run_.facts.version, kLongestName);
    source.file_sha256 = log_.sha256;
    source.run = static_cast<std::int64_t>(number_);
    source.lines_used = log_.lines.used;
    source.lines_header = log_.lines.header;
    source.lines_skipped = log_.lines.skipped;
    source.window_steps = speed_.window;
    if (tokens_ && *tokens_ >= 1 && *tokens_ <= 0x1p53) source.tokens_per_step = std::llround(*tokens_);
    if (has_speed()) source.first_step = speed_.first_step, source.last_step = speed_.last_step;
    source.convention = convention_;
    source.claimed_mfu = claimed_mfu_;
    source.claimed_tflops = claimed_tflops_;
    source.loss = log_.format->loss;
    if (run_.memory) source.memory = name_of(*run_.memory), source.memory_bytes = run_.memory_bytes;
    for (const LogSample& sample : run_.samples)
      if (sample.loss) source.steps.push_back(sample.step);
    return source;
  }

  void add_speed(Record& record) const {
    if (!has_speed() || speed_.step_s.empty()) return;
    Timing& timing = record.timing.emplace();
    for (const double seconds : speed_.step_s) timing.samples_ms.push_back(1e3 * seconds);
    const SampleStatistics statistics = *sample_statistics(timing.samples_ms);
    timing.warmup = speed_.settled.empty() ? 0 : static_cast<std::int64_t>(speed_.settled.front());
    timing.stop_reason = StopReason::fixed_steps;
    timing.median_ms = statistics.median;
    timing.min_ms = statistics.min;
    // Means of windows say nothing about the spread of steps.
    if (speed_.window == 1) timing.iqr_ms = statistics.iqr();
    const auto all = tokens_per_s();
    if (!all) return;
    Metrics& metrics = record.metrics.emplace();
    metrics.speed_from = "mean";
    metrics.tokens_per_s = *all;
    metrics.tokens_per_s_per_gpu = *all / static_cast<double>(*gpus_);
    metrics.tflops_per_gpu = *metrics.tokens_per_s_per_gpu * record.flops->per_token / 1e12;
    metrics.peaks = gpu_->peaks;
    if (const auto own = mfu()) metrics.mfu_bf16 = *own;
  }

  Record make_record(const std::string& written) const {
    Record record;
    record.method_version = kImportMethodVersion;
    record.case_fields = case_fields();
    std::uint64_t hash = kFingerprintStart;
    add_to_fingerprint(hash, nlohmann::ordered_json(record.case_fields).dump());
    record.id = fmt::format("{:016x}", hash);
    record.created = created(written);
    record.env.gpu = GpuRecord{gpu_->name, {}, {}, {}, {}, {}, {}, {}};
    record.flops = Flops{model_->causal, "causal"};
    record.source = make_source();
    record.warnings = warnings_;
    add_speed(record);
    if (run_.memory == MemoryKind::driver) record.memory = Memory{{}, {}, run_.memory_bytes};
    Training& training = record.training.emplace();
    if (!whole_rate_) training.tokens_per_step = record.source->tokens_per_step;
    for (const LogSample& sample : run_.samples) {
      if (!sample.loss) continue;
      training.loss.push_back(*sample.loss);
      if (std::isfinite(*sample.loss) || record.status != Status::ok) continue;
      record.status = Status::diverged;
      record.error = fmt::format("the loss is not finite at step {}", sample.step);
    }
    if (host_.predict) record.predicted = host_.predict(record);
    return record;
  }

  /// Largest relative difference of two counts of a step's tokens, one of which is rounded in the log.
  static constexpr double kSameTokens = 0.02;
  /// MFU above what a clock higher than the data sheet's explains.
  static constexpr double kHighestMfu = 1.05;
  /// Ratio of a step's time to the clock's from which something is wrong: a step cannot take longer than the clock.
  static constexpr double kLongestOverClock = 1.05;
  /// Ratio of the clock's usual time between lines to that of their steps from which pauses are unlikely to explain it.
  static constexpr double kPausesOverStep = 1.5;
  /// Ratio of the parameters of two models that are not variants of each other.
  static constexpr double kOtherModel = 1.5;

  const LogFile& log_;
  LogRun run_;
  std::size_t number_;
  const ImportValues& given_;
  const ImportHost& host_;
  std::optional<std::int64_t> seq_, gpus_, batch_;
  std::optional<double> tokens_;  ///< of a step
  std::optional<std::string> recipe_;
  std::optional<ImportGpu> gpu_;
  std::optional<ImportModel> model_;
  RunSpeed speed_;
  std::optional<double> whole_rate_;  ///< tokens/s of a run with totals alone
  std::optional<double> logged_flops_, claimed_mfu_, claimed_tflops_;
  std::optional<std::string> convention_;
  std::vector<std::string> warnings_;
  ImportedRun out_;
};

}  // namespace

ImportedRun import_run(const LogFile& log, std::size_t number, const ImportValues& given,
                       const ImportHost& host, const std::string& written) {
  return RunImport(log, number, given, host).judge(written);
}

}  // namespace precbench
