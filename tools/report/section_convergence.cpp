// Convergence section: verdicts, losses with intervals, and curves with the band of BF16's seeds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "kernels/base/plural.h"
#include "results/record/statistics.h"
#include "tools/analysis/columns.h"
#include "tools/analysis/convergence.h"
#include "tools/analysis/held_out_gap.h"
#include "tools/report/judged_runs.h"
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
void each_curve(const RecipeConvergence& recipe, const RecipeConvergence* bf16, std::size_t steps,
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
Curve mean_curve(const RecipeConvergence& recipe, const RecipeConvergence* bf16, std::size_t steps) {
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

bool has_band(const RecipeConvergence& bf16, std::size_t steps) {
  return bf16.band && bf16.band->ema_mean.size() >= steps;
}

/// Returns the 95% prediction band of BF16's seeds as plot data.
std::string band_of(const RecipeConvergence& bf16, std::size_t steps) {
  std::vector<std::vector<double>> rows;
  const bool some = has_band(bf16, steps);
  if (some)
    at_shown_steps(steps, [&](double step, std::size_t i) {
      rows.push_back({step, bf16.band->ema_low[i], bf16.band->ema_high[i]});
    });
  return plot_number("bands", some ? 1 : 0) +
         plot_text("bandtitle", some ? fmt::format("bf16, {} seeds", bf16.band->seeds) : "") +
         plot_block("band", rows);
}

/// Returns a sentence on the spread of BF16's own seeds, as a scale for paired differences.
std::string spread_of(const RecipeConvergence& bf16, std::size_t steps) {
  if (!has_band(bf16, steps)) return "";
  const std::size_t last = steps - 1;
  return fmt::format(
      " For comparison: at the last step 95% of bf16's seeds lie within {:.2g} nats of their mean.",
      bf16.band->ema_high[last] - bf16.band->ema_mean[last]);
}

/// Returns the smallest number of steps of any entry; all curves are drawn up to it.
std::size_t common_steps(const std::vector<RecipeConvergence>& study) {
  std::size_t steps = 0;
  for (const RecipeConvergence& recipe : study)
    if (recipe.steps > 0) steps = steps == 0 ? recipe.steps : std::min(steps, recipe.steps);
  return steps;
}

void add_figures(std::vector<Figure>& figures, const ReportInput& input, const MachineRecords& machine,
                 const Study& study) {
  const std::size_t steps = common_steps(study.recipes);
  const RecipeConvergence& first = study.recipes.front();
  if (study.recipes.size() < 2 || !first.is_bf16) return;
  std::vector<Series> losses, differences;
  for (const RecipeConvergence& recipe : study.recipes) {
    const std::string name = label_of(row_of(recipe));
    const int style = input.styles.at(name);
    losses.push_back(series_of(name, style, mean_curve(recipe, nullptr, steps)));
    if (!recipe.is_bf16)
      differences.push_back(
          series_of(name, style, mean_curve(recipe, &study.recipes[recipe.baseline], steps)));
  }
  const std::string setting = setting_of(machine, study.group->rows.front());
  const double shown = static_cast<double>(std::min(steps, kMostPoints));
  const std::string common = plot_number("every", std::ceil(shown / 8));
  const auto add = [&](const std::string& name, const char* script, const std::string& caption,
                       const std::string& more, const std::vector<Series>& series) {
    if (std::all_of(series.begin(), series.end(), [](const Series& s) { return s.points.empty(); })) return;
    figures.push_back({file_name(fmt::format("{} {} {}", name, machine.name, setting)), script,
                       figure_heading(machine, setting), caption, common + more + plot_series(series)});
  };
  const char* band = has_band(first, steps) ? " The band is where 95% of bf16's seeds would lie." : "";
  add("loss", "loss", fmt::format("Training loss (EMA 0.9) by recipe, mean over the seeds.{}", band),
      band_of(first, steps), losses);
  add("loss-difference", "loss_difference",
      "Training loss (EMA 0.9) minus bf16's of the same seed, mean over the seeds." + spread_of(first, steps),
      "", differences);
}

/// Adds figures of the held-out loss and of its difference from BF16, with intervals over several seeds.
void add_held_out_figures(std::vector<Figure>& figures, const ReportInput& input,
                          const MachineRecords& machine, const Study& study) {
  const auto add = [&](const std::string& name, const std::string& caption, const char* ytext,
                       const auto& curve) {
    std::vector<Series> series;
    bool bars = true;
    for (const RecipeConvergence& recipe : study.recipes) {
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
    const std::string setting = setting_of(machine, study.group->rows.front());
    figures.push_back({file_name(fmt::format("{} {} {}", name, machine.name, setting)), "lines",
                       figure_heading(machine, setting),
                       caption + (bars ? " Bars are 95% intervals over the seeds." : ""),
                       (bars ? plot_number("bars", 1) : "") + plot_text("xtext", "step") +
                           plot_text("ytext", ytext) + plot_series(series)});
  };
  add("held-out", "Loss of held-out text by recipe, mean over the seeds.", "held-out loss (nats)",
      held_out_curve);
  add("held-out-difference", "Loss of held-out text minus bf16's of the same seed, mean over the seeds.",
      "held-out loss - bf16 (nats)", [&](const RecipeConvergence& recipe) {
        return recipe.is_bf16 ? std::vector<HeldOutPoint>{}
                              : held_out_difference(recipe, study.recipes[recipe.baseline]);
      });
}

/// Adds a figure of speedup against loss difference, for native recipes with a confidence interval.
void add_tradeoff(std::vector<Figure>& figures, const ReportInput& input, const MachineRecords& machine,
                  const Study& study) {
  std::vector<Series> series;
  std::unordered_map<const LocatedRecord*, const Row*> rows;
  for (const Row& row : study.group->rows)
    for (const LocatedRecord* member : row.members) rows.emplace(member, &row);
  for (const RecipeConvergence& recipe : study.recipes) {
    const Row& row = *rows.at(recipe.members.front());
    if (recipe.is_bf16 || !row.speedup || !recipe.delta || !recipe.delta_interval) continue;
    const std::string name = label_of(row);
    series.push_back(
        {name,
         input.styles.at(name),
         {{*row.speedup, {*recipe.delta, recipe.delta_interval->low, recipe.delta_interval->high}}}});
  }
  if (series.empty()) return;
  const std::string setting = setting_of(machine, study.group->rows.front());
  figures.push_back({file_name(fmt::format("tradeoff {} {}", machine.name, setting)), "tradeoff",
                     figure_heading(machine, setting),
                     "Speed-up over bf16 against final loss minus bf16's, with its 95% interval.",
                     plot_series(series)});
}

std::string number_text(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

std::string interval_text(const std::optional<Interval>& interval, const char* format) {
  return interval ? fmt::format(fmt::runtime(format), interval->low, interval->high) : "-";
}

/// Formats a duration: "45 min".
std::string time_text(double seconds) {
  return seconds < 120    ? fmt::format("{:.1f} s", seconds)
         : seconds < 7200 ? fmt::format("{:.0f} min", seconds / 60)
                          : fmt::format("{:.1f} h", seconds / 3600);
}

/// States both criteria, so that the end of a curve is not mistaken for the whole curve.
std::string within_text(const RecipeConvergence& recipe) {
  if (!recipe.ema_errors || !recipe.fit_to_judge) return "-";
  const EmaErrors& errors = *recipe.ema_errors;
  return fmt::format("{} of {} at the end, {} throughout", errors.within_last, errors.runs,
                     errors.within_throughout);
}

/// Returns a sentence on how many runs and recipes meet the field's usual criterion. It cannot replace the
/// verdict, since it ignores noise between seeds.
std::string criterion_of(const std::vector<Study>& studies) {
  struct Count {
    std::size_t all = 0, at_end = 0, throughout = 0;
  } recipes, runs;
  for (const Study& study : studies)
    for (const RecipeConvergence& recipe : study.recipes) {
      if (!recipe.ema_errors || !recipe.fit_to_judge) continue;
      const EmaErrors& errors = *recipe.ema_errors;
      ++recipes.all;
      recipes.at_end += errors.within_last == errors.runs;
      recipes.throughout += errors.within_throughout == errors.runs;
      runs.all += static_cast<std::size_t>(errors.runs);
      runs.at_end += static_cast<std::size_t>(errors.within_last);
      runs.throughout += static_cast<std::size_t>(errors.within_throughout);
    }
  if (recipes.all == 0) return "";
  return fmt::format(
      "DeepSeek-V3's criterion, an EMA(0.9) loss within {:g}% of bf16's of the same seed: {} of {} met it at "
      "the last step, {} at every step after the first tenth. A recipe meets it if all its runs do: {} of {} "
      "at the last step, {} throughout. It takes no account of how far bf16's own seeds lie apart.",
      100 * kEmaTolerance, runs.at_end, plural(runs.all, "run"), runs.throughout, recipes.at_end,
      plural(recipes.all, "recipe"), recipes.throughout);
}

/// Returns the noise criterion with the width of its band: the wider the band, the weaker the statement.
std::string noise_text(const RecipeConvergence& recipe) {
  if (!recipe.in_noise_band || !recipe.noise_half_width) return "-";
  return fmt::format("{}, +-{:.4f} nats", *recipe.in_noise_band ? "yes" : "no", *recipe.noise_half_width);
}

/// Returns the final held-out loss, mean over the seeds. The error is that of one seed, since all
/// evaluate the same text.
std::string held_out_text(const RecipeConvergence& recipe, std::optional<double> Evaluation::*loss) {
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

RowTable verdicts_of(const MachineRecords& machine, const std::vector<Study>& studies) {
  RowTable result(machine);
  result.table.columns.push_back({"verdict", true});
  for (const char* title : {"final loss (nats)", "95% interval (nats)", "loss - bf16 (nats)",
                            "95% interval (nats)", "margin (nats)", "EMA error, last", "EMA error, largest"})
    result.table.columns.push_back({title});
  for (const char* title :
       {"held-out loss (nats)", "of its weights in bf16 (nats)", "held-out loss - bf16 [95%] (nats)"})
    result.table.columns.push_back({title});
  result.table.columns.push_back({fmt::format("runs with EMA error below {:g}%", 100 * kEmaTolerance), true});
  for (const char* title : {"above entropy (nats)", "tokens to target", "time to target", "seeds", "steps"})
    result.table.columns.push_back({title});
  result.table.columns.push_back({"in bf16's noise", true});
  result.table.columns.push_back({"why", true, true});
  for (const Study& study : studies) {
    if (!result.table.rows.empty()) result.table.group_starts.push_back(result.table.rows.size());
    for (const RecipeConvergence& recipe : study.recipes) {
      std::vector<std::string>& line = result.begin(row_of(recipe));
      line.push_back(verdict_words(recipe));
      line.push_back(number_text(recipe.final_loss, "{:.4f}"));
      line.push_back(interval_text(recipe.final_interval, "{:.4f} to {:.4f}"));
      line.push_back(recipe.is_bf16 ? "-" : number_text(recipe.delta, "{:+.4f}"));
      line.push_back(recipe.is_bf16 ? "-" : interval_text(recipe.delta_interval, "{:+.4f} to {:+.4f}"));
      line.push_back(number_text(recipe.margin, "{:.4f}"));
      const auto& errors = recipe.ema_errors;
      line.push_back(errors ? fmt::format("{:+.3f}%", 100 * errors->last) : "-");
      line.push_back(errors ? fmt::format("{:.3f}%", 100 * errors->largest) : "-");
      line.push_back(held_out_text(recipe, &Evaluation::loss));
      line.push_back(held_out_text(recipe, &Evaluation::bf16_loss));
      line.push_back(held_out_difference_text(recipe, study.recipes[recipe.baseline]));
      line.push_back(within_text(recipe));
      line.push_back(number_text(recipe.excess_loss, "{:.4f}"));
      line.push_back(recipe.tokens_to_target ? rate_text(*recipe.tokens_to_target) : "-");
      line.push_back(recipe.seconds_to_target ? time_text(*recipe.seconds_to_target) : "-");
      line.push_back(fmt::format("{}", recipe.seeds));
      line.push_back(recipe.steps > 0 ? fmt::format("{}", recipe.steps) : "-");
      line.push_back(noise_text(recipe));
      line.push_back(recipe.reason);
    }
  }
  return result;
}

bool compares_recipes(const std::vector<Study>& studies) {
  return std::any_of(studies.begin(), studies.end(), [](const Study& study) {
    return std::any_of(study.recipes.begin(), study.recipes.end(),
                       [](const RecipeConvergence& recipe) { return recipe.verdict && !recipe.is_bf16; });
  });
}

}  // namespace

Section convergence_section(const ReportInput& input, const MachineRecords& machine) {
  Section section{title_on(input, machine, "Convergence"), {}, {}, {}, {}, true};
  const std::vector<Study>& studies = machine.studies;
  if (studies.empty()) {
    if (std::any_of(machine.analysis.groups.begin(), machine.analysis.groups.end(), [](const Group& group) {
          return std::any_of(group.rows.begin(), group.rows.end(),
                             [](const Row& row) { return row.loss_delta && !row.is_bf16(); });
        })) {
      section.lines = {fmt::format(
          "These runs time the recipes and are too short to judge convergence (--steps {} is the "
          "least that is judged): the losses only show that training went the same way. Runs end "
          "after different numbers of steps, so each is compared after as many as both have done.",
          kFewestJudgedSteps)};
      add_table(section, machine, Topic::loss);
    }
    return section;
  }
  for (const Study& study : studies) add_figures(section.figures, input, machine, study);
  for (const Study& study : studies) add_held_out_figures(section.figures, input, machine, study);
  for (const Study& study : studies) add_tradeoff(section.figures, input, machine, study);
  RowTable verdicts = verdicts_of(machine, studies);
  const bool targets = says_something(verdicts.table, "tokens to target"),
             noise = says_something(verdicts.table, "in bf16's noise"),
             held_out = says_something(verdicts.table, "held-out loss (nats)");
  verdicts.move_to(section);
  if (const std::string criterion = criterion_of(studies); !criterion.empty())
    section.lines.insert(section.lines.begin(), criterion);
  if (compares_recipes(studies))
    section.lines.insert(
        section.lines.begin(),
        "These verdicts compare runs from scratch, seed by seed, and are weak: such runs drift apart by chance, so that a few "
        "seeds seldom settle a difference near the margin. Forks of one state (precbench study) settle far smaller ones.");
  section.notes = {fmt::format(
      "Final loss: mean of the trailing tenth of the steps, over the seeds. Equivalent: two "
      "one-sided tests at the 5% level put the difference inside the margin, {:g}% of bf16's "
      "final loss, over at least {} seeds. EMA error: of the EMA(0.9) curve relative to "
      "bf16's of the same seed; last: at the last step, of the run that is farthest off; largest: in "
      "magnitude, after the first tenth of the steps, of any run. {}{}{}"
      "Each verdict holds at its own level: among twenty recipes one may be called worse or "
      "better by chance.",
      100 * ConvergenceRules{}.margin, kFewestUnits,
      held_out
          ? "Held-out loss: of text that training did not see, after the last step, over the seeds; +- is the "
            "standard error over its sequences, which are the same in every run. "
          : "",
      noise ? "In bf16's noise: whether the final loss is where 95% of further bf16 seeds would end. " : "",
      targets ? "Target: the EMA loss is within the margin of where bf16 ended with the same seed. " : "")};
  return section;
}

std::vector<Study> studies_of(const MachineRecords& machine) {
  std::vector<Study> studies;
  for (const Group& group : machine.analysis.groups) {
    Study study{&group, study_convergence(group)};
    // Runs without a fixed number of steps only time a recipe.
    const bool timed = text_of(group.rows.front(), "steps") == "auto";
    if (!timed && common_steps(study.recipes) >= kFewestShownSteps) studies.push_back(std::move(study));
  }
  return studies;
}

}  // namespace precbench
