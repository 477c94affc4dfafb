// Predicts a grid on a machine and prints it. See predictions.h.
#include "bench/cli/predictions.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "bench/case/plan.h"
#include "bench/cli/fit.h"
#include "bench/predict/case_layout.h"
#include "bench/sweep/progress.h"
#include "kernels/base/errors.h"
#include "kernels/comm/parallel_dims.h"
#include "results/text/lines.h"
#include "results/text/table.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Returns a case's work without its recipe and the dtypes that only low-precision recipes have: what a speed-up keeps
/// equal.
std::string setting_of(Case c) {
  c.recipe = builtin_recipes().front().name;
  c.gather = Case{}.gather;
  c.flow = Case{}.flow;
  c.dispatch = Case{}.dispatch;
  return case_to_json(c).dump(-1, ' ', false, Json::error_handler_t::replace);
}

void set_speeds(const Plan& plan, CasePrediction& p) {
  p.tokens_per_s = static_cast<double>(plan.tokens_per_step()) / p.step->seconds;
  p.tflops_per_gpu = p.tokens_per_s * static_cast<double>(plan.flops_per_token()) / plan.ranks / 1e12;
}

/// Predicts a case with tensor or pipeline ranks. Throws OutOfMemory and Unsupported.
void predict_layout(const Plan& plan, const CostModel& model, CasePrediction& p) {
  if (const auto why = layout_failure(plan)) throw Unsupported(*why);
  p.emulated = !runs_natively(plan, model.machine());
  if (p.emulated) {
    p.stages = layout_memory(plan);
  } else {
    const LayoutEstimate estimate = estimate_layout(plan, model);
    p.stages = estimate.stages;
    p.bubble_seconds = estimate.bubble_seconds;
    p.step = estimate.step;
    p.comm_names = axes_of_layout(plan, estimate.comms, axis_of);
    set_speeds(plan, p);
  }
  for (const StageMemory& stage : p.stages) p.memory.peak = std::max(p.memory.peak, stage.peak());
  p.fit = fit_of(p.memory.peak, model.machine());
}

CasePrediction predict_case(const Plan& plan, const CostModel& model) {
  CasePrediction p;
  try {
    if (has_layout(plan.fields)) {
      predict_layout(plan, model, p);
      return p;
    }
    if (const auto why = unsupported_reason(plan)) throw Unsupported(*why);
    const DryRun run = dry_run(plan, nullptr);
    p.memory = memory_segments(run.highest, run.most());
    p.fit = fit_of(p.memory.peak, model.machine());
    p.emulated = !runs_natively(plan, model.machine());
    if (p.emulated) return p;
    p.step = estimate_step(model, run.trace, plan.ranks);
    for (const std::vector<int>& ranks : run.trace.comms) p.comm_names.push_back(axis_of(ranks, plan));
    set_speeds(plan, p);
  } catch (const Unsupported& error) {
    p.failure = fmt::format("unsupported: {}", error.what());
  } catch (const OutOfMemory& error) {
    p.failure = fmt::format("oom: {}", error.what());
  }
  return p;
}

SpeedUp with_error(double value, double log_error) {
  const double width = std::exp(kInterval80 * log_error);
  return {value, value / width, value * width};
}

/// Returns the milliseconds that waits for the collectives of each axis take.
std::map<std::string, double> exposed_ms(const CasePrediction& p) {
  std::map<std::string, double> sums;
  for (std::size_t i = 0; i < p.comm_names.size(); ++i)
    sums[p.comm_names[i]] += 1e3 * p.step->time.exposed[i];
  return sums;
}

double straggler_ms(const StepEstimate& step) { return 1e3 * (step.seconds - step.time.seconds); }

/// Returns the milliseconds of each class of ops, without empty ones, in the record's order.
std::vector<std::pair<std::string, double>> class_ms(const StepTime& time) {
  std::vector<std::pair<std::string, double>> classes;
  for (int i = 0; i < kOpClasses; ++i)
    if (const double seconds = time.class_seconds[static_cast<std::size_t>(i)]; seconds > 0)
      classes.emplace_back(name_of(static_cast<OpClass>(i)), 1e3 * seconds);
  return classes;
}

