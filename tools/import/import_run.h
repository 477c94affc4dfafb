// Infers from the numbers of a run its settled speed and how the log counts FLOPs, and makes its record.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "results/record/record.h"
#include "tools/import/log_format.h"
#include "tools/import/mapped_log.h"

namespace precbench {

/// A model as far as a log can be checked against it. FLOPs per token of a training step, by convention (flops.h).
struct ImportModel {
  std::string name;
  std::int64_t parameters = 0;
  std::int64_t without_embedding = 0;  ///< parameters but those of the input's embedding
  double causal = 0;                   ///< as our records count: half of attention
  double full = 0;                     ///< attention in full
  double full_with_norms = 0;          ///< attention in full, norms counted as linear layers
};

struct ImportGpu {
  std::string name;                    ///< as the driver reports it
  std::optional<DeviceRates> peaks{};  ///< null: unknown
};

/// The half of the program that knows models, GPUs, predictions and TOML.
struct ImportHost {
  /// Throws InvalidInput for an unknown model.
  std::function<ImportModel(const std::string& name, std::int64_t seq)> model;
  /// Returns the names of presets with exactly so many parameters.
  std::function<std::vector<std::string>(std::int64_t parameters)> models_of_size;
  /// Throws InvalidInput for an unknown GPU. `exact`: the driver's name from a log, which is never refused.
  std::function<ImportGpu(const std::string& words, bool exact)> gpu;
  /// Returns the step of the imported run's stack as predicted; null if it cannot be.
  std::function<std::optional<PredictedStep>(const Record& record)> predict;
  /// Reads the items of a file for --map. Throws InvalidInput.
  std::function<std::vector<MapItem>(const std::string& path)> read_map;
};

/// Values from the command line, which complete those of the log. Null: not given.
struct ImportValues {
  std::optional<std::string> model, recipe, gpu;
  std::optional<std::int64_t> seq, global_batch, gpus, seed;
};

/// Speed of a run's settled lines.
struct RunSpeed {
  std::int64_t window = 1;           ///< steps that a line averages over
  std::vector<std::size_t> settled;  ///< indices of lines after the start
  std::vector<double> step_s;        ///< seconds of a step, for each settled line; empty if unknown
  std::vector<double> per_gpu;       ///< tokens/s of a GPU, likewise
  std::int64_t first_step = 0, last_step = 0;
  std::optional<double> step_tokens;  ///< tokens of a step by the log's own rate and time
  std::string refusal;                ///< why no speed is imported; empty if one is
};

/// Fewest settled lines of a speed.
inline constexpr std::size_t kFewestLines = 3;
/// Largest relative difference of a log's FLOPs per token from a closed form that it is taken for.
inline constexpr double kSameFlops = 0.005;

/// Returns the steps between the lines of a run: the most frequent difference, of equally frequent ones that of which all later
/// steps are multiples.
std::int64_t window_of(const LogRun& run);

/// `tokens_per_step`, `gpus`: null if unknown.
RunSpeed speed_of_run(const LogRun& run, const LogFormat& format,
                      const std::optional<double>& tokens_per_step, const std::optional<std::int64_t>& gpus);

/// Returns the log's FLOPs per token, from its TFLOP/s, or its MFU with its peak, over its tokens/s: the median over the lines.
/// Null if the log does not have both.
std::optional<double> logged_flops_per_token(const LogRun& run, const std::optional<double>& tokens_per_step,
                                             const std::optional<std::int64_t>& gpus);

/// Returns "causal", "full" or "parameters" (6 FLOPs for each parameter but the embedding's); null if none is within kSameFlops.
std::optional<std::string> convention_of(double flops_per_token, const ImportModel& model);

/// A run with what it says, as lines for a person, and its record.
struct ImportedRun {
  std::vector<std::string> lines;
  std::vector<std::string> missing;  ///< "recipe (--recipe)": what the record needs and the log does not say
  std::vector<std::string> conflicts;  ///< values that contradict each other, with the flags to check
  std::optional<Record> record;        ///< null if something is missing or contradicts
};

struct LogFile;

/// Judges a run of a log. `number`: of the run, from 1; `written`: time of the log's last change, ISO 8601.
ImportedRun import_run(const LogFile& log, std::size_t number, const ImportValues& given,
                       const ImportHost& host, const std::string& written);

}  // namespace precbench
