// Speed that other training software ("stack") reaches of our step: a factor by recipe, machine, size of step and
// experts, with an interval. The factors come from results/predicted/stacks.json, which the program carries: steps that
// we and a stack ran on the same GPUs, and published throughput over our predicted step (stack_evidence.h makes the
// file).
//
// The logarithm of a factor is a normal random-effects model, one per stack: a common mean, and effects of what two
// steps have in common (StackEffect), whose spreads are estimated from the evidence. An effect that no evidence has
// keeps its whole spread in the interval. Two recipes of one run have most effects in common, which cancel in the ratio
// of their factors: it has an interval of its own.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/machine/machine.h"

namespace precbench {

enum class Stack : std::uint8_t {
  precbench,
  pytorch,  ///< FSDP2, torch.compile and torchao, as in torchtitan
  megatron  ///< Megatron-Core with TransformerEngine, as in NeMo and Megatron-Bridge
};
inline constexpr int kStacks = 3;
const char* name_of(Stack stack);
/// Returns the stack that --stack names. Throws InvalidInput with the known ones.
Stack find_stack(const std::string& name);

/// A step as far as a factor depends on it.
struct StackSetting {
  std::string recipe;
  std::string gpu;           ///< Machine::name
  std::string architecture;  ///< architecture_name() of the machine
  std::string model;         ///< stack_model_key() of the model
  double micro_step_s =
      0;  ///< our time of one micro-step: of the step over accumulation, or a pipeline's micro-batches
  bool several_gpus = false, experts = false;
};
/// Returns the setting of a case whose step takes us `our_step_s`.
StackSetting stack_setting(const Plan& plan, const Machine& machine, double our_step_s);
/// Returns the widths of a model, which models of one shape have in common: "4096x14336".
std::string stack_model_key(const ModelConfig& model);
/// Returns "Hopper" for 90, "Blackwell", "Ada", "Ampere"; empty for others.
std::string architecture_name(int capability);

/// Speed of a stack over ours, or its speed-up over our speed-up.
struct StackFactor {
  double factor = 1;
  double log_error = 0;  ///< standard deviation of its logarithm, for one more source
  /// Lines such as "no evidence for nvfp4 with pytorch". The interval of such a factor is wide.
  std::vector<std::string> no_evidence = {};

  double low() const;   ///< end of the 80% interval
  double high() const;  ///< likewise
};

/// Returns tokens/s of the stack over ours. Exactly 1 for Stack::precbench.
StackFactor stack_factor(Stack stack, const StackSetting& setting);
/// Returns the speed-up of `own` over `base` in the stack, over ours. Exactly 1 for Stack::precbench.
StackFactor stack_speedup_factor(Stack stack, const StackSetting& own, const StackSetting& base);

// Parts of the model, for stack_evidence.h and tests.

/// Variation between two steps of one stack, each with a spread. Those of low precision concern all recipes but BF16's.
enum class StackEffect : std::uint8_t {
  mean,                 ///< common to all steps of a stack
  low_precision,        ///< any recipe but BF16
  recipe,               ///< of the same family (stack_recipe)
  several_gpus,         ///< more than one GPU
  several_low,          ///< low precision on more than one GPU
  architecture,         ///< of the GPU
  gpu,                  ///< machine
  gpu_low,              ///< low precision on one machine
  source,               ///< who measured: software versions, hosts, data center
  source_low,           ///< low precision of one source
  model,                ///< widths
  small_step,           ///< times smallness(), as the following three
  small_low,            ///< low precision in small steps
  small_several,        ///< small steps on more than one GPU
  small_source,         ///< small steps of one source
  experts,              ///< mixture of experts
  experts_several,      ///< experts on more than one GPU
  rest,                 ///< of each step
  rest_experts_several  ///< of each step with experts on more than one GPU
};
inline constexpr int kStackEffects = 19;
const char* name_of(StackEffect effect);
/// Standard deviations of the logarithm.
using StackSpreads = std::array<double, kStackEffects>;

/// Seconds from which on our micro-steps are as fast as longer ones over another stack's: that stack's host, which
/// launches kernels one by one, is no longer felt. FSDP launches more. Of 0.1 and 0.2 s, and of 0.2 to 1.6 s with
/// several GPUs, these two give the evidence the highest likelihood, each with spreads of its own.
inline constexpr double kLargeMicroStep = 0.1, kLargeMicroStepOfSeveral = 0.4;
/// Returns 0 for a large micro-step, and then grows with the logarithm of its time: 1 for one of a fifth.
double smallness(const StackSetting& setting);
/// Returns the family of a recipe that shares its evidence: "tensorwise" of tensorwise_delayed.
std::string stack_recipe(const std::string& recipe);

/// One comparison of a stack with our step: of throughput, or of a speed-up over BF16.
struct StackEvidence {
  Stack stack = Stack::pytorch;
  bool measured = false;  ///< both ran on the same GPUs; else a published value over our predicted step
  bool speedup = false;   ///< `ours` and `theirs` are speed-ups over BF16, else tokens/s per GPU
  std::string source;     ///< whose effect it shares: "tt2412", "h200/fsdp-two 2026-11-25"
  std::string id;         ///< of the published point, or of our record
  std::string name;       ///< of the model
  StackSetting setting;
  double base_micro_step_s = 0;  ///< of BF16's, for a speed-up
  double ours = 0, theirs = 0;
  double log_error = 0;      ///< of `ours`: of our prediction
  std::string assumed = {};  ///< what the source does not say
};

/// Factors from evidence and spreads.
class StackModel {
 public:
  StackModel(std::vector<StackEvidence> evidence, const StackSpreads& spreads);

  const std::vector<StackEvidence>& evidence() const { return evidence_; }
  const StackSpreads& spreads() const { return spreads_; }
  StackFactor factor(Stack stack, const StackSetting& setting) const;
  StackFactor speedup_factor(Stack stack, const StackSetting& own, const StackSetting& base) const;
  /// Returns the same factor as one of the two above does for what the evidence compares, as of a new source.
  StackFactor factor_of(const StackEvidence& evidence) const;
  /// Returns the logarithm of the evidence's likelihood, but for a constant.
  double log_likelihood() const;

 private:
  std::vector<StackEvidence> evidence_;
  StackSpreads spreads_;
  std::vector<std::vector<double>>
      factor_;                   ///< Cholesky factor of the evidence's covariance, rows of a lower triangle
  std::vector<double> weights_;  ///< covariance^-1 times the logarithms of the factors
};

/// Returns the model of results/predicted/stacks.json.
const StackModel& stack_model();
/// Returns the same model without the evidence of a source, for judging that source's values. Valid forever.
const StackModel& stack_model_without(const std::string& source);
/// Parses a file of evidence and spreads. Throws InvalidInput that starts with `where` and names a bad key.
StackModel stack_model_from_json(const nlohmann::json& json, const std::string& where);

}  // namespace precbench
