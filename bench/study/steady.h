// From which age on is the BF16 loss of a study's trunks steady? Trunks that start from weights which others trained are
// re-warmed first: the optimizer's moments fill, and the loss settles on the new text. Forks begin when it has.
//
// The rule. Candidate ages are those with a checkpoint. From a candidate on, to the last step, the losses of all trunks are
// fitted together by
//   loss(trunk, step) = offset(trunk) + slope * log2(step),
// least squares; every trunk reads other batches, so the residuals are noise of the batches. The loss is steady from the
// first candidate on whose slope is not told from zero by a two-sided t test at `level`. Nothing follows the last candidate,
// so it cannot be shown to be steady: it is taken, with a warning, where no earlier one is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "results/statistics.h"

namespace precbench {

struct SteadyAge {
  std::int64_t age = 0;  ///< steps of the trunks before the forks
  bool steady = false;   ///< false: the last candidate, as the loss moved from every earlier one on
  /// How far the loss moves from the age to the last step, nats, with its interval at 1 - level; of the candidate before it
  /// where none is steady.
  MeanWithInterval change;
};

/// `losses`: of each trunk, nats, one a step, all of them as long as the last candidate. `candidates`: ascending, at least
/// two, the last two at least two steps apart. Throws InvalidInput for a loss that is not finite.
SteadyAge find_steady_age(const std::vector<std::vector<double>>& losses,
                          const std::vector<std::int64_t>& candidates, double level);

/// "BF16's loss is steady from step 100 on: it moves by -0.0031 nats [-0.0101, +0.0039] until step 400"
std::string describe(const SteadyAge& found, std::int64_t last);

}  // namespace precbench
