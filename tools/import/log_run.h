// The runs of a training log, before anything is inferred from them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "results/record/optional_number.h"

namespace precbench {

/// Kind of a memory value: bytes of tensors in use, bytes that the framework's allocator holds, or the driver's.
enum class MemoryKind : std::uint8_t { allocated, reserved, driver };
const char* name_of(MemoryKind kind);

/// One line of a step, or of several steps that it averages over. Null: not in the line.
struct LogSample {
  std::int64_t step = 0;
  OptionalNumber step_s{};                                ///< seconds of a step
  OptionalNumber tokens_per_s{}, tokens_per_s_per_gpu{};  ///< all GPUs; one
  OptionalNumber samples_per_s{};                         ///< sequences, all GPUs
  OptionalNumber tflops{};                                ///< per GPU
  OptionalNumber mfu{};                                   ///< fraction
  OptionalNumber global_batch{};                          ///< sequences of a step
  OptionalNumber time{};                                  ///< seconds since 1970 by the clock of the line
  std::optional<double> loss{};                           ///< may be NaN or infinite
  int rank = -1;                                          ///< -1: not in the line
};

/// Facts about a run besides its steps. Null: not in the log.
struct RunFacts {
  std::optional<std::string> model, gpu, recipe, version, parallel, created;
  std::optional<std::int64_t> parameters, seq, global_batch, local_batch, gpus, tokens_per_step, seed;
  std::optional<double> peak_flops;  ///< denominator of the log's MFU, FLOP/s
  bool counts_lines = false;         ///< the log has no steps: a sample's step is the number of its line
};

/// Totals of a run whose log has no times of steps.
struct WholeRun {
  std::int64_t steps = 0;
  double seconds = 0;
  OptionalNumber tokens;     ///< null: not counted
  OptionalNumber flops;      ///< of all GPUs
  bool evaluations = false;  ///< `seconds` includes evaluation
  bool settled = false;      ///< `seconds` has no start of a run
};

struct LogRun {
  RunFacts facts;
  std::vector<LogSample> samples;  ///< ascending steps, one per step
  bool from_start = false;         ///< header lines came before the first sample
  std::optional<MemoryKind> memory;
  std::int64_t memory_bytes = 0;  ///< highest
  std::optional<WholeRun> whole;
};

/// Splits the lines of a log into runs: a step that is not after the one before it belongs to a new run, unless it
/// repeats a line of another rank.
class RunCollector {
 public:
  /// Throws InvalidInput after kMostSamples lines, more than any run has.
  void add(const LogSample& sample);
  /// Returns the facts of the current run.
  RunFacts& facts() { return current().facts; }
  /// Returns the facts of the run that a line at a run's start belongs to: a new run if the current one has steps.
  RunFacts& starting_facts();
  void memory(MemoryKind kind, double bytes);
  void whole(const WholeRun& totals) { current().whole = totals; }
  /// Ends the current run if it has steps or totals.
  void end_run();

  bool has_samples() const { return samples_ > 0; }
  std::size_t samples() const { return samples_; }
  LogSample* last() {
    return runs_.empty() || runs_.back().samples.empty() ? nullptr : &runs_.back().samples.back();
  }
  /// Returns the runs with a step or totals.
  std::vector<LogRun> take();

  static constexpr std::size_t kMostSamples = 1'000'000;
  static constexpr std::size_t kMostRuns = 1'000;

 private:
  LogRun& current();
  bool repeats(const LogSample& sample) const;

  std::vector<LogRun> runs_;
  std::map<int, std::int64_t> last_of_rank_;
  std::size_t samples_ = 0;
};

}  // namespace precbench
