// Table of predicted memory and FLOPs. See dry_run.h.
#include "bench/cli/dry_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bench/machine/verification.h"
#include "bench/predict/predict.h"
#include "bench/sweep/progress.h"
#include "kernels/base/errors.h"
#include "kernels/gpu/device_info.h"
#include "results/record/record_fields.h"
#include "results/text/lines.h"
#include "results/text/table.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Names and bytes of segments, in the order of records.
using Segments = std::vector<std::pair<std::string, std::int64_t>>;

Segments segments_of(const MemorySegments& memory) {
  Segments segments;
  each_field(memory, [&](const std::string& name, std::int64_t bytes) {
    if (name != "total" && name != "peak") segments.emplace_back(name, bytes);
  });
  return segments;
}

/// Returns the three largest segments in GiB: "weights 14.9, moments 29.9, activations 11.2".
std::string largest_segments(const MemorySegments& memory) {
  Segments segments = segments_of(memory);
  std::stable_sort(segments.begin(), segments.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (std::size_t i = 0; i < 3 && segments[i].second > 0; ++i)
    text += fmt::format("{}{} {}", i ? ", " : "", segments[i].first, gib(segments[i].second));
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

bool is_timed(const std::vector<Row>& rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [](const Row& one) { return one.prediction.seconds_per_step.has_value(); });
}

constexpr std::size_t kMostLines = 40;  ///< printed of each kind

/// Returns a case's fields as one text, with another recipe.
std::string text_with_recipe(Case c, const std::string& recipe) {
  c.recipe = recipe;
  std::string text;
  for (const Field& field : case_fields()) text += get_text(c, field) + '\n';
  return text;
}

/// Returns lines about the rows that need more memory than BF16.
std::vector<std::string> lines_about_bf16(const std::vector<Plan>& grid, const std::vector<Row>& rows,
                                          const CaseLabels& labels) {
  const std::string& bf16 = builtin_recipes().front().name;
  std::unordered_map<std::string, const Row*> in_bf16;  // by the case's fields
  for (std::size_t i = 0; i < grid.size(); ++i)
    if (grid[i].fields.recipe == bf16 && rows[i].failure.empty())
      in_bf16.emplace(text_with_recipe(grid[i].fields, bf16), &rows[i]);
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    if (!rows[i].failure.empty() || !grid[i].recipe.quantized()) continue;
    const auto same = in_bf16.find(text_with_recipe(grid[i].fields, bf16));
    if (same == in_bf16.end()) continue;
    if (const auto why = extra_memory(rows[i].prediction, same->second->prediction))
      lines.push_back(fmt::format("{}: {}", labels.of(grid[i]), *why));
  }
  return lines;
}

/// Returns lines about the rows that do not fit, or that FP8 gathers keep from running, with the nearest
/// change. Lines beyond kMostLines are empty, because the search takes long and they are only counted.
std::vector<std::string> lines_about_changes(const std::vector<Plan>& grid, const std::vector<Row>& rows,
                                             const CaseLabels& labels,
                                             const std::optional<MemoryLimit>& limit) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    const std::string label = labels.of(grid[i]);
    if (!rows[i].failure.empty()) {
      std::vector<std::string> ways;
      for (const Change& change : runnable_changes(grid[i])) ways.push_back(change.text());
      if (!ways.empty())
        lines.push_back(fmt::format("{}: would run with {}", label, fmt::join(ways, ", or with ")));
    } else if (limit && !fits(rows[i].prediction.memory.peak, *limit)) {
      if (lines.size() >= kMostLines) {
        lines.emplace_back();
        continue;
      }
      const std::optional<Change> change = nearest_change(grid[i], *limit);
      lines.push_back(
          change
              ? fmt::format("{}: does not fit; the nearest change that does: {} ({} GiB)", label,
                            change->text(), gib(change->peak))
              : fmt::format("{}: does not fit, and neither with recomputation, BF16 state, a batch of 1 and "
                            "{} ranks",
                            label, kMostRanks));
    }
  }
  return lines;
}

/// Prints lines wrapped to the terminal, at most kMostLines of them.
void print_lines(const std::vector<std::string>& lines, const Screen& screen) {
  for (std::size_t i = 0; i < std::min(lines.size(), kMostLines); ++i)
    fmt::print("{}", paragraph(lines[i], screen));
  if (lines.size() > kMostLines) fmt::print("and {} more such lines\n", lines.size() - kMostLines);
}

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

/// Predictions of a grid, and the GPU of this machine that they are for.
struct Predictions {
  std::unique_ptr<Device> device;
  std::vector<Row> rows;
};

Predictions predict_here(const std::vector<Plan>& grid) {
  Predictions predictions;
  predictions.device = gpu_of(grid);
  const std::optional<KnownGpu> gpu =
      predictions.device ? std::optional<KnownGpu>({*predictions.device, gpu_properties(0).name})
                         : std::nullopt;
  predictions.rows = predict_all(grid, gpu ? &*gpu : nullptr);
  return predictions;
}

