// Predicts published points and prints the errors. See predict_command.h.
#include "bench/cli/predict_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/cli/text_table.h"
#include "bench/predict/published_prediction.h"

namespace precbench {
namespace {

/// Returns "4.2%" for a relative error, "0.042" for one of a ratio.
std::string error_text(double error, bool ratio) {
  return ratio ? fmt::format("{:.3f}", error) : fmt::format("{:.1f}%", 100 * error);
}

std::string value_text(double value, bool ratio) {
  return ratio ? fmt::format("{:.3f}x", value) : fmt::format("{:.0f}", value);
}

void print_groups(const std::vector<GroupResult>& results) {
  std::vector<std::vector<std::string>> rows = {
      {"group", "points", "median error", "floor", "worst", "inside 80% interval", "half-width"}};
  for (const GroupResult& r : results) {
    if (r.points == 0) continue;
    const bool ratio = is_ratio(r.group);
    rows.push_back({name_of(r.group), std::to_string(r.points), error_text(r.median, ratio),
                    error_text(floor_of(r.group), ratio) + (r.met() ? "" : " missed"),
                    error_text(r.worst, ratio),
                    fmt::format("{} ({:.0f}%)", r.covered, 100.0 * r.covered / r.points),
                    fmt::format("{:.0f}%{}", 100 * r.half_width, r.narrow() ? "" : " missed")});
  }
  fmt::print("{}\n", aligned(rows, "lrrrrrr"));
}

/// Prints the judgements that are farthest off, absolute ones and ratios by their relative error.
void print_worst(std::vector<Judgement> judgements) {
  constexpr std::size_t kShown = 5;
  const auto relative = [](const Judgement& j) { return std::abs(j.predicted / j.published - 1); };
  std::stable_sort(judgements.begin(), judgements.end(),
                   [&](const Judgement& a, const Judgement& b) { return relative(a) > relative(b); });
  std::vector<std::vector<std::string>> rows = {{"worst", "as", "published", "predicted", "error"}};
  for (std::size_t i = 0; i < std::min(kShown, judgements.size()); ++i) {
    const Judgement& j = judgements[i];
    const bool ratio = is_ratio(j.as);
    rows.push_back({j.id, name_of(j.as), value_text(j.published, ratio), value_text(j.predicted, ratio),
                    error_text(j.error(), ratio)});
  }
  fmt::print("{}\n", aligned(rows, "llrrr"));
}

void print_reasons(const std::vector<PointPrediction>& predictions) {
  std::map<std::string, int> reasons;
  int without = 0;
  for (const PointPrediction& p : predictions)
    if (!p.reason.empty()) {
      ++reasons[p.reason];
      ++without;
    }
  fmt::print("{} points, {} predicted\n", predictions.size(),
             predictions.size() - static_cast<std::size_t>(without));
  for (const auto& [reason, count] : reasons) fmt::print("  {} not: {}\n", count, reason);
}

}  // namespace

CLI::App* add_predict_command(CLI::App& app, PredictCommand& command) {
  CLI::App* sub = app.add_subcommand("predict", "predicted throughput beside published throughput");
  sub->footer(
      "Predicts each point's step on its machine with the cost model of sweep --dry-run --on, from rates of our own\n"
      "records. The points set how wide the intervals are, and no other number. No GPU is needed.\n"
      "\n"
      "Example:\n"
      "  precbench predict --published results/published/points.json");
  sub->add_option("--published", command.published,
                  "file of published points, as results/published/points.json")
      ->required()
      ->type_name("FILE");
  sub->add_option("--out", command.out, "file of predictions, a JSON line for each point; default: none")
      ->type_name("FILE");
  return sub;
}

int predict_published(const PredictCommand& command) {
  const std::vector<PublishedPoint> points = read_points(command.published);
  const std::vector<PointPrediction> predictions = predict_points(points);
  const std::vector<Judgement> judgements = judge(points, predictions);
  print_reasons(predictions);
  fmt::print("\n");
  print_groups(group_results(judgements));
  const double covered = coverage(judgements);
  fmt::print("{:.0f}% of the judged values are inside their 80% intervals{}\n\n", 100 * covered,
             covered < kLeastCoverage || covered > kMostCoverage ? ": missed" : "");
  print_worst(judgements);
  if (command.out.empty()) return 0;
  std::ofstream file(command.out);
  for (std::size_t i = 0; i < points.size(); ++i)
    file << prediction_json(points[i], predictions[i], judgements).dump() << '\n';
  file << groups_json(judgements).dump() << '\n';
  if (file.flush()) return 0;
  fmt::print(stderr, "precbench: --out: cannot write {}\n", command.out);
  return 1;
}

}  // namespace precbench
