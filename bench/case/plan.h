// From a case to everything that a rank needs to run it: its definition, options of parameters, transformer and
// optimizer. Shared by the run and its prediction.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/case/case.h"
#include "bench/case/case_limits.h"
#include "bench/case/definition.h"
#include "kernels/numerics/recipe.h"
#include "models/transformer/optimizer.h"
#include "models/transformer/transformer.h"

namespace precbench {

/// A case, resolved: `fields` as the user gave them, and what they stand for.
struct Plan : Definition {
  Case fields;
  std::string id;  ///< case_id()
  Recipe bf16;
  ParameterOptions parameters;
  OptimizerOptions optimizer;
  std::int64_t B = 0, T = 0;
  int ranks = 1, accumulation = 1;
  bool recompute = false, reduce_amax = false, fp8_gather = false, fp8_weights = false;
  bool on_gpu = false;
  std::uint64_t seed = 0;
  RoutingChoice routing;
  double capacity = 0;
  float balance = 0, z_loss = 0;
  ExchangeOptions exchange;
  std::optional<StudyPlace>
      study;  ///< of a case that a study runs; it goes into the row and is no part of the id

  std::int64_t tokens_per_micro_step() const { return B * T; }
  std::int64_t tokens_per_step() const { return B * T * ranks * accumulation; }
  /// recipe_of is that of the first step, and points into this plan, which must outlive the transformer.
  TransformerOptions transformer() const;
  /// The same model in BF16, for a look beside the training: what it takes is no more than a training step in BF16 does.
  TransformerOptions bf16_transformer() const;
  /// The recipe of a linear layer where these layers are converted.
  const Recipe& recipe_of(const ConvertedLayers& layers, std::int64_t layer, LinearRole role) const {
    return layers.converts(layer, role) ? layers.recipe : bf16;
  }
  /// "layers.0-15.{qkv,o,gate_up,down}", "lm_head"; of a later recipe "from step 82 bf16: none"
  std::vector<std::string> converted_layers() const;
  /// Why the ranks, the model's shapes or a linear layer's, which is named, cannot be had; empty if all can.
  std::string why_unsupported() const;
  /// Returns the first linear layer among these whose shape the recipe cannot take, with the reason; empty if there is none.
  std::string why_layers_unsupported(const ConvertedLayers& layers) const;
  /// Why no batch's gradient can be compared with BF16's (--fidelity-batches); empty if it can.
  std::string why_no_fidelity() const;
  /// Why not as in why_unsupported: of experts on several ranks, of the optimizer's state, and of weights and gradients
  /// that are kept in FP8.
  std::string why_experts_unsupported() const;
  std::string why_codes_unsupported() const;
  std::string why_state_unsupported() const;
  std::string why_fp8_unsupported() const;
  /// Of codes that cannot be transposed.
  std::string why_flow_unsupported() const;
  /// Returns what a reader of the record must know, a line each: model_warnings() and those of the recipe.
  std::vector<std::string> warnings() const;
  /// Returns a line for each thing that the model's file asks for and a step does without.
  std::vector<std::string> model_warnings() const;
  /// Returns a line where the sequence is longer than the model is made for; empty otherwise.
  std::string position_warning() const;
};

/// Throws InvalidInput like define(). The one place in which a case is resolved; everything behind it takes the plan.
Plan resolve(const Case& c, Refusals refusals = Refusals::thrown);
/// The cases of a grid. A recipe that does not go with the rest of its case is a plan with a `refusal`, unless no case is
/// left: then the first refusal is thrown as InvalidInput.
std::vector<Plan> resolve(const std::vector<Case>& cases);

/// The record of a case that has not run yet: id, case, definition and the time of this call.
Record start_record(const Plan& plan);

}  // namespace precbench
