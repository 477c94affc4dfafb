// Convergence section: losses of runs from scratch beside BF16's, and their curves.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "kernels/base/plural.h"
#include "results/record/statistics.h"
#include "tools/analysis/columns.h"
#include "tools/analysis/held_out_gap.h"
#include "tools/report/sections.h"
#include "tools/text/figure_data.h"

namespace precbench {
namespace {

/// Minimum number of steps for loss curves; shorter runs only time a recipe.
constexpr std::size_t kFewestShownSteps = 30;
/// Maximum number of points of a curve; more are not visible at a figure's width.
constexpr std::size_t kMostPoints = 300;

using Curve = std::vector<double>;

const std::vector<double>& loss_of(const LocatedRecord& located) { return located.record.training->loss; }

/// Returns the EMA of a run's first `steps` losses; empty if the run is shorter or a loss is not finite.
Curve curve_of(const LocatedRecord& located, std::size_t steps) {
  const std::vector<double>& loss = loss_of(located);
  const auto end = loss.begin() + static_cast<std::ptrdiff_t>(std::min(steps, loss.size()));
  if (loss.size() < steps || !std::all_of(loss.begin(), end, [](double v) { return std::isfinite(v); }))
    return {};
  return ema({loss.begin(), end});
}

/// Calls `visit` with the curve of each seed, one at a time; minus BF16's of the same seed
/// if `bf16` is given.
template <class Visit>
void each_curve(const RecipeLosses& recipe, const RecipeLosses* bf16, std::size_t steps,
                const Visit& visit) {
  std::unordered_map<std::string, const LocatedRecord*> theirs;
  if (bf16)
    for (const LocatedRecord* member : bf16->members)
      if (!curve_of(*member, steps).empty()) theirs.try_emplace(seed_of(member->record), member);
  for (const LocatedRecord* member : recipe.members) {
    const auto other = theirs.find(seed_of(member->record));
    if (bf16 && other == theirs.end()) continue;
    Curve curve = curve_of(*member, steps);
    if (curve.empty()) continue;
    if (bf16) {
      const Curve subtracted = curve_of(*other->second, steps);
      for (std::size_t i = 0; i < steps; ++i) curve[i] -= subtracted[i];
    }
    visit(curve);
  }
}

/// Returns the mean over the seeds, minus BF16's of the same seed if `bf16` is given. Empty without a seed.
Curve mean_curve(const RecipeLosses& recipe, const RecipeLosses* bf16, std::size_t steps) {
  std::size_t count = 0;
  each_curve(recipe, bf16, steps, [&](const Curve&) { ++count; });
  Curve mean(count == 0 ? 0 : steps, 0);
  each_curve(recipe, bf16, steps, [&](const Curve& curve) {
    for (std::size_t i = 0; i < steps; ++i) mean[i] += curve[i] / static_cast<double>(count);
  });
  return mean;
}

/// Calls `visit` with step number (from 1) and index of each step that a figure shows.
template <class Visit>
void at_shown_steps(std::size_t steps, Visit&& visit) {
  const std::size_t stride = std::max<std::size_t>(1, (steps + kMostPoints - 1) / kMostPoints);
  for (std::size_t i = stride - 1; i < steps; i += stride) visit(static_cast<double>(i + 1), i);
}

Series series_of(const std::string& title, int style, const Curve& curve) {
  Series series{title, style, {}};
  at_shown_steps(curve.size(), [&](double step, std::size_t i) {
    series.points.push_back({step, {curve[i]}});
  });
  return series;
}

/// Returns the smallest number of steps of any entry; all curves are drawn up to it.
std::size_t common_steps(const std::vector<RecipeLosses>& recipes) {
  std::size_t steps = 0;
  for (const RecipeLosses& recipe : recipes)
    if (recipe.steps > 0) steps = steps == 0 ? recipe.steps : std::min(steps, recipe.steps);
  return steps;
}

void add_figures(std::vector<Figure>& figures, const ReportInput& input, const MachineRecords& machine,
                 const TrainedGroup& trained) {
  const std::size_t steps = common_steps(trained.recipes);
  const RecipeLosses& first = trained.recipes.front();
  if (trained.recipes.size() < 2 || !first.is_bf16) return;
  std::vector<Series> losses, differences;
  for (const RecipeLosses& recipe : trained.recipes) {
    const std::string name = label_of(row_of(recipe));
    const int style = input.styles.at(name);
    losses.push_back(series_of(name, style, mean_curve(recipe, nullptr, steps)));
    if (!recipe.is_bf16)
      differences.push_back(
          series_of(name, style, mean_curve(recipe, &trained.recipes[recipe.baseline], steps)));
  }
  const std::string setting = setting_of(machine, trained.group->rows.front());
  const double shown = static_cast<double>(std::min(steps, kMostPoints));
  const std::string common = plot_number("every", std::ceil(shown / 8));
  const auto add = [&](const std::string& name, const char* script, const std::string& caption,
                       const std::vector<Series>& series) {
    if (std::all_of(series.begin(), series.end(), [](const Series& s) { return s.points.empty(); })) return;
    figures.push_back({file_name(fmt::format("{} {} {}", name, machine.name, setting)), script,
                       figure_heading(machine, setting), caption, common + plot_series(series)});
  };
  add("loss", "loss", "Training loss (EMA 0.9) by recipe, mean over the seeds.", losses);
  add("loss-difference", "loss_difference",
      "Training loss (EMA 0.9) minus bf16's of the same seed, mean over the seeds.", differences);
}

/// Adds figures of the held-out loss and of its difference from BF16, with intervals over several seeds.
void add_held_out_figures(std::vector<Figure>& figures, const ReportInput& input,
                          const MachineRecords& machine, const TrainedGroup& trained) {
  const auto add = [&](const std::string& name, const std::string& caption, const char* ytext,
                       const auto& curve) {
    std::vector<Series> series;
    bool bars = true;
    for (const RecipeLosses& recipe : trained.recipes) {
      const std::vector<HeldOutPoint> points = curve(recipe);
      if (points.empty()) continue;
      const std::string label = label_of(row_of(recipe));
      series.push_back({label, input.styles.at(label), {}});
      for (const HeldOutPoint& point : points) {
        bars = bars && point.interval;
        std::vector<double> y = {point.mean};
        if (point.interval) y.insert(y.end(), {point.interval->low, point.interval->high});
        series.back().points.push_back({static_cast<double>(point.step), std::move(y)});
      }
    }
    if (series.empty()) return;
    const std::string setting = setting_of(machine, trained.group->rows.front());
    figures.push_back({file_name(fmt::format("{} {} {}", name, machine.name, setting)), "lines",
                       figure_heading(machine, setting),
                       caption + (bars ? " Bars are 95% intervals over the seeds." : ""),
                       (bars ? plot_number("bars", 1) : "") + plot_text("xtext", "step") +
                           plot_text("ytext", ytext) + plot_series(series)});
  };
  add("held-out", "Loss of held-out text by recipe, mean over the seeds.", "held-out loss (nats)",
      held_out_curve);
  add("held-out-difference", "Loss of held-out text minus bf16's of the same seed, mean over the seeds.",
      "held-out loss - bf16 (nats)", [&](const RecipeLosses& recipe) {
        return recipe.is_bf16 ? std::vector<HeldOutPoint>{}
                              : held_out_difference(recipe, trained.recipes[recipe.baseline]);
      });
}

/// Adds a figure of speedup against loss difference, for native recipes with a confidence interval.
void add_tradeoff(std::vector<Figure>& figures, const ReportInput& input, const MachineRecords& machine,
                  const TrainedGroup& trained) {
  std::vector<Series> series;
  std::unordered_map<const LocatedRecord*, const Row*> rows;
  for (const Row& row : trained.group->rows)
    for (const LocatedRecord* member : row.members) rows.emplace(member, &row);
  for (const RecipeLosses& recipe : trained.recipes) {
    const Row& row = *rows.at(recipe.members.front());
    if (recipe.is_bf16 || !row.speedup || !recipe.gap || !recipe.gap_interval) continue;
    const std::string name = label_of(row);
    series.push_back(
        {name,
         input.styles.at(name),
         {{*row.speedup, {*recipe.gap, recipe.gap_interval->low, recipe.gap_interval->high}}}});
  }
  if (series.empty()) return;
  const std::string setting = setting_of(machine, trained.group->rows.front());
  figures.push_back({file_name(fmt::format("tradeoff {} {}", machine.name, setting)), "tradeoff",
                     figure_heading(machine, setting),
                     "Speed-up over bf16 against final loss minus bf16's, with its 95% interval.",
                     plot_series(series)});
}

std::string number_text(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

std::string interval_text(const std::optional<MeanWithInterval>& interval, const char* format) {
  return interval ? fmt::format(fmt::runtime(format), interval->low, interval->high) : "-";
}

/// Returns the final held-out loss, mean over the seeds. The error is that of one seed, since all
/// evaluate the same text.
std::string held_out_text(const RecipeLosses& recipe, std::optional<double> Evaluation::*loss) {
  std::vector<double> losses, errors;
  for (const LocatedRecord* member : recipe.members) {
    const std::vector<Evaluation>& evaluations = member->record.training->evaluations;
    if (evaluations.empty() || !(evaluations.back().*loss)) continue;
    losses.push_back(*(evaluations.back().*loss));
    if (evaluations.back().loss_error) errors.push_back(*evaluations.back().loss_error);
  }
  if (losses.empty()) return "-";
  return fmt::format("{:.4f}{}", mean_and_spread(losses).mean,
                     errors.empty() ? "" : fmt::format(" +-{:.4f}", mean_and_spread(errors).mean));
}

/// Returns the final held-out loss minus BF16's of the same seed, with its 95% interval; "-" without one.
std::string held_out_gap_text(const RecipeLosses& recipe, const RecipeLosses& bf16) {
  if (recipe.is_bf16) return "-";
  const std::vector<HeldOutPoint> points = held_out_difference(recipe, bf16);
  if (points.empty()) return "-";
  const auto& interval = points.back().interval;
  return fmt::format("{:+.4f}{}", points.back().mean,
                     interval ? fmt::format(" [{:+.4f}, {:+.4f}]", interval->low, interval->high) : "");
}

std::string diverged_text(const RecipeLosses& recipe) {
  return recipe.diverged == 0 ? "-" : fmt::format("diverged: {} of {}", recipe.diverged, plural(recipe.members.size(), "run"));
}

RowTable losses_of(const MachineRecords& machine) {
  RowTable result(machine);
  for (const char* title :
       {"final loss (nats)", "95% interval (nats)", "loss gap (nats)", "95% interval (nats)", "held-out loss (nats)",
        "of its weights in bf16 (nats)", "held-out loss gap [95%] (nats)", "above entropy (nats)", "seeds", "steps"})
    result.table.columns.push_back({title});
  result.table.columns.push_back({"diverged", true, false, kOrdinaryRank, tone_of_verdict});
  for (const TrainedGroup& trained : machine.trained) {
    if (!result.table.rows.empty()) result.table.group_starts.push_back(result.table.rows.size());
    for (const RecipeLosses& recipe : trained.recipes) {
      std::vector<std::string>& line = result.begin(row_of(recipe));
      line.push_back(number_text(recipe.final_loss, "{:.4f}"));
      line.push_back(interval_text(recipe.final_interval, "{:.4f} to {:.4f}"));
      line.push_back(number_text(recipe.gap, "{:+.4f}"));
      line.push_back(interval_text(recipe.gap_interval, "{:+.4f} to {:+.4f}"));
      line.push_back(held_out_text(recipe, &Evaluation::loss));
      line.push_back(held_out_text(recipe, &Evaluation::bf16_loss));
      line.push_back(held_out_gap_text(recipe, trained.recipes[recipe.baseline]));
      line.push_back(number_text(recipe.excess_loss, "{:.4f}"));
      line.push_back(fmt::format("{}", recipe.seeds));
      line.push_back(recipe.steps > 0 ? fmt::format("{}", recipe.steps) : "-");
      line.push_back(diverged_text(recipe));
    }
  }
  return result;
}

}  // namespace

Section convergence_section(const ReportInput& input, const MachineRecords& machine) {
  Section section{title_on(input, machine, "Convergence"), {}, {}, {}, {}, true};
  if (machine.trained.empty()) {
    if (std::any_of(machine.analysis.groups.begin(), machine.analysis.groups.end(), [](const Group& group) {
          return std::any_of(group.rows.begin(), group.rows.end(),
                             [](const Row& row) { return row.loss_delta && !row.is_bf16(); });
        })) {
      section.lines = {
          "These runs time the recipes: their losses only show that training went the same way. Runs end after different "
          "numbers of steps, so each is compared after as many as both have done."};
      add_table(section, machine, Topic::loss);
    }
    return section;
  }
  for (const TrainedGroup& trained : machine.trained) add_figures(section.figures, input, machine, trained);
  for (const TrainedGroup& trained : machine.trained) add_held_out_figures(section.figures, input, machine, trained);
  for (const TrainedGroup& trained : machine.trained) add_tradeoff(section.figures, input, machine, trained);
  RowTable losses = losses_of(machine);
  const bool held_out = says_something(losses.table, "held-out loss (nats)"),
             compared = says_something(losses.table, "loss gap (nats)");
  losses.move_to(section);
  section.notes = {"Final loss: mean of the trailing tenth of the steps, over the seeds."};
  if (compared)
    section.notes.front() +=
        " Loss gap: minus bf16's of the same seed. Runs from scratch drift apart by chance, so that a gap between a few of "
        "them is no verdict: precbench study judges a recipe.";
  if (held_out)
    section.notes.push_back(
        "Held-out loss: of text that training did not see, after the last step, over the seeds; +- is the standard error over "
        "its sequences, which are the same in every run.");
  return section;
}

std::vector<TrainedGroup> trained_groups(const MachineRecords& machine) {
  std::vector<TrainedGroup> all;
  for (const Group& group : machine.analysis.groups) {
    TrainedGroup trained{&group, recipe_losses(group)};
    // Runs without a fixed number of steps only time a recipe.
    const bool timed = text_of(group.rows.front(), "steps") == "auto";
    if (!timed && common_steps(trained.recipes) >= kFewestShownSteps) all.push_back(std::move(trained));
  }
  return all;
}

}  // namespace precbench
