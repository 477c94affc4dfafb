// Change points of a series of runs: where its level moved, by rank sums and permutations.
//
// Values are logarithms of step times. Each value has a board (the GPU, or the host, that ran it). Boards of one model
// differ by 0.7% to 1.2%, runs on one board by 0.03% to 0.48%, so runs are only compared with runs of the same board:
// - A segment is split where the rank sum, standardized and summed over the boards (van Elteren), is largest, with at
//   least `fewest_runs` comparable runs on either side. Runs of a board that one side lacks are not comparable.
// - The split counts if at most a fraction `level` of random permutations of the values within the boards has a rank
//   sum as large at its own best split. Both parts are then examined in the same way.
// - Then the smallest changes are removed until each is at least `least` and at least `deviations` standard deviations
//   of the runs, and until each side has eight runs if neighbouring nights are correlated. The deviation is robust: neither a few slow nights nor other changes enter it.
//
// Ranks, a robust deviation and a minimum size are needed together: run times have heavy tails and drift from night to
// night, and a history is examined again every night, so each of its nights is a chance of a false alarm. README.md has
// the simulated rates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace precbench {

struct ChangeRules {
  std::size_t fewest_runs = 5;  ///< comparable runs on either side of a change
  double level = 0.001;         ///< of the permutation test
  double least = 0.015;         ///< smallest change, as a fraction of the step time
  double deviations = 3;        ///< smallest change, in standard deviations of a run
  std::uint64_t seed = 1;       ///< of the permutations
};

/// Shift of a series by Hodges and Lehmann: the median of all differences between runs of both sides on one board.
/// Fractions of the step time: 0.02 is 2% longer.
struct Shift {
  double change = 0, low = 0, high = 0;  ///< with its 95% interval, widened by the runs' autocorrelation
};

struct ChangePoint {
  std::size_t at = 0;  ///< first run after the change
  Shift shift{};
};

/// Returns the changes in order. `values`: finite, in order of time; `boards`: a number for each, in no order.
std::vector<ChangePoint> change_points(std::span<const double> values, std::span<const std::uint32_t> boards,
                                       const ChangeRules& rules = {});

/// Returns the shift at `at`; all zero if no board has runs on both sides.
Shift shift_at(std::span<const double> values, std::span<const std::uint32_t> boards, std::size_t at);

/// Returns the robust standard deviation of a run around the level of its board between changes at `changes`
/// (ascending).
double run_deviation(std::span<const double> values, std::span<const std::uint32_t> boards,
                     const std::vector<std::size_t>& changes);

}  // namespace precbench
