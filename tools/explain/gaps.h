// Time in which the GPU waits, by cause.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tools/explain/step_work.h"

namespace precbench {

enum class GapCause : std::uint8_t {
  device,       ///< between kernels that were queued in time
  launch,       ///< the host launches kernels more slowly than the GPU runs them
  synchronize,  ///< the host waited for the GPU, and had to catch up
  host,         ///< the host did something else
  compile       ///< torch.compile
};
inline constexpr int kGapCauses = 5;

struct Gaps {
  std::array<std::int64_t, kGapCauses> time{};
  std::array<std::int64_t, kGapCauses> count{};
  std::int64_t in_optimizer = 0;  ///< of `launch`, between kernels of the optimizer
  std::string waited_in;          ///< call in which the host waited longest
  std::int64_t waits = 0;         ///< calls in which the host waited
  std::int64_t compile_time = 0;  ///< of the host, in the step
  /// Time that the host needs for the step's launches: without waits, holes in which nothing is called, and compilation.
  std::int64_t host_time = 0;

  std::int64_t operator[](GapCause cause) const { return time[static_cast<std::size_t>(cause)]; }
};

Gaps find_gaps(const TrainingTrace& trace, const StepWork& step);

}  // namespace precbench