/// Returns true if tokens of any case travel between the ranks that divide its experts.
bool has_exchanges(const std::vector<Plan>& grid) {
  return std::any_of(grid.begin(), grid.end(),
                     [](const Plan& plan) { return plan.parameters.expert_ranks > 1; });
}

Table table_of(const std::vector<Plan>& grid, const std::vector<Row>& cases, const CaseLabels& labels,
               const std::optional<MemoryLimit>& limit) {
  const bool exchanges = has_exchanges(grid);
  const bool timed = is_timed(cases);
  Table table;
  for (const Field* field : labels.fields()) table.columns.push_back(name_column(field->name));
  table.columns.push_back(number_column("GiB/GPU", kKeyRank));
  if (limit) table.columns.push_back(number_column("fits", kKeyRank));
  table.columns.push_back(number_column("FLOPs/token", kDetailRank));
  table.columns.push_back(number_column("FLOPs/step", kDetailRank));
  if (exchanges)
    for (const char* title : {"dispatch GiB", "combine GiB"})
      table.columns.push_back(number_column(title, kDetailRank + 1));
  if (timed) table.columns.push_back(number_column("s/step at least", kDetailRank + 2));
  table.columns.push_back(text_column("largest segments, GiB", kKeyRank - 1));
  for (std::size_t i = 0; i < grid.size(); ++i) {
    const Prediction& p = cases[i].prediction;
    std::vector<std::string> row;
    for (const Field* field : labels.fields()) row.push_back(get_text(grid[i].fields, *field));
    if (cases[i].failure.empty()) {
      row.push_back(gib(p.memory.peak));
      if (limit) row.push_back(fits(p.memory.peak, *limit) ? "yes" : "no");
      row.insert(row.end(),
                 {fmt::format("{:.4e}", p.flops_per_token), fmt::format("{:.4e}", p.flops_per_step)});
      if (exchanges)
        for (const double bytes : {p.experts.dispatch, p.experts.combine})
          row.push_back(gib(static_cast<std::int64_t>(bytes)));
      if (timed) row.push_back(p.seconds_per_step ? fmt::format("{:.4g}", *p.seconds_per_step) : "-");
      row.push_back(largest_segments(p.memory));
    } else {
      row.resize(table.columns.size() - 1, "-");
      row.push_back(cases[i].failure);
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

bool any_runs(const std::vector<Row>& cases) {
  return std::any_of(cases.begin(), cases.end(), [](const Row& one) { return one.failure.empty(); });
}

}  // namespace

bool print_dry_run(const std::vector<Plan>& grid, const std::optional<MemoryLimit>& limit) {
  const CaseLabels labels(grid);
  const Screen screen = plain_screen(STDOUT_FILENO);
  const std::vector<Row> cases = predict_here(grid).rows;
  fmt::print("{}", render_term(table_of(grid, cases, labels, limit), screen));
  if (limit)
    fmt::print(
        "{}",
        paragraph(fmt::format("fits: {}, {} GiB ({}), of which {} GiB is left for the driver and libraries",
                              limit->name, gib(limit->bytes), limit->source, kContextBytes >> 30),
                  screen));
  std::fflush(stdout);  // the search for changes takes a moment
  print_lines(lines_about_bf16(grid, cases, labels), screen);
  print_lines(lines_about_changes(grid, cases, labels, limit), screen);
  fmt::print(
      "{}",
      paragraph(
          fmt::format(
              "{}; GiB/GPU is the largest peak of any GPU; model FLOPs, causal attention halved{}",
              count_cases(grid.size()),
              is_timed(cases) ? "; s/step at least: ops at the GPU's peak rates, without collectives" : ""),
          screen));
  return any_runs(cases);
}

bool print_dry_run_json(const std::vector<Plan>& grid, const std::optional<MemoryLimit>& limit) {
  const CaseLabels labels(grid);
  const std::vector<Row> cases = predict_here(grid).rows;
  Json json = {{"gpu", limit ? Json(limit->name) : Json()},
               {"gpu_bytes", limit ? Json(limit->bytes) : Json()},
               {"cases", Json::array()}};
  for (std::size_t i = 0; i < grid.size(); ++i) {
    Json one = {{"id", grid[i].id}};
    for (const Field* field : labels.fields())
      one["case"][field->name] = field_to_json(grid[i].fields, *field);
    const Prediction& p = cases[i].prediction;
    if (!cases[i].failure.empty()) {
      one["failure"] = cases[i].failure;
    } else {
      one["memory_bytes"] = p.memory.peak;
      if (limit) one["fits"] = fits(p.memory.peak, *limit) ? "yes" : "no";
      one["flops_per_token"] = p.flops_per_token;
      one["flops_per_step"] = p.flops_per_step;
      one["seconds_per_step_at_least"] = p.seconds_per_step ? Json(*p.seconds_per_step) : Json();
      for (const auto& [name, bytes] : segments_of(p.memory)) one["segments_bytes"][name] = bytes;
    }
    json["cases"].push_back(std::move(one));
  }
  fmt::print("{}\n", json.dump(2, ' ', true, Json::error_handler_t::replace));
  return any_runs(cases);
}

}  // namespace precbench
