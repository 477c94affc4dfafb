// A plan is a resolved case: its definition and the options of parameters, transformer and optimizer that a
// rank needs. Shared by the run and its prediction.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/case.h"
#include "bench/case/case_words.h"
#include "bench/case/definition.h"
#include "kernels/numerics/recipe.h"
#include "models/transformer/optimizer/optimizer.h"
#include "models/transformer/transformer.h"

namespace precbench {

/// A resolved case: `fields` as the user gave them, and everything derived from them.
struct Plan : Definition {
  Case fields;
  std::string id;  ///< case_id()
  Recipe bf16;
  ParameterOptions parameters;
  OptimizerOptions optimizer;
  std::int64_t B = 0, T = 0;
  int ranks = 1, accumulation = 1;
  DataParallel data_parallel = DataParallel::ddp;
  Reshard reshard = Reshard::on;         ///< `automatic` is decided by the session
  GradSync grad_sync = GradSync::every;  ///< likewise
  Recompute recompute;
  bool fp8_gather = false, fp8_weights = false;
  ReduceAmax reduce_amax = ReduceAmax::off;
  GraphMode graph = GraphMode::on;
  bool deterministic = false;
  CheckpointKeep checkpoint_keep = CheckpointKeep::last;
  bool on_gpu = false;
  /// Documents of --packing on; null without, or if the file cannot be read, which the run says.
  std::shared_ptr<const PackedLengths> packed;
  std::uint64_t seed = 0;
  RoutingChoice routing;
  double capacity = 0;
  float balance = 0, z_loss = 0;
  ExchangeOptions exchange;
  std::optional<StudyPlace> study;  ///< of a case that a study runs; written into the row, not part of the id

  /// Returns true if --grad-sync makes a difference: sharded ranks with several micro-steps.
  bool has_grad_sync() const { return parameters.parallel.weight_shards() > 1 && accumulation > 1; }
  /// Returns true if sequences are packed with documents.
  bool packs() const { return kSwitchWords.find(fields.packing).value(); }
  /// Returns the model FLOPs per token of a training step.
  std::int64_t flops_per_token() const;
  /// Tokens of one rank in a micro-step.
  std::int64_t tokens_per_micro_step() const { return B * T / parameters.parallel.context; }
  /// Tokens of all ranks in an optimizer step; ranks that share a sequence count once.
  std::int64_t tokens_per_step() const { return B * T * parameters.parallel.batch_ranks() * accumulation; }
  /// Returns a rank's options, whose recipe_of uses the first step's recipes. It refers to this plan, which
  /// must outlive the transformer.
  TransformerOptions transformer(int rank) const;
  /// Returns options of the same model in BF16, for evaluations. Needs no more memory than a training step in
  /// BF16.
  TransformerOptions bf16_transformer(int rank) const;
  /// Returns the recipe of a linear layer, given the converted layers.
  const Recipe& recipe_of(const ConvertedLayers& layers, std::int64_t layer, LinearRole role) const {
    return layers.converts(layer, role) ? layers.recipe : bf16;
  }
  /// Returns "layers.0-15.{qkv,o,gate_up,down}", "lm_head"; for a later recipe "from step 82 bf16: none".
  std::vector<std::string> converted_layers() const;
  /// Returns warnings for the record, a line each: model_warnings() and those of the recipe.
  std::vector<std::string> warnings() const;
  /// Returns a line for each setting of the model's file that a step ignores.
  std::vector<std::string> model_warnings() const;
  /// Returns a warning if the sequence is longer than the model's positions; null otherwise.
  std::optional<std::string> position_warning() const;
};

/// Judges a case by the rules of its fields (rules.h) and resolves it into a plan; the only place that does either.
/// Everything downstream asks the plan. Throws InvalidInput, which names the flag, for what can never run: a value that is
/// not one of the field, an unknown model or recipe, fields that exclude each other. Ranks, shapes and formats that are not
/// supported together pass, and become rows "unsupported" (unsupported_reason).
/// `model`: shape in place of that of the model that the case names, which a cut to some layers applies to: a tensor rank's
/// share, a published shape. Its plan has no id: no record is made of it, and searches validate thousands.
Plan validate(const Case& c, Refusals refusals = Refusals::thrown, const ModelConfig* model = nullptr);
/// Judges the cases of a grid. A recipe that conflicts with its case gives a plan with a `refusal`, unless
/// no other case is left: then the first refusal is thrown as InvalidInput.
std::vector<Plan> validate(const std::vector<Case>& cases);

/// Returns why a plan cannot run, which becomes the reason of a row "unsupported"; null if it can.
std::optional<std::string> unsupported_reason(const Plan& plan);
/// Returns the first linear layer among these whose shape the recipe does not support, with the reason; null
/// if none.
std::optional<std::string> layers_unsupported_reason(const Plan& plan, const ConvertedLayers& layers);
/// Returns why the weights cannot be read in another recipe (--eval-recipes); null if they can.
std::optional<std::string> reading_unsupported_reason(const Plan& plan, const ConvertedLayers& reading);
/// Returns why gradients cannot be compared with BF16's (--fidelity-batches); null if they can.
std::optional<std::string> fidelity_unsupported_reason(const Plan& plan);

/// Returns true if a case has a flag of a layout that is only predicted.
bool is_predicted_only(const Case& c);
/// Returns true if bench/predict/case_layout.h predicts the step and memory of a case; a dry run does so for all others. Such a
/// case has a flag of a layout that is only predicted, or tensor ranks on a GPU: runs support them for fewer models than
/// predictions do.
bool has_layout(const Case& c);
/// Returns the rule that such a layout breaks, with the nearest value that works where there is one; null if it can be
/// predicted. The rules of one rank's share are unsupported_reason()'s.
std::optional<std::string> layout_unsupported_reason(const Plan& plan);
/// Largest number of forward passes of all stages of a pipeline schedule, which are simulated one by one.
inline constexpr std::int64_t kMostPipelinePasses = std::int64_t{1} << 20;
/// Returns true if several ranks hold the same optimizer state, which --shard-optimizer can divide: replicas of ddp and hsdp,
/// and ranks with the same experts.
bool has_optimizer_replicas(const Case& c, const ModelConfig& model);

/// Returns "--glob: why" if a field is set that has no effect on any of `cases`, such as --glob without a
/// folder of text; else null. A value that affects some cases only is fine. `flags`: fields set on the
/// command line. `file`: fields set in the sweep or study file, which are ignored if a flag has made them
/// useless.
std::optional<std::string> unused_option(const std::vector<Plan>& cases, const Axes& flags, const Axes& file);
/// Throws InvalidInput if there is an unused option, or a case that is only predicted although cases are `to_run`.
void refuse_unfit(const std::vector<Plan>& cases, const Axes& flags, const Axes& file, bool to_run);

/// Returns the record of a case that has not run yet: id, case, definition and the current time.
Record start_record(const Plan& plan);

}  // namespace precbench
