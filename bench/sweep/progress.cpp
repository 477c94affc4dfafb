// Formats and prints progress lines. See progress.h.
#include "bench/sweep/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "bench/process/standard_error.h"
#include "kernels/base/plural.h"
#include "kernels/base/terminal.h"

namespace precbench {
namespace {

/// Returns "trunk 2, step 100, seed 1, learning_rate 3".
std::string words_of(const StudyPlace& place) {
  std::string words = fmt::format("trunk {}", place.trunk);
  if (place.part != StudyPart::trunk) words += fmt::format(", step {}, seed {}", place.age, place.seed);
  if (place.rung > 0) words += fmt::format(", {} {:g}", name_of(place.part), place.rung);
  return words;
}

}  // namespace

CaseLabels::CaseLabels(const std::vector<Plan>& grid) : fields_{find_field("model"), find_field("recipe")} {
  for (const Field& field : case_fields()) {
    const bool shown = &field == fields_[0] || &field == fields_[1];
    const bool varies = std::any_of(grid.begin(), grid.end(), [&](const Plan& plan) {
      return get_text(plan.fields, field) != get_text(grid.front().fields, field);
    });
    // A model with fewer layers is another model.
    const bool cut = &field == find_field("layers") && !grid.empty() && grid.front().fields.layers != 0;
    if (!shown && (varies || cut)) fields_.push_back(&field);
  }
}

std::string CaseLabels::of(const Plan& plan) const {
  const Case& c = plan.fields;
  if (plan.study)
    return fmt::format("{}{} {}{}, {}", c.model, c.layers ? fmt::format(" layers={}", c.layers) : "",
                       plan.recipe.name, plan.init.perturbed ? " perturbed" : "", words_of(*plan.study));
  std::string label = c.model + " " + c.recipe;
  for (std::size_t i = 2; i < fields_.size(); ++i)
    label += fmt::format(" {}={}", fields_[i]->name, get_text(c, *fields_[i]));
  return label;
}

std::string count_cases(std::size_t count) { return plural(count, "case"); }

std::string describe_seconds(double seconds) {
  constexpr double kLongest = 1e12;  // longer than any sweep; avoids converting values that are not finite
  const auto whole = static_cast<long long>(std::ceil(std::fmin(seconds, kLongest)));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} m {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} m", whole / 3600, whole % 3600 / 60);
}

std::string describe_outcome(const Record& record) {
  std::string text = name_of(record.status);
  if (record.training && !record.training->loss.empty())
    text += fmt::format(", loss {:.4f}", record.training->loss.back());
  if (record.metrics && record.metrics->tokens_per_s)
    text += fmt::format(", {:.0f} tokens/s", *record.metrics->tokens_per_s);
  if (record.error) text += ": " + *record.error;
  return text;
}

Progress::Progress(const std::vector<Plan>& grid, const Start& start)
    : labels_(grid),
      total_(grid.size()),
      done_(start.finished),
      left_(static_cast<double>(grid.size() - start.finished) - static_cast<double>(start.half_finished) / 2),
      quiet_(start.quiet),
      terminal_(isatty(STDERR_FILENO)) {}

std::string Progress::remaining() const {
  if (worked_ == 0) return "";
  const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  return fmt::format(", about {} left", describe_seconds(seconds / worked_ * (left_ - worked_)));
}

double Progress::seconds_of_run(const Plan& plan) const {
  return std::chrono::duration<double>(Clock::now() - cases_began_.at(plan.id)).count();
}

void Progress::start(const Plan& plan) {
  cases_began_[plan.id] = Clock::now();
  running_.push_back({plan.id, labels_.of(plan)});
  show_status();
}

void Progress::first_run(const Plan& plan, const Record& record) {
  worked_ += 0.5;
  end_of_run(plan);
  if (quiet_) return;
  log_line(fmt::format("[{}/{}] {}: first of two runs: {} ({}{})", done_ + 1, total_, labels_.of(plan),
                       describe_outcome(record), describe_seconds(seconds_of_run(plan)),
                       terminal_ ? "" : remaining()));
  show_status();
}

void Progress::finish(const Plan& plan, const Record& record) {
  ++done_;
  worked_ += record.timing && !record.timing->runs.empty() ? 0.5 : 1;
  end_of_run(plan);
  if (quiet_) return;
  const bool last = done_ == total_;
  log_line(fmt::format("[{}/{}] {}: {} ({}{})", done_, total_, labels_.of(plan), describe_outcome(record),
                       describe_seconds(seconds_of_run(plan)), terminal_ || last ? "" : remaining()));
  show_status();
}

void Progress::waiting(const Plan& plan, const std::string& words) {
  note(fmt::format("{}: {}", labels_.of(plan), words));
}

void Progress::note(const std::string& line) {
  if (quiet_) return;
  clear_status();
  log_line(line);
  show_status();
}

void Progress::clear_status() { log_text(status_.clear()); }

void Progress::end_of_run(const Plan& plan) {
  std::erase_if(running_, [&](const Running& one) { return one.id == plan.id; });
  clear_status();
}

void Progress::show_status() {
  if (quiet_ || !terminal_) return;
  std::vector<StatusLine> lines;
  for (std::size_t i = 0; i < running_.size(); ++i)
    lines.push_back({fmt::format("[{}/{}] {} ...", done_ + 1 + i, total_, running_[i].label)});
  if (!lines.empty()) lines.back().tail = remaining();
  log_text(status_.show(lines, terminal_width(STDERR_FILENO)));
}

}  // namespace precbench
