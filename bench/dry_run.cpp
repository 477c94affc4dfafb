// The table of a dry run.
#include "bench/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "bench/progress.h"
#include "bench/session.h"

namespace precbench {
namespace {

std::string gib(std::int64_t bytes) {
  const double value = static_cast<double>(bytes) / (1 << 30);
  return fmt::format("{:.{}f}", value, value < 10 ? 3 : 1);
}

/// The three largest segments: "weights 14.9, moments 29.9, activations 11.2".
std::string largest_segments(const MemorySegments& memory) {
  std::array<std::pair<std::int64_t, const char*>, 9> segments = {
      {{memory.weights, "weights"},
       {memory.quantized_weights, "quantized weights"},
       {memory.master, "master"},
       {memory.gradients, "gradients"},
       {memory.moments, "moments"},
       {memory.activations, "activations"},
       {memory.workspace, "workspace"},
       {memory.communication, "communication"},
       {memory.other, "other"}}};
  std::stable_sort(segments.begin(), segments.end(), [](auto& a, auto& b) { return a.first > b.first; });
  std::string text;
  for (std::size_t i = 0; i < 3 && segments[i].first > 0; ++i)
    text += fmt::format("{}{} {}", i ? ", " : "", segments[i].second, gib(segments[i].first));
  return text;
}

}  // namespace

void print_dry_run(const std::vector<Case>& grid) {
  const CaseLabels labels(grid);
  std::vector<Prediction> predictions;
  for (const Case& c : grid) predictions.push_back(predict(c));
  const bool timed = std::any_of(predictions.begin(), predictions.end(),
                                 [](const Prediction& p) { return p.seconds_per_step.has_value(); });

  std::vector<std::vector<std::string>> rows(1);
  for (const Field* field : labels.fields()) rows[0].push_back(field->name);
  rows[0].insert(rows[0].end(), {"GiB/GPU", "FLOPs/token", "FLOPs/step"});
  if (timed) rows[0].push_back("s/step");
  rows[0].push_back("largest segments, GiB");
  for (std::size_t i = 0; i < grid.size(); ++i) {
    const Prediction& p = predictions[i];
    std::vector<std::string> row;
    for (const Field* field : labels.fields()) row.push_back(get_text(grid[i], *field));
    if (p.unsupported.empty()) {
      row.insert(row.end(), {gib(p.memory.peak), fmt::format("{:.4e}", p.flops_per_token),
                             fmt::format("{:.4e}", p.flops_per_step)});
      if (timed) row.push_back(p.seconds_per_step ? fmt::format("{:.4g}", *p.seconds_per_step) : "-");
      row.push_back(largest_segments(p.memory));
    } else {
      row.resize(rows[0].size() - 1, "-");
      row.push_back("unsupported: " + p.unsupported);
    }
    rows.push_back(std::move(row));
  }

  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i)
      if (i < labels.fields().size())
        fmt::print("{:<{}}  ", row[i], widths[i]);
      else
        fmt::print("{:>{}}  ", row[i], widths[i]);
    fmt::print("{}\n", row.back());
  }
  fmt::print("{}; memory is the peak of the fullest GPU; model FLOPs, causal attention halved\n",
             grid.size());
}

}  // namespace precbench
