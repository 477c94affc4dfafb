// Rows of a study, indexed by StudyPlace and paired: a recipe's fork with the BF16 fork of the
// same state and data.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/analysis/analysis.h"
#include "tools/analysis/fork_verdict.h"

namespace precbench {

/// Key shared by paired rows. `state`: fingerprint of the forked checkpoint, since a trunk that was run again
/// need not end with the same bits.
struct StudyCell {
  std::int64_t trunk = 0, age = 0, seed = 0;
  double rung = 0;
  std::string state;
  auto operator<=>(const StudyCell&) const = default;
};
using StudyCells = std::map<StudyCell, const Record*>;

/// A recipe's row and the row to compare it with, BF16's or an incumbent's.
struct StudyPair {
  const StudyCell& cell;
  const Record &recipe, &reference;
};

/// Returns the rows that have a reference of the same cell.
std::vector<StudyPair> pairs_of(const StudyCells& recipe, const StudyCells& reference);

/// Rows of one study, model and machine. The records must outlive it.
struct StudyRows {
  std::string model, machine, study;
  double margin = 0, level = 0;              ///< as in StudyPlace
  std::set<std::string> asked;               ///< recipes that the study asks about
  std::map<std::string, std::string> apart;  ///< controls, and the recipe each must differ from
  std::set<std::string> breaks;              ///< controls that must be beyond half the margin
  std::optional<std::string> against;        ///< incumbent of the study; null: none
  /// by part and recipe; of part bits, by the recipe that lost bits
  std::map<std::pair<StudyPart, std::string>, StudyCells> cells;
  StudyCells perturbed;                        ///< BF16 forks that give the noise floor
  const Record* trunk = nullptr;               ///< a successful one; all have the same learning rates
  std::optional<std::int64_t> trained_tokens;  ///< as in StudyPlace
  std::optional<bool> steady;                  ///< as in StudyPlace

  /// Returns the tokens per parameter that a trunk's model had seen when forks began at `age`,
  /// including those of its initial weights. Null if no trunk succeeded or if the tokens of the initial
  /// weights are unknown.
  std::optional<double> tokens_per_parameter(std::int64_t age) const;
  const StudyCells& of(StudyPart part, const std::string& recipe) const;
  /// Returns the rows that have a BF16 fork of the same part. Bit ladders are paired with
  /// the plain BF16 fork.
  std::vector<StudyPair> pairs(StudyPart part, const StudyCells& recipe) const;
  std::vector<StudyPair> pairs(StudyPart part, const std::string& recipe) const {
    return pairs(part, of(part, recipe));
  }
};

/// Returns the studies by model name. Ignores records of no study and rows with an invalid StudyPlace.
std::vector<StudyRows> study_rows(const RecordRefs& records);

/// Returns the mean over the last half of the losses, or of the first `steps`. Null if the run failed, has
/// fewer losses or a non-finite one among them.
std::optional<double> trailing_loss(const Record& record);
std::optional<double> trailing_loss(const Record& record, std::size_t steps);

}  // namespace precbench
