// Samples that runs of a recipe need to a target loss, beside those of reference runs: accepted if they need no more than a
// tolerated share of additional samples.
//
// Samples to the target: sequences up to the first line at which the mean of the last kLinesOfTarget losses is at most the target,
// a run that does not get there never. A recipe is accepted if two tests at kFalseAcceptance reject that it needs (1 + tolerance)
// times the reference's samples or more:
//   rank sums   exact (Mann and Whitney, 1947). Whatever the distribution is, a recipe whose runs need stochastically that many
//               samples or more is accepted with at most this probability. Ties count against it.
//   means       of the logarithms, Welch's t with the degrees of freedom of the smaller arm: also where the spreads differ.
// Every run that was started must be among the runs: leaving out bad ones voids the rate. samples_to_target_test.cpp simulates it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/import/run_arms.h"

namespace precbench {

/// Highest probability to accept a recipe that needs more than the tolerated samples.
inline constexpr double kFalseAcceptance = 0.01;
inline constexpr std::size_t kLinesOfTarget = 5;

/// Returns the sequences until a curve reaches the target; infinity if it does not.
double samples_to_target(const LossCurve& curve, double target, std::int64_t global_batch);

struct TargetVerdict {
  bool accepted = false;
  double rank_p = 1, mean_p = 1;
  std::optional<double> ratio;  ///< of the geometric means; null if a run does not reach the target
  std::string reason;           ///< why it is not accepted; empty if it is
};

/// Judges samples to target of two arms. `tolerance`: a fraction.
TargetVerdict judge_samples(const std::vector<double>& reference, const std::vector<double>& arm,
                            double tolerance);

/// Returns the number of runs of each arm with which an equal recipe would be accepted with a probability of about 80%, at the
/// larger spread of these two; null if 1000 are not enough or a spread is unknown.
std::optional<int> runs_to_accept(const std::vector<double>& reference, const std::vector<double>& arm,
                                  double tolerance);

/// Returns the exact probability that of all orders of two arms at least `wins` pairs have the arm's run first.
double rank_sum_p(std::size_t reference, std::size_t arm, std::size_t wins);

/// Returns the sentences about an arm of a group whose first arm is the reference.
std::vector<std::string> target_sentences(const ArmGroup& group, const RunArm& arm, double target,
                                          double tolerance);

}  // namespace precbench
