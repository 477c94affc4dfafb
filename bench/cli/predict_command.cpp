// Predicts published points, or measured steps, and prints the errors. See predict_command.h.
#include "bench/cli/predict_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/predict/own_prediction.h"
#include "bench/predict/published_prediction.h"
#include "bench/predict/stack_evidence.h"
#include "bench/process/standard_error.h"
#include "kernels/base/error_text.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "results/record/compressed.h"
#include "results/record/statistics.h"
#include "results/record/step_time.h"
#include "results/text/lines.h"
#include "results/text/table.h"

namespace precbench {
namespace {

/// Returns "4.2%" for a relative error, "0.042" for one of a ratio.
std::string relative_text(double error, bool ratio) {
  return ratio ? fmt::format("{:.3f}", error) : fmt::format("{:.1f}%", 100 * error);
}

std::string value_text(double value, bool ratio) {
  return ratio ? fmt::format("{:.3f}x", value) : fmt::format("{:.0f}", value);
}

/// Returns a table with a first column of names, which narrow terminals keep, and numbers of falling rank.
Table table_of(const char* name, const std::vector<const char*>& numbers) {
  Table table;
  table.columns.push_back(text_column(name, kKeyRank));
  int rank = kKeyRank - 1;
  for (const char* title : numbers) table.columns.push_back(number_column(title, rank--));
  return table;
}

void print_table(const Table& table) { fmt::print("{}\n", render_term(table, plain_screen(STDOUT_FILENO))); }

/// Prints the reasons why points or steps are not predicted, with their number.
template <class Counts>
void print_counts(const Counts& reasons) {
  for (const auto& [reason, count] : reasons)
    fmt::print("{}", indented_line(fmt::format("{} not: {}", count, reason), plain_screen(STDOUT_FILENO)));
}

void print_groups(const std::vector<GroupResult>& results) {
  Table table = table_of("group", {"points", "median error", "floor", "worst", "mean signed error",
                                   "inside 80% interval", "half-width"});
  for (const GroupResult& r : results) {
    if (r.points == 0) continue;
    const bool ratio = is_ratio(r.group);
    const std::string verdict = r.interval_verdict();
    table.rows.push_back({name_of(r.group), std::to_string(r.points), relative_text(r.median, ratio),
                          relative_text(floor_of(r.group), ratio) + (r.met() ? "" : " missed"),
                          relative_text(r.worst, ratio),
                          fmt::format("{}{}", r.bias < 0 ? "-" : "+", relative_text(std::abs(r.bias), ratio)),
                          fmt::format("{} ({:.0f}%){}", r.covered, 100.0 * r.covered / r.points,
                                      verdict == "good" ? "" : " " + verdict),
                          fmt::format("{:.0f}%{}", 100 * r.half_width, r.narrow() ? "" : " missed")});
  }
  print_table(table);
}

/// Prints the judgements that are farthest off, absolute ones and ratios by their relative error.
void print_worst(std::vector<Judgement> judgements) {
  constexpr std::size_t kShown = 5;
  const auto relative = [](const Judgement& j) { return std::abs(j.predicted / j.published - 1); };
  std::stable_sort(judgements.begin(), judgements.end(),
                   [&](const Judgement& a, const Judgement& b) { return relative(a) > relative(b); });
  Table table = table_of("worst", {"as", "published", "predicted", "error"});
  table.columns[1].left = true;
  for (std::size_t i = 0; i < std::min(kShown, judgements.size()); ++i) {
    const Judgement& j = judgements[i];
    const bool ratio = is_ratio(j.as);
    table.rows.push_back({j.id, name_of(j.as), value_text(j.published, ratio), value_text(j.predicted, ratio),
                          relative_text(j.error(), ratio)});
  }
  print_table(table);
}

void print_reasons(const std::vector<PointPrediction>& predictions) {
  std::map<std::string, int> reasons;
  int without = 0;
  for (const PointPrediction& p : predictions)
    if (!p.reason.empty()) {
      ++reasons[p.reason];
      ++without;
    }
  fmt::print("{}, {} predicted\n", plural(predictions.size(), "point"),
             predictions.size() - static_cast<std::size_t>(without));
  print_counts(reasons);
}

nlohmann::ordered_json step_json(const OwnPrediction& step) {
  const Record& record = *step.record;
  nlohmann::ordered_json json = {
      {"id", record.id}, {"gpu", record.env.gpu->name}, {"gpus", step.gpus}, {"uneven", step.uneven}};
  for (const char* field :
       {"model", "recipe", "seq", "batch", "accumulation", "parallel", "context", "recompute"})
    if (const auto* value = record.case_fields.find(field)) json[field] = *value;
  if (record.env.git) json["git"] = *record.env.git;
  json["measured_ms"] = step.measured_ms, json["predicted_ms"] = step.predicted_ms;
  json["low_ms"] = step.low_ms, json["high_ms"] = step.high_ms;
  return json;
}

nlohmann::ordered_json errors_json(const std::vector<OwnErrors>& groups) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const OwnErrors& group : groups)
    list.push_back({{"gpu", group.gpu},
                    {"gpus", group.gpus},
                    {"uneven", group.uneven},
                    {"steps", group.steps},
                    {"inside", group.inside},
                    {"median", group.median},
                    {"within_95", group.within_95},
                    {"worst", group.worst}});
  return {{"groups", list}};
}

