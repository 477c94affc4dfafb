// Subtracts two steps. See waterfall.h.
#include "tools/explain/waterfall.h"

#include <algorithm>
#include <cstdlib>

namespace precbench {
namespace {

double gemm_flops(const Explanation& one) {
  double flops = 0;
  for (const GemmRow& row : one.gemms)
    if (row.shape.m > 0) flops += row.shape.flops() * row.calls;
  return flops;
}

}  // namespace

Waterfall waterfall_of(const Explanation& from, const Explanation& to) {
  Waterfall result;
  const StepWork &a = from.steps.step, &b = to.steps.step;
  result.from = a.duration();
  result.to = b.duration();
  for (int c = 0; c < kWorkClasses; ++c) {
    const auto work_class = static_cast<WorkClass>(c);
    const WaterfallPart part{name_of(work_class), a.time(work_class), b.time(work_class)};
    if (part.from != 0 || part.to != 0) result.parts.push_back(part);
  }
  const auto last = std::partition(result.parts.begin(), result.parts.end(), [](const WaterfallPart& part) {
    return part.name != name_of(WorkClass::idle);
  });
  std::stable_sort(result.parts.begin(), last, [](const WaterfallPart& x, const WaterfallPart& y) {
    return std::llabs(x.difference()) > std::llabs(y.difference());
  });
  if (const double before = gemm_flops(from); before > 0) result.work_ratio = gemm_flops(to) / before;
  return result;
}

std::optional<RankWaits> waits_of_ranks(const StepWork& first, const StepWork& second) {
  const auto collectives = [](const StepWork& step) {
    std::vector<std::int64_t> durations;
    for (const Work& work : step.work)
      if (work.work_class == WorkClass::collective) durations.push_back(work.duration);
    return durations;
  };
  const std::vector<std::int64_t> a = collectives(first), b = collectives(second);
  if (a.empty() || a.size() != b.size()) return std::nullopt;
  RankWaits waits{static_cast<int>(a.size())};
  for (std::size_t i = 0; i < a.size(); ++i) {
    waits.first += a[i] - std::min(a[i], b[i]);
    waits.second += b[i] - std::min(a[i], b[i]);
  }
  return waits;
}

std::vector<std::int64_t> rounded_parts(std::int64_t start, const std::vector<std::int64_t>& differences,
                                        std::int64_t unit) {
  const auto nearest = [&](std::int64_t value) {
    return (value >= 0 ? value + unit / 2 : value - unit / 2) / unit * unit;
  };
  std::int64_t exact = start, shown = nearest(start);
  std::vector<std::int64_t> parts = {shown};
  for (const std::int64_t difference : differences) {
    exact += difference;
    const std::int64_t next = nearest(exact);
    parts.push_back(next - shown);
    shown = next;
  }
  return parts;
}

}  // namespace precbench
