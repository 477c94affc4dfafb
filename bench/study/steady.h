// Finds the age from which the BF16 loss of a study's trunks is steady. Trunks that start from given trained
// weights are first re-warmed: the optimizer's moments fill, and the loss settles on the new text. Forks
// begin once it has settled.
//
// The rule: candidate ages are those with a checkpoint. The losses of all trunks from a candidate to the last
// step are fitted together by least squares:
//   loss(trunk, step) = offset(trunk) + slope * log2(step)
// Every trunk reads other batches, so the residuals are noise of the batches. The loss is steady from the
// first candidate whose slope a two-sided t test at `level` does not tell from zero. No steps follow the last
// candidate, so it cannot be shown to be steady: it is used, with a warning, if no earlier candidate is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "results/record/statistics.h"

namespace precbench {

struct SteadyAge {
  std::int64_t age = 0;  ///< steps of the trunks before the forks
  bool steady = false;   ///< false: the last candidate, because the loss moved from every earlier one on
  /// Change of the loss from the age to the last step, nats, with its interval at 1 - level; if none is
  /// steady, from the candidate before the last.
  MeanWithInterval change;
};

/// `losses`: nats, by trunk and step, all of them as long as the last candidate. `candidates`: ascending, at
/// least two, the last two at least two steps apart. Throws InvalidInput for a loss that is not finite.
SteadyAge find_steady_age(const std::vector<std::vector<double>>& losses,
                          const std::vector<std::int64_t>& candidates, double level);

/// Returns a text such as "BF16's loss is steady from step 100 on: it moves by -0.0031 nats [-0.0101,
/// +0.0039] until step 400".
std::string describe(const SteadyAge& found, std::int64_t last);

}  // namespace precbench
