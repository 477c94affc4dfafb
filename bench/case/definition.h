// The definition of a case is what its names stand for, as data: written out in full in every record, and
// hashed into the case's id. Models and recipes are looked up by name only here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/case.h"
#include "bench/case/sensitivity_groups.h"
#include "bench/case/stress.h"
#include "kernels/numerics/recipe.h"
#include "models/config/config.h"
#include "models/data/data.h"
#include "results/record/definition_record.h"

namespace precbench {

/// Source of the tokens.
struct DataDefinition {
  std::string
      kind;  ///< "synthetic", "text", or the extension of another kind of file: "bin", "u16", "u32", "jsonl"
  std::optional<std::uint64_t> fingerprint;  ///< of the files (fingerprint.h); null if synthetic or missing
  std::int64_t seed = 0;
};

/// Source of the first weights.
struct InitDefinition {
  std::optional<std::uint64_t> fingerprint;  ///< of the checkpoint; null if drawn or missing
  double deviation = kInitializerRange;      ///< of drawn matrices
  std::int64_t seed = 0;                     ///< of drawn matrices
  bool drawn = true;
  bool forked = false;           ///< true if the checkpoint is a run's whole state, false if weights alone
  bool perturbed = false;        ///< one unit in the last place is added to one weight
  std::optional<Stress> stress;  ///< applied before the perturbation
};

/// A recipe and the linear layers that run with it; the others run in BF16.
struct ConvertedLayers {
  using Roles = std::array<bool, kRolesAndParts>;

  Recipe recipe;
  std::vector<Roles> converted;  ///< per block and role; q, k and v only if qkv is split
  bool head_converted = false;   ///< true if lm_head is converted, too

  /// `layer`: a block; any value for the head.
  bool converts(std::int64_t layer, LinearRole role) const {
    const LinearRole chosen = recipe_role(role);
    return chosen == LinearRole::head     ? head_converted
           : chosen == LinearRole::router ? false
                                          : converted[layer][static_cast<int>(chosen)];
  }
  bool any() const;
  /// True if all linear layers of the block are converted.
  bool converts_block(std::int64_t layer) const;
};

/// Layers or recipe that apply from a later step on.
struct LaterLayers : ConvertedLayers {
  std::int64_t from = 0;  ///< number of steps of the run before the change
};

/// Everything that determines a run, with all names looked up.
struct Definition : ConvertedLayers {
  std::optional<std::string> refusal;  ///< reason why the recipe conflicts with the case; null if it does not
  ModelConfig model;
  std::vector<LaterLayers> later;  ///< in ascending order of `from`
  DataDefinition data;
  InitDefinition init;
  std::optional<std::uint64_t> held_out;  ///< fingerprint of --eval-data; null if none or missing
  std::vector<Stress> fidelity_stresses;
  std::vector<SensitivityGroup> sensitivity;  ///< empty: not measured
  /// Recipes of --eval-recipes in which the final weights are read, each once and without BF16. Scales are those of the
  /// tensors themselves: who serves a model has no amax history of its training.
  std::vector<ConvertedLayers> readings;
};

/// Treatment of a case whose recipe conflicts with its other fields (for example, a schedule without a number
/// of steps): throw InvalidInput, or keep the case with a `refusal`, which becomes an "unsupported" row
/// beside the cases that can run.
enum class Refusals : std::uint8_t { thrown, kept };

struct Plan;

/// Fills in the definition of a plan whose fields are known: looks names up, reads files of models and recipes, samples data
/// and checkpoints for their fingerprints. Each is read once per process, since many cases share it and ids must not change
/// midway. `model`: in place of the one that the case names; null: that one. Throws InvalidInput for an unknown model or
/// recipe, and for what breaks a rule of input (rules.h). Data and checkpoints are opened later (case_files.h).
void define(Plan& plan, const ModelConfig* model, Refusals refusals);

/// Returns the first step with a delayed-scaling recipe, which has no amax history yet; -1 if there is none.
std::int64_t first_delayed_step(const Definition& definition);
/// Returns the number of a step's first micro-steps, of `accumulation`, in which delayed scaling uses current
/// amaxes.
int current_micro_steps(const Definition& definition, std::int64_t step, int accumulation);
/// Returns the first step from `begin` on whose collectives are those of all later steps. While delayed
/// scaling uses current amaxes, ranks exchange these one by one.
std::int64_t typical_step(const Definition& definition, std::int64_t begin, int accumulation);
/// Returns the converted layers and the recipe of a step.
const ConvertedLayers& layers_at(const Definition& definition, std::int64_t step);

/// Returns the object `definition` of a record.
DefinitionRecord definition_record(const Definition& definition);

/// Returns 16 hex digits: FNV-1a over the method version, the definition, the held-out text, and the fields
/// that change the work but are not covered by the definition. Two cases with one id do the same work on the
/// same kind of device.
std::string case_id(const Case& c, const Definition& definition);

/// Throws InvalidInput for a value that is invalid whatever the other fields are: a number below its minimum,
/// an unknown choice, model or recipe.
void check_value(const Field& field, const std::string& text);

/// Return the options of open_data for the training data and for the held-out text, whose order does not
/// depend on the seed.
DataOptions data_options(const Case& c, const ModelConfig& model);
DataOptions held_out_options(const Case& c, const ModelConfig& model);

}  // namespace precbench
