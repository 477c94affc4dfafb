// Time in which the GPU waits, by cause.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

  std::int64_t operator[](GapCause cause) const { return time[static_cast<std::size_t>(cause)]; }
};

/// Returns true for a call of the CUDA runtime in which the host waits for the GPU.
bool is_synchronization(std::string_view name);

/// Something on the host that delays launches after it.
struct HostDelay {
  std::int64_t begin, end;
  GapCause cause;  ///< synchronize, host or compile
};

/// Returns the delays of the step's host, sorted by their ends.
std::vector<HostDelay> host_delays(const TrainingTrace& trace, const StepWork& step, Gaps* gaps = nullptr);

Gaps find_gaps(const TrainingTrace& trace, const StepWork& step);

}  // namespace precbench
