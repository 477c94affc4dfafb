// Extracts, writes and reads measured loss gaps. See gap_evidence.h.
#include "tools/law/gap_evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>

#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"
#include "results/record/printable.h"
#include "results/record/record_folder.h"
#include "results/record/statistics.h"
#include "results/text/lines.h"
#include "tools/analysis/analysis.h"
#include "tools/analysis/columns.h"
#include "tools/analysis/model_age.h"
#include "tools/analysis/numerics_label.h"
#include "tools/text/embedded_text.h"

namespace precbench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHeader =
    "records,parameters,tokens_per_parameter,recipe,training,fork_steps,bf16_loss,gap,gap_error,runs,held_out,"
    "in_bf16,in_bf16_error,in_recipe,in_recipe_error,at_switch";

/// Returns the standard error that a 95% interval over `runs` runs states.
double error_of(const MeanWithInterval& interval, int runs) {
  return (interval.high - interval.low) / 2 / student_t_quantile(0.975, runs - 1);
}

MeasuredGap measured(const MeanWithInterval& interval, int runs) {
  return {interval.mean, error_of(interval, runs)};
}

/// Returns a deployment answer's difference at an age; null if it has none there.
std::optional<MeanWithInterval> difference_at(const std::optional<DeploymentAnswer>& answer,
                                              std::int64_t age) {
  const AgeInterval* found = answer ? find_age(answer->verdict, age) : nullptr;
  return found ? found->difference : std::nullopt;
}

/// Returns the held-out loss read in a recipe; null if it was not.
std::optional<double> loss_in(const Evaluation& evaluation, const std::string& recipe) {
  if (evaluation.readings)
    for (const Reading& reading : *evaluation.readings)
      if (reading.recipe == recipe) return reading.loss;
  return std::nullopt;
}

/// Formats six significant digits: more than the runs resolve, and the same text on every machine.
std::string digits(const std::optional<double>& value) { return value ? fmt::format("{:.6g}", *value) : ""; }

/// Returns two cells: mean and standard error.
std::string cells(const std::optional<MeasuredGap>& gap) {
  return gap ? digits(gap->mean) + ',' + digits(gap->error) : ",";
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::stringstream in(line);
  for (std::string cell; std::getline(in, cell, ',');) cells.push_back(cell);
  if (line.ends_with(',')) cells.emplace_back();
  return cells;
}

