// The rows of a study, found by their places and paired: a recipe's fork with the BF16 fork of the same state and data.
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

/// What paired rows have in common. `state`: fingerprint of the checkpoint that they fork, since a trunk that was run
/// again need not have ended in the same bits.
struct StudyCell {
  std::int64_t trunk = 0, age = 0, seed = 0;
  double rung = 0;
  std::string state;
  auto operator<=>(const StudyCell&) const = default;
};
using StudyCells = std::map<StudyCell, const Record*>;

/// A recipe's row and BF16's.
struct StudyPair {
  const StudyCell& cell;
  const Record &recipe, &bf16;
};

/// Those of one study, model and machine. The records must outlive it.
struct StudyRows {
  std::string model, machine, study;
  double margin = 0, level = 0;              ///< as in StudyPlace
  std::set<std::string> asked;               ///< recipes
  std::map<std::string, std::string> apart;  ///< controls, and what each must be told apart from
  std::set<std::string> breaks;              ///< controls that must be beyond half the margin
  std::map<std::pair<StudyPart, std::string>, StudyCells>
      cells;                      ///< by recipe; of part bits by the one that lost them
  StudyCells perturbed;           ///< BF16 forks that give the noise floor
  const Record* trunk = nullptr;  ///< one that ended well; the rates of all are the same
  std::optional<std::int64_t> trained_tokens;  ///< as in StudyPlace
  std::optional<bool> steady;                  ///< as in StudyPlace

  /// Returns the tokens for each parameter that a trunk's model had seen when forks began at `age`: those of its first
  /// weights and its own. Null where no trunk ended well, and of weights of which nobody said how many they had seen.
  std::optional<double> tokens_per_parameter(std::int64_t age) const;
  const StudyCells& of(StudyPart part, const std::string& recipe) const;
  /// Rows that have a BF16 fork of the same part; of part bits, one that is no ladder's.
  std::vector<StudyPair> pairs(StudyPart part, const StudyCells& recipe) const;
  std::vector<StudyPair> pairs(StudyPart part, const std::string& recipe) const {
    return pairs(part, of(part, recipe));
  }
};

/// In the order of models' names. Rows that say of themselves what no study says are passed over.
std::vector<StudyRows> study_rows(const RecordRefs& records);

/// The mean over the last half of the losses, or of the first `steps`; null where the run did not end well, one of them is
/// not finite, or there are fewer.
std::optional<double> trailing_loss(const Record& record);
std::optional<double> trailing_loss(const Record& record, std::size_t steps);

}  // namespace precbench