Json case_json(const Plan& plan, const CasePrediction& p, const CaseLabels& labels) {
  Json json = {{"id", plan.id}};
  for (const Field* field : labels.fields()) json["case"][field->name] = field_to_json(plan.fields, *field);
  if (!p.failure.empty()) {
    json["failure"] = p.failure;
    return json;
  }
  json["memory_bytes"] = p.memory.peak;
  json["fits"] = name_of(p.fit);
  json["native"] = !p.emulated;
  for (const StageMemory& stage : p.stages)
    json["stages"].push_back({{"layers", stage.layers},
                              {"memory_bytes", stage.peak()},
                              {"state_bytes", stage.states},
                              {"buffer_bytes", stage.buffers},
                              {"activation_bytes", stage.activations},
                              {"micro_batches_in_flight", stage.micro_batches}});
  if (!p.step) return json;
  const StepEstimate& step = *p.step;
  json["step_ms"] = 1e3 * step.seconds;
  json["step_ms_80"] = {1e3 * step.low(), 1e3 * step.high()};
  json["tokens_per_s"] = p.tokens_per_s;
  json["tokens_per_s_80"] = {p.tokens_per_s * step.seconds / step.high(),
                             p.tokens_per_s * step.seconds / step.low()};
  json["tflops_per_gpu"] = p.tflops_per_gpu;
  json["over_bf16"] = p.over_bf16 ? Json(p.over_bf16->ratio) : Json();
  json["over_bf16_80"] = p.over_bf16 ? Json{p.over_bf16->low, p.over_bf16->high} : Json();
  for (const auto& [name, ms] : class_ms(step.time)) json["class_ms"][name] = ms;
  json["contention_ms"] = 1e3 * step.time.contention;
  json["exposed_ms"] = exposed_ms(p);
  if (!p.stages.empty()) json["bubble_ms"] = 1e3 * p.bubble_seconds;
  json["stragglers_ms"] = straggler_ms(step);
  json["borrowed_share"] = step.borrowed_share();
  if (p.stack) json["stack"] = stack_json(*p.stack);
  return json;
}

std::vector<std::string> labels_of(const Plan& plan, const CaseLabels& labels) {
  std::vector<std::string> row;
  for (const Field* field : labels.fields()) row.push_back(get_text(plan.fields, *field));
  return row;
}

void print_speeds(const std::vector<Plan>& grid, const std::vector<CasePrediction>& predictions,
                  const CaseLabels& labels, Stack stack, const Screen& screen) {
  Table table;
  for (const Field* field : labels.fields()) table.columns.push_back(name_column(field->name));
  for (const auto& [title, rank] :
       std::initializer_list<std::pair<const char*, int>>{{"GiB/GPU", kKeyRank - 3},
                                                          {"fits", kKeyRank - 2},
                                                          {"ms/step", kKeyRank},
                                                          {"80% interval", kDetailRank + 1},
                                                          {"tokens/s", kKeyRank - 4},
                                                          {"TFLOP/s per GPU", kDetailRank},
                                                          {"over bf16 (80%)", kKeyRank - 1}})
    table.columns.push_back(number_column(title, rank));
  if (stack != Stack::precbench) {
    table.columns.push_back(number_column(fmt::format("{} tokens/s (80%)", name_of(stack)), kKeyRank - 1));
    table.columns.push_back(number_column(fmt::format("{} over bf16 (80%)", name_of(stack)), kKeyRank));
  }
  for (std::size_t i = 0; i < grid.size(); ++i) {
    const CasePrediction& p = predictions[i];
    std::vector<std::string> row = labels_of(grid[i], labels);
    if (p.failure.empty()) row.insert(row.end(), {gib(p.memory.peak), name_of(p.fit)});
    if (p.failure.empty() && !p.step) row.emplace_back("emulated");
    if (p.step) {
      const StepEstimate& step = *p.step;
      row.insert(row.end(), {ms_text(1e3 * step.seconds),
                             fmt::format("{}-{}", ms_text(1e3 * step.low()), ms_text(1e3 * step.high())),
                             with_commas(p.tokens_per_s), fmt::format("{:.0f}", p.tflops_per_gpu),
                             p.over_bf16 ? speedup_text(*p.over_bf16) : "-"});
      if (p.stack) {
        for (std::string& cell : stack_cells(*p.stack)) row.push_back(std::move(cell));
      }
    }
    row.resize(table.columns.size(), "-");
    table.rows.push_back(std::move(row));
  }
  fmt::print("{}", render_term(table, screen));
  for (std::size_t i = 0; i < grid.size(); ++i)
    if (!predictions[i].failure.empty())
      fmt::print("{}", paragraph(fmt::format("{}: {}", labels.of(grid[i]), predictions[i].failure), screen));
}

constexpr const char* kBorrowed = "borrowed";