/// Returns the record files of a folder and the folders in it, in the order of their names.
std::vector<fs::path> record_files_below(const std::string& folder) {
  if (!fs::is_directory(folder)) throw InvalidInput("--evidence: " + folder + " is not a folder; name one of record files");
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (is_record_file(entry.path().string()) && entry.is_regular_file()) files.push_back(entry.path());
  if (files.empty())
    throw InvalidInput("--evidence: no record file (*.jsonl, *.jsonl.xz) in " + folder +
                       " or the folders in it");
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

void reduce_for_evidence(Record& record) {
  record.quantization.clear();
  record.warnings.clear();
  if (record.timing) record.timing->outliers.clear();
  if (!record.training) return;
  record.training->grad_norm.clear();
  record.training->converted_layers.clear();
  record.training->lr.clear();
  if (!record.study) record.training->loss.clear();
}

const char* name_of(TrainingStart training) {
  return training == TrainingStart::from_scratch ? "from scratch" : "continued";
}

std::vector<GapEvidence> gap_evidence_of(const std::vector<StudyCard>& cards, const std::string& records) {
  std::vector<GapEvidence> evidence;
  for (const StudyCard& card : cards) {
    if (!card.fork || numerics_label(card.fork->case_fields) != card.verdict.recipe) continue;
    const auto total = parameters_of(*card.fork), active = active_parameters_of(*card.fork);
    if (!total || !active || *active < kSmallestEvidence || card.verdict.trunks < 2 ||
        !case_text(*card.fork, "lora_rank").empty())
      continue;
    for (const CardGaps& at_age : card.gaps) {
      const auto gap = loss_gap_at(card, at_age.age);
      if (!gap || !at_age.tokens_per_parameter || !(*at_age.tokens_per_parameter > 0) ||
          !(at_age.bf16_loss > 0) || !std::isfinite(gap->mean) || !std::isfinite(gap->high))
        continue;
      GapEvidence one;
      one.records = records, one.recipe = card.verdict.recipe;
      one.parameters = *active, one.tokens_per_parameter = *at_age.tokens_per_parameter * *total / *active;
      one.bf16_loss = at_age.bf16_loss, one.fork_steps = card.fork_steps;
      one.gap = gap->mean, one.runs = card.verdict.trunks, one.gap_error = error_of(*gap, one.runs);
      if (at_age.held_out) one.held_out = at_age.held_out->mean;
      if (at_age.held_out_in_bf16 && card.changes.empty())
        one.in_bf16 = measured(*at_age.held_out_in_bf16, one.runs);
      if (card.deployment && card.changes.empty())
        if (const auto gap_in_recipe = difference_at(card.deployment->in_recipe, at_age.age))
          one.in_recipe = measured(*gap_in_recipe, one.runs);
      if (at_age.at_switch) one.at_switch = at_age.at_switch->mean;
      evidence.push_back(std::move(one));
    }
  }
  return evidence;
}

std::vector<GapEvidence> gap_evidence_of_long_runs(const RecordRefs& runs, const std::string& records) {
  std::map<std::string, RecordRefs> recipes;
  for (const LocatedRecord* run : runs) {
    const Record& record = run->record;
    if (record.status != Status::ok || record.study || !record.training ||
        record.training->evaluations.empty())
      continue;
    const std::string label = numerics_label(record.case_fields);
    if (label == case_text(record, "recipe")) recipes[label].push_back(run);
  }
  std::vector<GapEvidence> evidence;
  if (!recipes.contains("bf16")) return evidence;
  const SeedPairs partners(recipes.at("bf16"));
  for (const auto& [recipe, members] : recipes) {
    if (recipe == "bf16") continue;
    std::vector<double> gaps, in_bf16, in_recipe, losses;
    for (const LocatedRecord* member : members) {
      const LocatedRecord* partner = partners.of(*member);
      if (!partner) continue;
      const Evaluation &ours = member->record.training->evaluations.back(),
                       &theirs = partner->record.training->evaluations.back();
      if (ours.step != theirs.step || !ours.loss || !theirs.loss) continue;
      gaps.push_back(*ours.loss - *theirs.loss), losses.push_back(*theirs.loss);
      if (ours.bf16_loss) in_bf16.push_back(*ours.bf16_loss - *theirs.loss);
      const auto served = loss_in(ours, recipe), served_bf16 = loss_in(theirs, recipe);
      if (served && served_bf16) in_recipe.push_back(*served - *served_bf16);
    }
    const Record& first = members.front()->record;
    const auto parameters = active_parameters_of(first), total = parameters_of(first);
    const auto age =
        tokens_per_parameter(first, static_cast<double>(first.training->evaluations.back().step));
    if (gaps.size() < 2 || !parameters || *parameters < kSmallestEvidence || !age) continue;
    GapEvidence one;
    one.records = records, one.recipe = recipe, one.training = TrainingStart::from_scratch;
    one.parameters = *parameters, one.tokens_per_parameter = *age * *total / *parameters;
    one.bf16_loss = mean_and_spread(losses).mean, one.runs = static_cast<int>(gaps.size());
    const MeanAndSpread gap = mean_and_spread(gaps);
    one.gap = gap.mean, one.gap_error = gap.sd / std::sqrt(static_cast<double>(gaps.size()));
    one.held_out = one.gap;
    const bool ends_in_bf16 =
        first.definition && first.definition->recipe && first.definition->recipe->contains("schedule");
    if (in_bf16.size() == gaps.size() && !ends_in_bf16)
      one.in_bf16 = measured(*mean_with_interval(in_bf16), one.runs);
    if (in_recipe.size() == gaps.size() && !ends_in_bf16)
      one.in_recipe = measured(*mean_with_interval(in_recipe), one.runs);
    evidence.push_back(std::move(one));
  }
  return evidence;
}

std::vector<GapEvidence> evidence_in(const std::string& folder) {
  std::vector<GapEvidence> evidence;
  for (const fs::path& file : record_files_below(folder)) {
    const RecordSet set = read_records({file.string()}, reduce_for_evidence);
    const std::string name = without_record_extension(file.lexically_relative(folder).string());
    const RecordRefs records = all_of(set);
    const std::size_t before = evidence.size();
    for (const auto& more :
         {gap_evidence_of(study_cards(records), name), gap_evidence_of_long_runs(records, name)})
      evidence.insert(evidence.end(), more.begin(), more.end());
    if (evidence.size() > before)
      for (const std::string& problem : set.problems) fmt::print(stderr, "{}\n", printable(problem));
  }
  return evidence;
}

std::string evidence_csv(const std::vector<GapEvidence>& evidence) {
  std::string text = std::string(kHeader) + '\n';
  for (const GapEvidence& one : evidence)
    text +=
        fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", one.records, digits(one.parameters),
                    digits(one.tokens_per_parameter), one.recipe, name_of(one.training), one.fork_steps,
                    digits(one.bf16_loss), digits(one.gap), digits(one.gap_error), one.runs,
                    digits(one.held_out), cells(one.in_bf16), cells(one.in_recipe), digits(one.at_switch));
  return text;
}

