// Runs the checks of every native path of one device. See kernels/checks and models/checks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/doctor/line.h"
#include "bench/machine/datasheet.h"
#include "bench/machine/verification.h"
#include "kernels/checks/finding.h"
#include "kernels/gpu/device_info.h"
#include "models/config/config.h"

namespace precbench {

/// A device whose paths are checked, opened anew for each kind of check.
struct CheckedDevice {
  std::string name;  ///< "GPU 0", "CPU"
  std::function<std::unique_ptr<Device>(const GpuOptions&)> open;
  /// Implementations to check, as GpuOptions names them.
  std::vector<std::string> gemm_choices, attention_choices;
  std::function<std::optional<DatasheetRates>()>
      peaks{};  ///< of the data sheet; null: its speed is not measured
};
CheckedDevice checked_gpu(int ordinal);
/// The CPU device with another number of threads than the reference; its results must be the same.
CheckedDevice checked_cpu();

/// Returns the built-in recipes, FP4 included.
std::vector<Recipe> every_recipe();

struct PathCheckOptions {
  std::vector<Recipe> recipes = every_recipe();       ///< whose native paths are checked
  bool quick = false;                                 ///< fewer steps, no rates
  std::optional<ModelConfig> model{};                 ///< whose GEMM and attention shapes are checked, too
  std::function<bool()> stop = [] { return false; };  ///< asked between checks
  std::function<void(const std::string& what)> started = [](const std::string&) {};
};

struct PathCheckResult {
  checks::Findings findings;
  HealthLines rates;
  /// Null if everything was judged; else why not.
  std::optional<std::string> incomplete;
};
PathCheckResult run_checks(const CheckedDevice& device, const PathCheckOptions& options);

/// Returns one verdict for each path. A step that disagrees makes the GEMM paths of its recipe disagree: whatever
/// the cause, its result cannot be trusted.
std::map<std::string, PathVerdict> verdicts_of(const checks::Findings& findings);

/// Returns one line for each kind of path (quantizer, gemm, ...), and one for each path that disagrees.
HealthLines summary_of(const std::string& device, const PathCheckResult& result);

}  // namespace precbench
