// The settings of a study, read from TOML. The embedded cpu.toml and gpu.toml set and explain every key; a
// user's file changes some of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/cli/axis.h"

namespace precbench {

/// Recipes in which a fork's last weights are read besides BF16 (--eval-recipes). own: the fork's own recipe; BF16's
/// forks are read in all recipes of the study, too.
enum class Readings : std::uint8_t { none, own, all };

struct StudySettings {
  Axes work;         ///< fields of every case, one value each except for model and recipe
  Axes trunk, fork;  ///< fields of trunks only and of forks only
  std::int64_t trunks = 0;
  std::vector<std::int64_t> ages;  ///< steps, ascending; unused if `steady`
  bool steady = false;             ///< forks begin at the age from which BF16's loss is steady (steady.h)
  std::int64_t rewarm_first = 0, rewarm_most = 0;  ///< steps: first and largest candidate age
  /// Number of tokens that the weights of --init-from have seen; null if unknown.
  std::optional<std::int64_t> trained_tokens;
  std::int64_t fork_steps = 0;
  std::int64_t seeds = 0;
  Readings readings = Readings::all;  ///< of the forks' last weights; none without held-out text
  std::int64_t fidelity_batches = 0;  ///< 0: gradients are not compared
  std::string sensitivity;            ///< groups of cells (sensitivity_groups.h); empty: none
  std::int64_t sensitivity_batches = 0;
  bool sensitivity_only = false;  ///< true: no forks and no ladders

  std::int64_t ladder_trunks = 0, channels = 0;
  std::string channels_place;  ///< "FILE:LINE" of `channels`, for errors that depend on the model
  std::vector<std::int64_t> outlier_ffn, outlier_norm, outlier_vo;  ///< exponents of two
  std::vector<double> learning_rate;                                ///< factors of the forks' rate
  std::int64_t bits = 0, exponent_bits = 0;  ///< mantissa and exponent bits to remove, one by one
  std::vector<std::int64_t> batch;           ///< sequences per rank

  std::vector<std::pair<std::string, std::string>>
      apart;                        ///< control, and the recipe that it must differ from
  std::vector<std::string> breaks;  ///< controls that must be beyond half the margin
  std::string against;              ///< recipe that the others are compared with too; empty: none
  double margin = 0;                ///< as a fraction of BF16's loss
  double level = 0;                 ///< probability of any wrong verdict

  /// Returns the ages at which trunks keep their state, youngest first: those of the settings, or if `steady`
  /// the doublings of rewarm_first up to rewarm_most. Throws InvalidInput if these are fewer than two.
  std::vector<std::int64_t> kept_ages() const;
  /// Returns true if trunks start from weights given by --init-from.
  bool starts_trained() const;
};

struct StudyKind {
  bool on_gpu = false;
  bool trained = false;  ///< trunks start from weights given by --init-from
};
/// Returns the built-in settings.
StudySettings default_study(const StudyKind& kind);

/// Applies the file at `path`. Throws InvalidInput, "FILE:LINE: why", for errors of sweep files, for fields
/// that a study sets itself, and for numbers outside their range.
void read_study_file(const std::string& path, StudySettings& settings);

/// Returns the default without --config: "64 on a GPU, 4 elsewhere" if they differ; null for fields that a
/// study sets itself.
std::optional<std::string> default_of_study(const Field& field);

/// Sets the groups of cells, given as words with or without commas; "none" means no group. Throws
/// InvalidInput.
void set_sensitivity(StudySettings& settings, const std::vector<std::string>& words);

/// Throws InvalidInput if a study sets this field itself: --steps, --seed, --fork-from and the like.
void check_study_field(const std::string& name);

/// Throws InvalidInput for invalid values, and for several values of a field that all cases of a study share;
/// only models and recipes may be several.
void check_study_words(const Field& field, const std::vector<std::string>& words);

/// Returns where a study is told what looks like this flag, given without its dashes: "trunks is a key of [trunk] in
/// the file of --config". Empty for other commands than study, and if it is no key of a study file.
std::string study_flag_hint(const std::string& command, const std::string& flag);

}  // namespace precbench