std::vector<GapEvidence> read_evidence(const std::string& csv) {
  const std::vector<std::string> lines = lines_in(csv);
  const std::size_t columns = cells_of(kHeader).size();
  if (lines.empty() || lines.front() != kHeader)
    throw InvalidInput("evidence of the loss law: line 1 is not its header");
  std::vector<GapEvidence> evidence;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    const std::vector<std::string> cells = cells_of(lines[i]);
    const auto refuse = [&](const std::string& why) {
      throw InvalidInput(fmt::format("evidence of the loss law: line {}: {}", i + 1, why));
    };
    if (cells.size() != columns) refuse(fmt::format("{} cells instead of {}", cells.size(), columns));
    const auto number = [&](std::size_t column) {
      const auto value = parse_number<double>(cells[column]);
      if (!value || !std::isfinite(*value)) refuse(fmt::format("\"{}\" is not a number", cells[column]));
      return *value;
    };
    const auto optional = [&](std::size_t column) {
      return cells[column].empty() ? std::nullopt : std::optional(number(column));
    };
    GapEvidence one;
    one.records = cells[0], one.parameters = number(1), one.tokens_per_parameter = number(2),
    one.recipe = cells[3];
    one.training = cells[4] == name_of(TrainingStart::continued) ? TrainingStart::continued
                                                                 : TrainingStart::from_scratch;
    if (cells[4] != name_of(one.training)) refuse(fmt::format("training \"{}\"", cells[4]));
    one.fork_steps = static_cast<std::int64_t>(number(5)), one.bf16_loss = number(6);
    one.gap = number(7), one.gap_error = number(8), one.runs = static_cast<int>(number(9));
    const auto with_error = [&](std::size_t column) {
      return cells[column].empty() ? std::nullopt
                                   : std::optional(MeasuredGap{number(column), number(column + 1)});
    };
    one.held_out = optional(10), one.in_bf16 = with_error(11), one.in_recipe = with_error(13);
    one.at_switch = optional(15);
    if (!(one.parameters > 0) || !(one.tokens_per_parameter > 0) || !(one.bf16_loss > 0))
      refuse("parameters, tokens and loss must be above 0");
    evidence.push_back(std::move(one));
  }
  return evidence;
}

const std::vector<GapEvidence>& committed_evidence() {
  static const std::vector<GapEvidence> kEvidence = read_evidence(kLawEvidence);
  return kEvidence;
}

}  // namespace precbench
