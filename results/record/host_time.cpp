// Mean times of the two clocks. See host_time.h.
#include "results/record/host_time.h"

#include <numeric>

namespace precbench {

std::optional<double> mean_step_ms(const Timing& timing) {
  double sum = 0;
  std::size_t parts = 0;
  auto begin = timing.samples_ms.begin();
  const auto add_until = [&](auto end) {
    if (begin == end) return;
    sum += std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
    ++parts;
    begin = end;
  };
  for (const TimingRun& run : timing.runs)
    if (run.samples >= 0 && run.samples <= timing.samples_ms.end() - begin) add_until(begin + run.samples);
  add_until(timing.samples_ms.end());
  if (parts == 0) return std::nullopt;
  return sum / static_cast<double>(parts);
}

std::optional<double> between_steps_ms(const Timing& timing) {
  const auto device = mean_step_ms(timing);
  if (!device || !timing.wall_ms) return std::nullopt;
  return *timing.wall_ms - *device;
}

}  // namespace precbench
