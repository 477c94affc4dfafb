// Functions that `advise` needs from the half of the program that runs cases: plans, dry runs and data sheets. Modules
// of tools/ read records and know nothing of bench/, so the program hands these functions over.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "results/record/record.h"
#include "results/record/statistics.h"

namespace precbench {

/// A GPU model. What is unknown here is taken from records of that GPU.
struct GpuModel {
  std::string name{};                                      ///< as the driver reports it
  std::optional<std::string> cc{};                         ///< compute capability, "9.0"
  std::optional<std::int64_t> memory{};                    ///< bytes
  std::optional<double> bf16_tflops{}, memory_gb_per_s{};  ///< dense peak and bandwidth
};

/// A predicted step, and its speed over BF16's with the 80% interval.
struct PredictedSpeed {
  double step_ms = 0;
  MeanWithInterval over_bf16;
};

/// The setting in which a recipe is predicted to train fastest among those that fit.
struct RecipeSetting {
  std::string recipe;
  nlohmann::ordered_json fields{};  ///< the whole case; null if there is none
  double tokens_per_s = 0;          ///< all GPUs together
  MeanWithInterval over_bf16{};     ///< over BF16's best setting, 80%
  double peak_bytes = 0;   ///< of the rank that needs most; without a setting the least of those tried
  std::string reason{};    ///< why there is none
  bool too_large = false;  ///< every setting needs more memory
  bool runs = true;        ///< precbench runs it; false: it only predicts such layouts
};

/// Speed of other training software over ours, and its speed-up over BF16 over ours, with 80% intervals.
struct StackSpeed {
  MeanWithInterval speed, speedup;
  std::vector<std::string> no_evidence;  ///< lines on what no comparison covers
};

struct AdviseHost {
  using Words = std::map<std::string, std::string>;  ///< field name (snake_case) -> text as typed

  /// Returns a whole case with the given fields, the others at their defaults; names are canonical. Throws
  /// InvalidInput.
  std::function<nlohmann::ordered_json(const Words&)> case_of;
  /// Returns the record of a case that did not run: definition, FLOPs, predicted memory, counts of ops (without
  /// times) and collectives. Status `unsupported` with the reason if the case cannot run. Throws InvalidInput.
  std::function<Record(const nlohmann::ordered_json& case_fields)> dry_run;
  /// Returns what the cost model predicts for a case on GPUs of that name; null if it knows none, if the case cannot
  /// run or if its formats are not native there. May be empty.
  std::function<std::optional<PredictedSpeed>(const nlohmann::ordered_json& case_fields,
                                              const nlohmann::ordered_json& bf16_fields,
                                              const std::string& gpu)>
      predict = {};
  /// Returns the flags of the smallest change with which a case runs on GPUs that leave `bytes` to it, "--recompute
  /// block"; null if there is none. May be empty.
  std::function<std::optional<std::string>(const nlohmann::ordered_json& case_fields, std::int64_t bytes)>
      nearest_change = {};
  /// A question for the best settings of several recipes.
  struct SettingQuestion {
    Words given;                       ///< fields that the search may not change
    std::vector<std::string> recipes;  ///< "bf16" first
    std::string gpu;
    std::int64_t bytes = 0;      ///< that a case may need
    bool runnable_only = false;  ///< no layouts that precbench only predicts
    bool wants_least = true;     ///< false: the bytes of a recipe of which nothing fits need not be the least
  };
  /// Returns the best setting of each recipe, in their order, at equal tokens per optimizer step. Empty if no rates
  /// of such GPUs are known. May be empty.
  std::function<std::vector<RecipeSetting>(const SettingQuestion&)> best_settings = {};
  /// A question for the speed of other training software in a case, and in BF16.
  struct StackQuestion {
    std::string stack, gpu;
    nlohmann::ordered_json fields;
    double tokens_per_s = 0;  ///< ours
    nlohmann::ordered_json bf16_fields;
    double bf16_tokens_per_s = 0;
  };
  /// Returns null for a GPU without a machine file. May be empty.
  std::function<std::optional<StackSpeed>(const StackQuestion&)> stack_speed = {};
  /// Returns the built-in recipes whose formats such a GPU multiplies natively; null if that is unknown. May be empty.
  std::function<std::optional<std::vector<std::string>>(const GpuModel&)> native_recipes = {};
  /// Returns the bytes that a case may need on such a GPU; null if its memory is unknown. May be empty.
  std::function<std::optional<std::int64_t>(const GpuModel&)> case_bytes = {};
  /// Returns the other GPU model whose rates of ops its predictions take, without a ratio between both that was measured;
  /// null if there is none. May be empty.
  std::function<std::optional<std::string>(const GpuModel&)> rates_borrowed_from = {};
  /// GPUs whose data sheet is known.
  std::vector<GpuModel> known_gpus;
  std::optional<GpuModel> gpu_here;  ///< null without a GPU
};

}  // namespace precbench