void print_errors(const std::vector<OwnErrors>& groups) {
  Table table =
      table_of("GPU", {"GPUs", "steps", "median error", "95% within", "worst", "inside 80% interval"});
  for (const OwnErrors& group : groups)
    table.rows.push_back(
        {group.gpu,
         (group.gpus ? std::to_string(group.gpus) : "all") + (group.uneven ? ", uneven experts" : ""),
         std::to_string(group.steps), relative_text(group.median, false),
         relative_text(group.within_95, false), relative_text(group.worst, false),
         fmt::format("{} ({:.0f}%)", group.inside,
                     100.0 * static_cast<double>(group.inside) / static_cast<double>(group.steps))});
  print_table(table);
}

void print_worst(std::vector<OwnPrediction> steps) {
  constexpr std::size_t kShown = 5;
  std::stable_sort(steps.begin(), steps.end(),
                   [](const OwnPrediction& a, const OwnPrediction& b) { return a.error() > b.error(); });
  Table table = table_of("worst", {"recipe", "GPUs", "measured ms", "predicted ms", "error"});
  table.columns[1] = name_column("recipe");
  for (std::size_t i = 0; i < std::min(kShown, steps.size()); ++i) {
    const OwnPrediction& step = steps[i];
    table.rows.push_back({step.record->case_fields.value("model", "").get<std::string>(),
                          step.record->case_fields.value("recipe", "").get<std::string>(),
                          std::to_string(step.gpus), fmt::format("{:.1f}", step.measured_ms),
                          fmt::format("{:.1f}", step.predicted_ms),
                          fmt::format("{:+.1f}%", 100 * (step.predicted_ms / step.measured_ms - 1))});
  }
  print_table(table);
}

/// Returns the exit status.
int write_text(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path);
  file << text;
  if (file.flush()) return 0;
  log_line(fmt::format("precbench: --out: cannot write {}: {}", path, error_text(errno ? errno : EIO)));
  return 1;
}

std::vector<double> sorted(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values;
}

int predict_steps(const PredictCommand& command) {
  refuse_compressed(command.records, "precbench predict -");
  const RecordSet set = read_records(command.records);
  for (const std::string& problem : set.problems) log_line(problem);
  const OwnPredictions predictions = predict_records(set);
  fmt::print("{}, {} predicted\n", plural(set.records.size(), "record"), predictions.steps.size());
  print_counts(predictions.reasons);
  const std::vector<OwnErrors> groups = errors_by_gpus(predictions.steps);
  if (!groups.empty()) {
    fmt::print("\n");
    print_errors(groups);
    print_worst(predictions.steps);
  }
  std::vector<const Record*> measured;
  for (const OwnPrediction& step : predictions.steps) measured.push_back(step.record);
  for (const std::string& doubt : doubts_of_all(measured))
    fmt::print("{}", paragraph(doubt, plain_screen(STDOUT_FILENO)));
  std::vector<nlohmann::ordered_json> lines;
  for (const OwnPrediction& step : predictions.steps) lines.push_back(step_json(step));
  lines.push_back(errors_json(groups));
  return write_lines(command.out, lines);
}

/// Comparisons of one stack that are judged together, with factors from elsewhere.
struct StackGroup {
  std::set<std::string> sources;
  std::vector<double> errors, widths;  ///< relative; of the 80% interval, half
  int inside = 0;
};

/// Prints how far off factors are without their source, or without their model.
void print_held_out(const char* title, const std::vector<StackEvidence>& evidence,
                    const std::vector<HeldOutFactor>& held_out, StackFactor HeldOutFactor::*left_out) {
  std::map<std::string, StackGroup> groups;
  for (std::size_t i = 0; i < evidence.size(); ++i) {
    const StackEvidence& e = evidence[i];
    StackFactor factor = held_out[i].*left_out;
    const double compared = e.theirs / e.ours, error = factor.factor / compared - 1;
    factor.log_error = std::hypot(factor.log_error, e.log_error);
    StackGroup& group = groups[fmt::format("{}, {}{}", name_of(e.stack), e.setting.experts ? "experts, " : "",
                                           e.speedup ? "speed-up" : "tokens/s")];
    group.sources.insert(e.source);
    group.errors.push_back(std::abs(error));
    group.widths.push_back((factor.high() - factor.low()) / 2 / factor.factor);
    group.inside += factor.low() <= compared && compared <= factor.high();
  }
  Table table = table_of(
      title, {"comparisons", "sources", "median error", "worst", "inside 80% interval", "half-width"});
  for (auto& [name, group] : groups)
    table.rows.push_back({name, std::to_string(group.errors.size()), std::to_string(group.sources.size()),
                          relative_text(quantile(sorted(group.errors), 0.5), false),
                          relative_text(*std::max_element(group.errors.begin(), group.errors.end()), false),
                          std::to_string(group.inside),
                          relative_text(quantile(sorted(group.widths), 0.5), false)});
  print_table(table);
}

