// Rules that name lost time: each changes the items of a step as its repair would, and replays them.
#pragma once

#include <cstdint>
#include <map>

#include "tools/explain/findings.h"

namespace precbench {

/// A step as replayed, for the rules.
struct StepRepairs {
  StepRepairs(const TrainingTrace& trace_, Explanation& all_, const Expectation* expectation);

  const TrainingTrace& trace;
  Explanation& all;
  const StepWork& work;
  const Gaps& gaps;
  const Expectation* expected;  ///< null: no rates
  ReplayItems items;            ///< as traced
  ReplayItems remaining;        ///< after the repairs so far that concern the host
  double host_share;            ///< host_share_of() the trace
  double now;                   ///< ns of the step without the profiler

  /// Returns ns of a step without the profiler.
  double time_of(const ReplayItems& of) const { return replay(of, host_share); }
  const Work& work_of(const ReplayItem& item) const { return work.work[item.work]; }

  /// Adds a finding whose repair turns the step into `repaired`. `host`: the repair makes fewer launches or waits, so
  /// that what find_launch_bound() finds is what remains after it.
  void add(Finding finding, const ReplayItems& repaired, bool host = false);
  /// Adds a finding whose repair shortens the step to `predicted` ns, unless that gains too little. Returns true if the
  /// finding was added.
  bool add(Finding finding, double predicted);

  /// Returns the items with the kernels' durations times a factor.
  template <class Factor>
  ReplayItems scaled(const Factor& factor) const {
    ReplayItems repaired = items;
    for (ReplayItem& item : repaired)
      if (!item.waits) item.duration *= factor(work_of(item));
    return repaired;
  }
  /// Returns the items with the durations of GEMMs times the factor of their shape.
  ReplayItems with_gemms(const std::map<GemmShape, double>& factors) const;
};

/// Removes a launch with its kernel.
void remove_launch(ReplayItem& item);

/// Returns milliseconds.
inline double ms_of(double ns) { return ns / 1e6; }
inline double ms_of(std::int64_t ns) { return ms_of(static_cast<double>(ns)); }

// host_rules.cpp
void find_recompilation(StepRepairs& step);
void find_waiting(StepRepairs& step);
void find_copies(StepRepairs& step);
/// Both find the waiting for launches that remains after the other repairs.
void find_graph_breaks(StepRepairs& step);
void find_launch_bound(StepRepairs& step);

// kernel_rules.cpp
/// Finds eager kernels that a compiler would fuse.
void find_not_fused(StepRepairs& step);
void find_optimizer(StepRepairs& step);
void find_attention(StepRepairs& step);
void find_collectives(StepRepairs& step);

// gemm_rules.cpp
void find_wide_gemms(StepRepairs& step);
void find_alignment(StepRepairs& step);
void find_unconverted(StepRepairs& step);
void find_small_gemms(StepRepairs& step);
void find_small_batch(StepRepairs& step);

/// Applies all rules: completes `all` with its findings and the step without the profiler.
void find_lost_time(const TrainingTrace& trace, Explanation& all, const Expectation* expectation);

}  // namespace precbench
