// Table of predicted memory and FLOPs. See dry_run.h.
#include "bench/cli/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "bench/cli/text_table.h"
#include "bench/machine/verification.h"
#include "bench/measure/predict.h"
#include "bench/sweep/progress.h"
#include "kernels/base/errors.h"
#include "kernels/gpu/device_info.h"

namespace precbench {
namespace {

std::string gib(std::int64_t bytes) {
  const double value = static_cast<double>(bytes) / (1 << 30);
  return fmt::format("{:.{}f}", value, value < 10 ? 3 : 1);
}

/// Returns the three largest segments in GiB: "weights 14.9, moments 29.9, activations 11.2".
std::string largest_segments(const MemorySegments& memory) {
  std::array<std::pair<std::int64_t, Segment>, kSegments> segments = {
      {{memory.weights, Segment::weights},
       {memory.quantized_weights, Segment::quantized_weights},
       {memory.master, Segment::master},
       {memory.gradients, Segment::gradients},
       {memory.moments, Segment::moments},
       {memory.activations, Segment::activations},
       {memory.workspace, Segment::workspace},
       {memory.communication, Segment::communication},
       {memory.other, Segment::other}}};
  std::stable_sort(segments.begin(), segments.end(), [](auto& a, auto& b) { return a.first > b.first; });
  std::string text;
  for (std::size_t i = 0; i < 3 && segments[i].first > 0; ++i)
    text += fmt::format("{}{} {}", i ? ", " : "", name_of(segments[i].second), gib(segments[i].first));
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

/// Returns the GPU whose step time is predicted; null if none is wanted or usable now.
std::unique_ptr<Device> gpu_of(const std::vector<Plan>& grid) {
  const bool wanted = std::any_of(grid.begin(), grid.end(), [](const Plan& plan) { return plan.on_gpu; });
  if (!wanted || find_gpus().count == 0) return nullptr;
  try {
    return open_gpu(0);
  } catch (const std::runtime_error&) {
    return nullptr;  // memory and FLOPs are predicted without a GPU, too
  }
}

/// Row of the table.
struct Row {
  Prediction prediction;
  std::string failure;  ///< "unsupported: ..." or "oom: ..."; empty: the case can run
};

/// Predicts every case; one that cannot run gets a row with the reason. If all are out of memory, throws
/// OutOfMemory of the first.
std::vector<Row> predict_all(const std::vector<Plan>& grid, const KnownGpu* gpu) {
  std::vector<Row> rows(grid.size());
  std::exception_ptr first;
  std::size_t failures = 0;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    Row& row = rows[i];
    try {
      row.prediction = predict(grid[i], grid[i].on_gpu ? gpu : nullptr);
      if (row.prediction.unsupported) row.failure = "unsupported: " + *row.prediction.unsupported;
    } catch (const Unsupported& error) {
      row.failure = fmt::format("unsupported: {}", error.what());
    } catch (const OutOfMemory& error) {
      row.failure = fmt::format("oom: {}", error.what());
      if (failures++ == 0) first = std::current_exception();
    }
  }
  if (failures == grid.size()) std::rethrow_exception(first);
  return rows;
}

}  // namespace

void print_dry_run(const std::vector<Plan>& grid) {
  const CaseLabels labels(grid);
  const std::unique_ptr<Device> device = gpu_of(grid);
  const std::optional<KnownGpu> gpu =
      device ? std::optional<KnownGpu>({*device, gpu_properties(0).name}) : std::nullopt;
  const std::vector<Row> cases = predict_all(grid, gpu ? &*gpu : nullptr);
  const bool timed = std::any_of(cases.begin(), cases.end(),
                                 [](const Row& one) { return one.prediction.seconds_per_step.has_value(); });

  TextRows rows(1);
  for (const Field* field : labels.fields()) rows[0].push_back(field->name);
  std::string alignment(rows[0].size(), 'l');
  rows[0].insert(rows[0].end(), {"GiB/GPU", "FLOPs/token", "FLOPs/step"});
  const bool apart = std::any_of(grid.begin(), grid.end(),
                                 [](const Plan& plan) { return plan.parameters.expert_ranks > 1; });
  if (apart) rows[0].insert(rows[0].end(), {"dispatch GiB", "combine GiB"});
  if (timed) rows[0].push_back("s/step at least");
  alignment.append(rows[0].size() - alignment.size(), 'r');
  rows[0].push_back("largest segments, GiB");
  for (std::size_t i = 0; i < grid.size(); ++i) {
    const Prediction& p = cases[i].prediction;
    std::vector<std::string> row;
    for (const Field* field : labels.fields()) row.push_back(get_text(grid[i].fields, *field));
    if (cases[i].failure.empty()) {
      row.insert(row.end(), {gib(p.memory.peak), fmt::format("{:.4e}", p.flops_per_token),
                             fmt::format("{:.4e}", p.flops_per_step)});
      if (apart)
        for (const double bytes : {p.experts.dispatch, p.experts.combine})
          row.push_back(gib(static_cast<std::int64_t>(bytes)));
      if (timed) row.push_back(p.seconds_per_step ? fmt::format("{:.4g}", *p.seconds_per_step) : "-");
      row.push_back(largest_segments(p.memory));
    } else {
      row.resize(rows[0].size() - 1, "-");
      row.push_back(cases[i].failure);
    }
    rows.push_back(std::move(row));
  }
  fmt::print("{}", aligned(rows, alignment));
  fmt::print("{}; GiB/GPU is the largest peak of any GPU; model FLOPs, causal attention halved{}\n",
             count_cases(grid.size()),
             timed ? "; s/step at least: ops at the GPU's peak rates, without collectives" : "");
}

}  // namespace precbench