/// Returns the rank of a column of times: the shorter the time, the earlier a narrow terminal leaves it out. The
/// share of borrowed rates stays.
int rank_among(const std::vector<std::string>& columns, const std::string& column,
               const std::vector<std::map<std::string, double>>& cells) {
  const auto longest = [&](const std::string& name) {
    double most = 0;
    for (const auto& row : cells)
      if (const auto cell = row.find(name); cell != row.end()) most = std::max(most, cell->second);
    return most;
  };
  if (column == kBorrowed) return kKeyRank;
  const auto shorter = std::count_if(columns.begin(), columns.end(), [&](const std::string& other) {
    return longest(other) < longest(column);
  });
  return kDetailRank + std::min(static_cast<int>(shorter), kOrdinaryRank - 1);
}

/// Prints where the time of a step goes, a column for each class and axis that any case has.
void print_times(const std::vector<Plan>& grid, const std::vector<CasePrediction>& predictions,
                 const CaseLabels& labels, const Screen& screen) {
  std::set<std::pair<int, std::string>> known;  // by place, which is the order of the parts of a step
  std::vector<std::map<std::string, double>> cells(grid.size());
  const auto add = [&](std::size_t i, int place, const std::string& column, double value) {
    if (!(value > 0)) return;
    known.emplace(place, column);
    cells[i][column] += value;
  };
  for (std::size_t i = 0; i < grid.size(); ++i) {
    if (!predictions[i].step) continue;
    const StepEstimate& step = *predictions[i].step;
    for (int c = 0; c < kOpClasses; ++c)
      add(i, c, name_of(static_cast<OpClass>(c)), 1e3 * step.time.class_seconds[static_cast<std::size_t>(c)]);
    int place = kOpClasses;
    add(i, place++, "slowed", 1e3 * step.time.contention);
    for (const auto& [axis, ms] : exposed_ms(predictions[i])) add(i, place, "exposed " + axis, ms);
    add(i, ++place, "bubble", 1e3 * predictions[i].bubble_seconds);
    add(i, ++place, "stragglers", straggler_ms(step));
    add(i, ++place, kBorrowed, 100 * step.borrowed_share());
  }
  std::vector<std::string> columns;
  for (const auto& [place, column] : known) columns.push_back(column);
  if (columns.empty()) return;
  Table table;
  for (const Field* field : labels.fields()) table.columns.push_back(name_column(field->name));
  for (const std::string& column : columns) {
    std::string title = column;
    std::replace(title.begin(), title.end(), '_', ' ');
    table.columns.push_back(number_column(std::move(title), rank_among(columns, column, cells)));
  }
  for (std::size_t i = 0; i < grid.size(); ++i) {
    if (!predictions[i].step) continue;
    std::vector<std::string> row = labels_of(grid[i], labels);
    for (const std::string& column : columns) {
      const auto cell = cells[i].find(column);
      row.push_back(cell == cells[i].end() ? "-"
                    : column == kBorrowed  ? fmt::format("{:.0f}%", cell->second)
                                           : ms_text(cell->second));
    }
    table.rows.push_back(std::move(row));
  }
  fmt::print("\nms of a step, by class of operation\n{}", render_term(table, screen));
}

/// Returns "71.3 (8), 2 x 70.1 (8)", GiB and layers of each stage: equal neighbours are one entry.
std::string stages_text(const std::vector<StageMemory>& stages) {
  std::string text;
  for (std::size_t first = 0, last = 0; first < stages.size(); first = last + 1) {
    const auto entry = [&](std::size_t at) {
      return fmt::format("{} ({})", gib(stages[at].peak()), stages[at].layers);
    };
    for (last = first; last + 1 < stages.size() && entry(last + 1) == entry(first);) ++last;
    const std::size_t count = last - first + 1;
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", count > 1 ? fmt::format("{} x ", count) : "",
                        entry(first));
  }
  return text;
}

/// Prints the memory of pipeline stages, the bubble, and how tensor ranks are predicted.
void print_layouts(const std::vector<Plan>& grid, const std::vector<CasePrediction>& predictions,
                   const CaseLabels& labels, const Screen& screen) {
  bool tensor = false;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    const CasePrediction& p = predictions[i];
    const Case& c = grid[i].fields;
    tensor = tensor || (c.tensor > 1 && c.overlap != "tensor" && c.overlap != "all" && !p.stages.empty());
    if (p.stages.size() < 2) continue;
    const std::string bubble =
        p.step ? fmt::format("bubble {:.1f}% of the step; ", 100 * p.bubble_seconds / p.step->time.seconds)
               : "";
    fmt::print("{}", paragraph(fmt::format("{}: {}GiB of each stage (layers): {}", labels.of(grid[i]), bubble,
                                           stages_text(p.stages)),
                               screen));
  }
  if (tensor)
    fmt::print(
        "{}",
        paragraph("tensor ranks with sequence parallelism; their collectives run between the GEMMs, not "
                  "beside them",
                  screen));
}

