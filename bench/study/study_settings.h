// What a study does: a file in TOML with everything in it, of which users give what they want otherwise. cpu.toml and
// gpu.toml, which this program has inside it, are the whole of it and explain the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/cli/axis.h"

namespace precbench {

struct StudySettings {
  Axes work;         ///< fields of every case, one word each but for model and recipe
  Axes trunk, fork;  ///< fields of theirs alone
  std::int64_t trunks = 0;
  std::vector<std::int64_t> ages;  ///< steps, ascending; not used where `steady`
  bool steady = false;             ///< forks begin at the age from which BF16's loss is steady (steady.h)
  std::int64_t rewarm_first = 0, rewarm_most = 0;  ///< steps: the first and the largest age that may be
  /// Tokens that the weights of --init-from had seen; null where nobody said.
  std::optional<std::int64_t> trained_tokens;
  std::int64_t fork_steps = 0;
  std::int64_t seeds = 0;
  std::int64_t fidelity_batches = 0;  ///< 0: no gradients are compared
  std::string sensitivity;            ///< groups of cells (sensitivity_groups.h); empty: none
  std::int64_t sensitivity_batches = 0;
  bool sensitivity_only = false;  ///< no forks, no ladders

  std::int64_t ladder_trunks = 0, channels = 0;
  std::string channels_place;  ///< "FILE:LINE" where they are set, for how many there are is the model's
  std::vector<std::int64_t> outlier_ffn, outlier_norm, outlier_vo;  ///< exponents of two
  std::vector<double> learning_rate;                                ///< factors
  std::int64_t bits = 0, exponent_bits = 0;  ///< of mantissa and of exponent, taken away one by one
  std::vector<std::int64_t> batch;           ///< sequences a rank

  std::vector<std::pair<std::string, std::string>>
      apart;                        ///< a control, and the recipe that it must differ from
  std::vector<std::string> breaks;  ///< controls that must be beyond half the margin
  double margin = 0;                ///< fraction of BF16's loss
  double level = 0;                 ///< chance of any wrong verdict

  /// Returns the ages at which trunks keep their state, youngest first: those of the settings, or where `steady` the
  /// doublings of rewarm_first up to rewarm_most. Throws InvalidInput where these are fewer than two.
  std::vector<std::int64_t> kept_ages() const;
  /// Returns whether trunks start from weights that --init-from names.
  bool starts_trained() const;
};

/// Returns the built-in settings for a CPU or a GPU; `trained`: those for a study with --init-from.
StudySettings default_study(bool on_gpu, bool trained = false);

/// Sets what the file at `path` says. Throws InvalidInput, "FILE:LINE: why", for what sweep files are refused for, for a
/// field that a study sets itself, and for numbers outside their range.
void read_study_file(const std::string& path, StudySettings& settings);

/// What a study without --config has: "64 on a GPU, 4 elsewhere" where they are two; null of what a study sets itself.
std::optional<std::string> default_of_study(const Field& field);

/// Sets the groups of cells, given as words with or without commas; "none" is none. Throws InvalidInput.
void set_sensitivity(StudySettings& settings, const std::vector<std::string>& words);

/// Throws InvalidInput where a study sets this field itself: --steps, --seed, --fork-from and the like.
void check_study_field(const std::string& name);

/// Throws InvalidInput for words that no case can have, and for several where all cases of a study share one: only models
/// and recipes are several.
void check_study_words(const Field& field, const std::vector<std::string>& words);

}  // namespace precbench