/// Writes the file of stack factors with a line for each element of its lists. Returns the exit status.
int write_stacks(const std::string& path, const nlohmann::ordered_json& json) {
  std::string text = "{\n";
  for (const auto& [key, value] : json.items()) {
    text += fmt::format("{}  \"{}\": ", text.size() > 2 ? ",\n" : "", key);
    if (!value.is_array()) {
      text += value.dump();
      continue;
    }
    text += '[';
    for (std::size_t i = 0; i < value.size(); ++i)
      text += fmt::format("{}\n    {}", i ? "," : "", value[i].dump());
    text += "\n  ]";
  }
  return write_text(path, text + "\n}\n");
}

int predict_stacks(const PredictCommand& command) {
  std::vector<StackEvidence> evidence = measured_stacks(command.records);
  for (StackEvidence& e : published_stacks(read_points(command.published))) evidence.push_back(std::move(e));
  const StackSpreads spreads = fit_spreads(evidence, first_spreads());
  const std::vector<HeldOutFactor> held_out = held_out_factors(evidence, spreads);
  fmt::print("{}\n\n", plural(evidence.size(), "comparison"));
  print_held_out("without its source", evidence, held_out, &HeldOutFactor::without_source);
  print_held_out("without its model", evidence, held_out, &HeldOutFactor::without_model);
  return command.out.empty() ? 0 : write_stacks(command.out, stacks_json(evidence, spreads, held_out));
}

int predict_points_of(const PredictCommand& command) {
  const std::vector<PublishedPoint> points = read_points(command.published);
  const std::vector<PointPrediction> predictions = predict_points(points);
  const std::vector<Judgement> judgements = judge(points, predictions);
  print_reasons(predictions);
  fmt::print("\n");
  if (const auto covered = coverage(judgements)) {
    print_groups(group_results(judgements));
    fmt::print("{:.0f}% of the judged values are inside their 80% intervals{}\n\n", 100 * *covered,
               *covered < kLeastCoverage || *covered > kMostCoverage ? ": missed" : "");
    print_worst(judgements);
  } else {
    fmt::print("no published value is judged\n");
  }
  std::vector<nlohmann::ordered_json> lines;
  for (std::size_t i = 0; i < points.size(); ++i)
    lines.push_back(prediction_json(points[i], predictions[i], judgements));
  lines.push_back(groups_json(judgements));
  return write_lines(command.out, lines);
}

}  // namespace

int write_lines(const std::string& path, const std::vector<nlohmann::ordered_json>& lines) {
  if (path.empty()) return 0;
  std::string text;
  for (const nlohmann::ordered_json& line : lines) text += line.dump() + '\n';
  return write_text(path, text);
}

CLI::App* add_predict_command(CLI::App& app, PredictCommand& command) {
  CLI::App* sub =
      app.add_subcommand("predict", "predicted speed beside published throughput or measured steps");
  sub->footer(
      "Predicts each step on its machine with the cost model of sweep --dry-run --on, from the rates of steps measured "
      "with precbench.\n"
      "For a record, rates of its own model in its own recipe are left out.\n"
      "Published points set the width of the intervals and no other number of our steps. With --stacks, they and records "
      "beside the lines of tools/pytorch_baseline give the speed of other training software over ours (sweep --stack). No GPU "
      "is needed.\n"
      "\n"
      "Examples:\n"
      "  precbench predict --published results/published/points.json\n"
      "  precbench predict results/h200/single.jsonl.xz results/h200x4/scaling.jsonl.xz\n"
      "  precbench predict --stacks --published results/published/points.json results/h200/beside-pytorch");
  sub->add_option("PATH", command.records,
                  "record files (.jsonl, .jsonl.xz), folders of them, or - for standard input")
      ->type_name("");
  sub->add_option("--published", command.published,
                  "file of published points, as results/published/points.json")
      ->type_name("FILE");
  sub->add_flag(
      "--stacks", command.stacks,
      "speed of PyTorch and Megatron over ours, from --published and from records with pytorch.ndjson beside them");
  sub->add_option(
         "--out", command.out,
         "file of predictions, a JSON line for each point or step, or of factors with --stacks; default: none")
      ->type_name("FILE");
  return sub;
}

int predict(const PredictCommand& command) {
  if (command.stacks) {
    if (command.published.empty() || command.records.empty())
      throw InvalidInput("--stacks: takes both --published FILE and record files");
    return predict_stacks(command);
  }
  if (command.published.empty() == command.records.empty())
    throw InvalidInput("predict: takes either --published FILE or record files");
  return command.published.empty() ? predict_steps(command) : predict_points_of(command);
}

}  // namespace precbench