/// Returns "0.71 (0.58-0.87)", or the range of several factors.
std::string factors_text(const std::vector<StackPrediction>& predictions) {
  const auto text = [](const StackFactor& factor) {
    return fmt::format("{:.2f} ({:.2f}-{:.2f})", factor.factor, factor.low(), factor.high());
  };
  const auto [least, most] = std::minmax_element(
      predictions.begin(), predictions.end(),
      [](const StackPrediction& a, const StackPrediction& b) { return a.factor.factor < b.factor.factor; });
  const std::string low = text(least->factor), high = text(most->factor);
  return low == high ? low : fmt::format("{} to {}", low, high);
}

/// Adds the lines that a list does not have yet.
void add_new(const std::vector<std::string>& lines, std::vector<std::string>& list) {
  for (const std::string& line : lines)
    if (std::find(list.begin(), list.end(), line) == list.end()) list.push_back(line);
}

}  // namespace

std::string axis_of(const std::vector<int>& ranks, const Plan& plan) {
  const ParallelDims& dims = plan.parameters.parallel;
  if (dims.tensor > 1 && ranks == dims.group_of(ranks.front(), {Axis::tensor})) return "tensor";
  if (static_cast<int>(ranks.size()) == plan.ranks)
    return dims.shard == plan.ranks ? "shard" : dims.data == plan.ranks ? "data" : "all ranks";
  if (ranks == dims.group_of(ranks.front(), {Axis::shard})) return "shard";
  if (ranks == dims.group_of(ranks.front(), {Axis::data})) return "data";
  return static_cast<int>(ranks.size()) == plan.parameters.expert_ranks ? "experts" : "replicas";
}

std::string with_commas(double value) {
  std::string text = fmt::format("{:.0f}", value);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

std::string ms_text(double ms) {
  return ms >= 100 ? with_commas(ms) : fmt::format("{:.{}f}", ms, ms >= 10 ? 1 : 2);
}

std::string speedup_text(const SpeedUp& speedup) {
  if (speedup.low == speedup.high) return fmt::format("{:.2f}x", speedup.ratio);
  return fmt::format("{:.2f}x ({:.2f}-{:.2f})", speedup.ratio, speedup.low, speedup.high);
}

StackPrediction predict_stack(Stack stack, const Machine& machine, const PlannedStep& own, const PlannedStep* bf16) {
  const StackSetting setting = stack_setting(own.plan, machine, own.step.seconds);
  StackPrediction p;
  p.factor = stack_factor(stack, setting);
  p.no_evidence = p.factor.no_evidence;
  p.tokens_per_s = with_error(
      static_cast<double>(own.plan.tokens_per_step()) / own.step.seconds * p.factor.factor,
      std::hypot(own.step.log_error, p.factor.log_error));
  if (!bf16) return p;
  const SpeedUp ours = speedup_of(own.step, bf16->step);
  if (&own.step == &bf16->step) {
    p.over_bf16 = ours;
    return p;
  }
  const StackFactor factor =
      stack_speedup_factor(stack, setting, stack_setting(bf16->plan, machine, bf16->step.seconds));
  p.over_bf16 =
      with_error(ours.ratio * factor.factor, std::hypot(speedup_log_error(own.step, bf16->step), factor.log_error));
  add_new(factor.no_evidence, p.no_evidence);
  return p;
}

std::vector<std::string> stack_cells(const StackPrediction& prediction) {
  const SpeedUp& speed = prediction.tokens_per_s;
  return {fmt::format("{} ({}-{})", with_commas(speed.ratio), with_commas(speed.low), with_commas(speed.high)),
          prediction.over_bf16 ? speedup_text(*prediction.over_bf16) : "-"};
}

Json stack_json(const StackPrediction& prediction) {
  const SpeedUp &speed = prediction.tokens_per_s, over = prediction.over_bf16.value_or(SpeedUp{});
  return {{"factor", prediction.factor.factor},
          {"factor_80", {prediction.factor.low(), prediction.factor.high()}},
          {"tokens_per_s", speed.ratio},
          {"tokens_per_s_80", {speed.low, speed.high}},
          {"over_bf16", prediction.over_bf16 ? Json(over.ratio) : Json()},
          {"over_bf16_80", prediction.over_bf16 ? Json{over.low, over.high} : Json()},
          {"no_evidence", prediction.no_evidence}};
}

void print_stack(Stack stack, const std::vector<StackPrediction>& predictions, const Screen& screen) {
  if (predictions.empty()) return;
  fmt::print(
      "{}",
      paragraph(fmt::format("{}: our step times a factor of {}, from measured and published comparisons with "
                            "our step (results/predicted/stacks.md)",
                            name_of(stack), factors_text(predictions)),
                screen));
  std::vector<std::string> missing;
  for (const StackPrediction& p : predictions) add_new(p.no_evidence, missing);
  for (const std::string& line : missing)
    fmt::print("{}",
               paragraph(line + ": estimated from other recipes, machines or steps, with a wide interval", screen));
}

const char* name_of(Fit fit) {
  static constexpr const char* kNames[] = {"yes", "tight", "no"};
  return kNames[static_cast<int>(fit)];
}

Fit fit_of(std::int64_t peak, const Machine& machine) {
  const MemoryLimit limit = memory_limit_of(machine);
  if (!fits(peak, limit)) return Fit::no;
  return static_cast<double>(peak + kContextBytes) > kTight * static_cast<double>(limit.bytes) ? Fit::tight
                                                                                               : Fit::yes;
}

std::vector<CasePrediction> predict_grid(const std::vector<Plan>& grid, const CostModel& model, Stack stack) {
  const auto is_impossible_layout = [](const Plan& plan) {
    return has_layout(plan.fields) && layout_unsupported_reason(plan).has_value();
  };
  if (!grid.empty() && std::all_of(grid.begin(), grid.end(), is_impossible_layout))
    throw InvalidInput(*layout_unsupported_reason(grid.front()));
  std::vector<CasePrediction> predictions;
  std::map<std::string, std::size_t> bf16;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    predictions.push_back(predict_case(grid[i], model));
    if (!grid[i].recipe.quantized() && predictions[i].step) bf16.emplace(setting_of(grid[i].fields), i);
  }
  for (std::size_t i = 0; i < grid.size(); ++i) {
    CasePrediction& p = predictions[i];
    if (!p.step) continue;
    const auto base = bf16.find(setting_of(grid[i].fields));
    const PlannedStep own{grid[i], *p.step};
    std::optional<PlannedStep> in_bf16;
    if (base != bf16.end()) {
      in_bf16.emplace(PlannedStep{grid[base->second], *predictions[base->second].step});
      p.over_bf16 = speedup_of(own.step, in_bf16->step);
    }
    if (stack != Stack::precbench)
      p.stack = predict_stack(stack, model.machine(), own, in_bf16 ? &*in_bf16 : nullptr);
  }
  return predictions;
}

