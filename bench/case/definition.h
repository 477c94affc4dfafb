// What a case's names stand for: a definition is data, written out in full in every record, and the id of a case hashes
// it. Here alone models and recipes are looked up by name.
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
#include "results/definition.h"

namespace precbench {

/// Where the tokens come from.
struct DataDefinition {
  std::string kind;  ///< "synthetic", "text", or a token file's ending: "bin", "u16", "u32"
  std::optional<std::uint64_t>
      fingerprint;  ///< of the files (fingerprint.h); null: synthetic, or no such file
  std::int64_t seed = 0;
};

/// The first weights.
struct InitDefinition {
  std::optional<std::uint64_t> fingerprint;  ///< of the checkpoint; null: drawn, or no such file
  double deviation = kInitializerRange;      ///< of drawn matrices
  std::int64_t seed = 0;                     ///< of drawn matrices
  bool drawn = true;
  bool forked = false;           ///< the checkpoint is a run's whole state, not weights alone
  bool perturbed = false;        ///< then by a unit in the last place of one weight
  std::optional<Stress> stress;  ///< before that
};

/// A recipe, and the linear layers that run by it; the others run in BF16.
struct ConvertedLayers {
  using Roles = std::array<bool, kRolesAndParts>;

  Recipe recipe;
  std::vector<Roles>
      converted;  ///< per block, which of its linear layers; q, k and v only where qkv is not one
  bool head_converted = false;  ///< lm_head, too

  /// `layer`: a block, or any for the head.
  bool converts(std::int64_t layer, LinearRole role) const {
    const LinearRole chosen = recipe_role(role);
    return chosen == LinearRole::head     ? head_converted
           : chosen == LinearRole::router ? false
                                          : converted[layer][static_cast<int>(chosen)];
  }
  bool any() const;
  /// Whether all linear layers of the block are.
  bool converts_block(std::int64_t layer) const;
};

/// Other layers, or another recipe, from a step on.
struct LaterLayers : ConvertedLayers {
  std::int64_t from = 0;  ///< steps of the run before it
};

/// What the run begins with, and what it stands for.
struct Definition : ConvertedLayers {
  std::string refusal;  ///< why the recipe does not go with the rest of the case; empty where it does
  ModelConfig model;
  std::vector<LaterLayers> later;  ///< rising in `from`
  DataDefinition data;
  InitDefinition init;
  std::optional<std::uint64_t> held_out;  ///< fingerprint of --eval-data; null: none, or no such file
  std::vector<Stress> fidelity_stresses;
  std::vector<SensitivityGroup> sensitivity;  ///< none: not measured
};

/// How to treat a case whose recipe conflicts with its other fields (for example, a schedule without a number of steps): throw
/// InvalidInput, or keep the case with a `refusal`, which becomes an "unsupported" row beside the cases that can run.
enum class Refusals : std::uint8_t { thrown, kept };

/// Looks everything up: files of models and recipes are read, data and checkpoints are sampled for their fingerprints,
/// once in a process, since many cases share them and ids must not change under way. Throws InvalidInput for what can
/// never run: a value that check_value refuses, an unknown model or recipe, a step of absurd size, a cosine schedule
/// without a number of steps. Shapes that a recipe cannot take pass: they become rows "unsupported". Data and
/// checkpoints are opened later (case_files.h).
Definition define(const Case& c, Refusals refusals = Refusals::thrown);

/// The first step by a recipe with delayed scaling, which has no history yet; -1 where there is none.
std::int64_t first_delayed_step(const Definition& definition);
/// In how many of a step's first micro-steps, of `accumulation`, delayed scaling takes the tensors' own amaxes.
int current_micro_steps(const Definition& definition, std::int64_t step, int accumulation);
/// The first step from `begin` on that exchanges what later ones do. While delayed scaling takes the tensors' own amaxes,
/// ranks exchange these one by one.
std::int64_t typical_step(const Definition& definition, std::int64_t begin, int accumulation);
/// The layers that run by a recipe at this step.
const ConvertedLayers& layers_at(const Definition& definition, std::int64_t step);

/// `definition` of a record.
DefinitionRecord definition_record(const Definition& definition);

/// 16 hex digits: FNV-1a over the method version, the definition, the fields that change the work and that the
/// definition does not cover, and what is held out. Two cases of one id do the same work on the same kind of device.
std::string case_id(const Case& c, const Definition& definition);

/// Throws InvalidInput for a word that no case can have, whatever its other fields say: a number below its minimum, an
/// unknown choice, model or recipe.
void check_value(const Field& field, const std::string& text);

/// What open_data needs to know: of the training data, and of what is held out, whose order is one for all seeds.
DataOptions data_options(const Case& c, const ModelConfig& model);
DataOptions held_out_options(const Case& c, const ModelConfig& model);

}  // namespace precbench
