// Step time of a trace: one stream of ops, collectives beside them, and waits.
//
// While a collective runs, it takes a share of the SMs and of the memory bandwidth, so ops run at a lower rate.
// Collectives of one lane run one after the other, each from its start, or when the one before it is done.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "bench/predict/trace.h"

namespace precbench {

/// Times of what a trace names, by its index there.
struct TimelineRates {
  std::vector<double> op_seconds;
  std::vector<double> collective_seconds;  ///< alone on the machine
  std::vector<double> contention;          ///< fraction of their rate that ops lose beside a collective
  // By op, as in CostModel::Time. The timeline does not need them; the interval does.
  std::vector<bool> borrowed = {};
  std::vector<std::optional<double>> ratio_errors = {};
};

/// Where the time of a step goes. The parts add up to `seconds`.
struct StepTime {
  double seconds = 0;
  std::array<double, kOpClasses> class_seconds{};  ///< ops, as if nothing ran beside them
  double contention = 0;                           ///< additional time of ops beside collectives
  std::vector<double> exposed;                     ///< waits, by communicator whose collective was waited for

  double exposed_seconds() const;
  /// Adds a number of times, which may be negative or a fraction.
  void add(const StepTime& time, double count);
};

/// Returns the sum of both times, each so many times.
StepTime weighted(const StepTime& a, double count_of_a, const StepTime& b, double count_of_b);

/// Returns the time of a step.
StepTime step_time(const Trace& trace, const TimelineRates& rates);
/// Returns the time of the events [begin, end) alone, each once.
StepTime time_of_events(const Trace& trace, const TimelineRates& rates, std::size_t begin, std::size_t end);

}  // namespace precbench
