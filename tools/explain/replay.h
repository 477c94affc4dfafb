// Replays a step's launches and kernels, without the profiler's overhead and with changes, to predict what a repair
// gains.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/explain/step_work.h"

namespace precbench {

/// A kernel's launch, or a wait of the host for all launched kernels. Times are nanoseconds.
struct ReplayItem {
  bool waits = false;
  bool removed = false;  ///< neither launches nor waits
  std::size_t work = 0;  ///< of a launch: index in StepWork::work
  double host = 0;       ///< work of the host since the item before, as traced
  double hole = 0;       ///< time since the item before in which the host called nothing
  double compile = 0;    ///< likewise, in which it compiled
  double duration = 0;   ///< of the kernel
  double gap = 0;        ///< between this kernel and what it waited for on the GPU
  std::int32_t stream = 0;
  std::size_t after = kNone;  ///< item on another stream whose end released this kernel

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
};

using ReplayItems = std::vector<ReplayItem>;

/// Returns the items of a step in the order of their launches. `waits_at_end`: each step ends with a wait.
std::vector<ReplayItem> replay_items(const TrainingTrace& trace, const StepWork& step, bool waits_at_end);

/// Returns the time of a step among equal ones. `host_share`: of ReplayItem::host.
double replay(const std::vector<ReplayItem>& items, double host_share);

/// Returns the share of the host's traced time between launches that is left without the profiler: a launch is a fixed
/// piece of work, so the time of one shows how slow the profiler made this host.
double host_share_of(const TrainingTrace& trace, const StepWork& step);

}  // namespace precbench
