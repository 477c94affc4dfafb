// Checks of a whole training step on a device against the CPU device. The FP32 reference model is the truth, and
// the CPU device's error against it, in the same recipe, bounds the device's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/checks/finding.h"
#include "models/checks/trial_step.h"

namespace precbench::checks {

/// Makes a device on which equal runs give equal bits: no autotuning, additions in a fixed order.
using MakeDevice = std::function<std::unique_ptr<Device>()>;

/// Runs forward and backward on fresh weights and random tokens, the same for every setup of one size. Experts
/// are forced, because rounding could otherwise change the choice between nearly equal logits.
double random_step(TrialStep& step, const StepSetup& setup);

/// Steps of one setup in several recipes; setup.recipe is ignored.
class StepChecks {
 public:
  /// Runs the FP32 model, and the CPU device in every recipe, which takes a while.
  StepChecks(const StepSetup& setup, const std::vector<Recipe>& recipes, int cpu_threads = 2);

  /// Judges a step in one of the recipes: loss, gradients, the update, and, on a device with graphs, a replay,
  /// whose bits must be those of the plain run. `what` begins the findings; their path is "step" and the recipe.
  Findings check(const Recipe& recipe, const MakeDevice& make_device, const std::string& what);

 private:
  StepSetup setup_;
  int threads_;
  double loss_ = 0;
  Named truth_;
  /// Largest error of the loss on the CPU device, of all recipes with and without quantization.
  double quantized_error_ = 0, bf16_error_ = 0;
};

/// Compares two runs of the same work. Returns a finding on `path` that fails if any bit differs.
Finding check_repetition(const std::string& path, const std::string& what, const Named& first,
                         const Named& again);

}  // namespace precbench::checks