Json predictions_json(const std::vector<Plan>& grid, const std::vector<CasePrediction>& predictions,
                      const CostModel& model, Stack stack) {
  const CaseLabels labels(grid);
  Json json = {{"machine", model.machine().name}, {"rates", model.rates().machine}};
  if (stack != Stack::precbench) json["stack"] = name_of(stack);
  json["cases"] = Json::array();
  for (std::size_t i = 0; i < grid.size(); ++i)
    json["cases"].push_back(case_json(grid[i], predictions[i], labels));
  return json;
}

bool print_predictions(const std::vector<Plan>& grid, const CostModel& model, bool json, Stack stack) {
  const std::vector<CasePrediction> predictions = predict_grid(grid, model, stack);
  const bool any_runs = std::any_of(predictions.begin(), predictions.end(),
                                    [](const CasePrediction& p) { return p.failure.empty(); });
  if (json) {
    fmt::print(
        "{}\n",
        predictions_json(grid, predictions, model, stack).dump(2, ' ', true, Json::error_handler_t::replace));
    return any_runs;
  }
  const CaseLabels labels(grid);
  const Screen screen = plain_screen(STDOUT_FILENO);
  print_speeds(grid, predictions, labels, stack, screen);
  print_times(grid, predictions, labels, screen);
  print_layouts(grid, predictions, labels, screen);
  std::vector<StackPrediction> of_stack;
  for (const CasePrediction& p : predictions)
    if (p.stack) of_stack.push_back(*p.stack);
  print_stack(stack, of_stack, screen);
  const MemoryLimit limit = memory_limit_of(model.machine());
  fmt::print(
      "{}",
      paragraph(fmt::format("{}; predicted for {}, {} GiB ({}), of which {} GiB is left for the driver and "
                            "libraries; rates {} {}{}",
                            count_cases(grid.size()), limit.name, gib(limit.bytes), limit.source,
                            kContextBytes >> 30, model.borrowed() ? "borrowed from" : "measured on",
                            model.rates().machine,
                            model.ratios()
                                ? fmt::format(", over ratios of kernel times in {}", model.ratios()->source)
                                : ""),
                screen));
  return any_runs;
}

}  // namespace precbench
