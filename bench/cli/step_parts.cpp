// Lists and compares the parts of steps. See step_parts.h.
#include "bench/cli/step_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "bench/cli/predictions.h"
#include "bench/predict/predict.h"

namespace precbench {

std::vector<StepPart> parts_of_step(const LayoutEstimate& estimate, const std::vector<std::string>& axes) {
  const StepEstimate& step = estimate.step;
  std::map<std::string, double> seconds;
  for (int i = 0; i < kOpClasses; ++i)
    seconds[name_of(static_cast<OpClass>(i))] += step.time.class_seconds[static_cast<std::size_t>(i)];
  for (std::size_t i = 0; i < axes.size() && i < step.time.exposed.size(); ++i)
    seconds["exposed " + axes[i]] += step.time.exposed[i];
  seconds["slowed"] += step.time.contention;
  seconds["bubble"] += estimate.bubble_seconds;
  seconds["stragglers"] += step.seconds - step.time.seconds;
  std::vector<StepPart> parts;
  for (const auto& [name, value] : seconds)
    if (value > 0) parts.push_back({name, value});
  std::stable_sort(parts.begin(), parts.end(),
                   [](const StepPart& a, const StepPart& b) { return a.seconds > b.seconds; });
  return parts;
}

std::string savings_text(const std::vector<StepPart>& slower, const std::vector<StepPart>& faster) {
  constexpr std::size_t kSavings = 3;
  constexpr double kLeast = 0.01;
  struct PartChange {
    std::string name;
    double before = 0, after = 0;
    double saved() const { return before - after; }
    std::string text() const {
      return fmt::format("{} {} -> {} ms", name, ms_text(1e3 * before), ms_text(1e3 * after));
    }
  };
  std::vector<PartChange> changes;
  double all = 0;
  for (const StepPart& part : slower) {
    changes.push_back({part.name, part.seconds});
    all += part.seconds;
  }
  for (const StepPart& part : faster) {
    const auto known = std::find_if(changes.begin(), changes.end(),
                                    [&](const PartChange& change) { return change.name == part.name; });
    if (known == changes.end())
      changes.push_back({part.name, 0, part.seconds});
    else
      known->after = part.seconds;
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const PartChange& a, const PartChange& b) { return a.saved() > b.saved(); });
  std::vector<std::string> savings;
  for (const PartChange& change : changes)
    if (savings.size() < kSavings && change.saved() > (savings.empty() ? 0 : kLeast * all))
      savings.push_back(change.text());
  std::string text = fmt::format("{}", fmt::join(savings, ", "));
  if (!changes.empty() && -changes.back().saved() > kLeast * all) text += "; more: " + changes.back().text();
  return text;
}

}  // namespace precbench
