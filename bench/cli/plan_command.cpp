// Searches layouts and prints the best. See plan_command.h.
#include "bench/cli/plan_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "bench/cli/cli.h"
#include "bench/cli/fit.h"
#include "bench/cli/layout_comparison.h"
#include "bench/cli/predict_command.h"
#include "bench/cli/predictions.h"
#include "bench/cli/step_parts.h"
#include "bench/predict/case_layout.h"
#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"
#include "kernels/base/plural.h"
#include "kernels/gpu/device_info.h"
#include "results/record/parallel.h"
#include "results/text/lines.h"
#include "results/text/table.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Fields that a user may fix; those of kSearchedFields are searched otherwise.
constexpr const char* kFixed[] = {"model",   "layers",        "recipe",  "seq",   "gpus",      "master",
                                  "moments", "second_moment", "weights", "grads", "optimizer", "keep_bf16",
                                  "routing", "reduce_amax",   "overlap", "kept"};
/// Recipes that are planned by default, where the machine multiplies their formats.
constexpr const char* kRecipes[] = {"bf16", "tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4_all"};

template <std::size_t kCount>
bool is_one_of(const char* const (&names)[kCount], const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

std::optional<std::string> default_of_plan(const Field& field) {
  if (is_searched(field.name)) return "searched";
  if (!is_one_of(kFixed, field.name)) return std::nullopt;
  const std::string name = field.name;
  return name == "model" || name == "recipe" || name == "gpus" || name == "seq" ? "" : default_of_case(field);
}

/// Returns the values of searched fields that the user gave.
std::map<std::string, std::vector<std::string>> searched_values(const Axes& axes) {
  std::map<std::string, std::vector<std::string>> searched;
  for (const auto& [name, given] : axes) {
    if (!is_searched(name)) continue;
    const Field& field = *find_field(name);
    for (const std::string& text : field.axis ? expand_axis(field, given) : given) {
      Case c;
      set_text(c, field, text);
      searched[name].push_back(get_text(c, field));
    }
  }
  return searched;
}

std::vector<std::string> recipes_of(const PlanCommand& command, const Machine& machine) {
  if (const auto given = command.axes.find("recipe"); given != command.axes.end())
    return expand_axis(*find_field("recipe"), given->second);
  std::vector<std::string> recipes;
  for (const char* recipe : kRecipes)
    if (is_native(machine.native, find_recipe(recipe))) recipes.emplace_back(recipe);
  return recipes;
}

/// Returns the case that the user fixed, in one recipe.
Case fixed_case(const PlanCommand& command, const std::string& recipe) {
  Case c;
  c.device = gpu_device_names().front();
  for (const auto& [name, words] : command.axes) {
    const Field& field = *find_field(name);
    if (name == "recipe" || is_searched(name)) continue;
    if (!is_one_of(kFixed, name))
      throw InvalidInput(fmt::format("{}: does not matter to plan", flag_of(field)));
    const std::vector<std::string> values = field.axis ? expand_axis(field, words) : words;
    if (values.size() > 1)
      throw InvalidInput(
          fmt::format("{}: plan takes one value, not {}", flag_of(field), fmt::join(values, ",")));
    set_text(c, field, values.front());
  }
  for (const char* needed : {"model", "gpus", "seq"})
    if (!command.axes.contains(needed))
      throw InvalidInput(fmt::format("{}: plan needs it", flag_of(*find_field(needed))));
  c.recipe = recipe;
  if (!find_recipe(recipe).schedule.empty()) c.switch_recipe = "none";  // its first steps are planned
  return c;
}

std::int64_t global_batch_of(const PlanCommand& command) {
  const auto value = parse_number<std::int64_t>(command.global_batch);
  if (!value || *value < 1 || *value > kMaxTokensPerStep)
    throw InvalidInput(fmt::format("--global-batch: needs a whole number of sequences from 1 to {}, not {}",
                                   kMaxTokensPerStep, command.global_batch));
  return *value;
}

RecipeSearch search_recipe(const PlanCommand& command, const std::string& recipe,
                           const CostModel& cost_model) {
  RecipeSearch search{recipe, {}, {}};
  const Case c = fixed_case(command, recipe);
  LayoutQuestion question{c, global_batch_of(command),
                          memory_limit_of(cost_model.machine()).bytes - kContextBytes,
                          static_cast<std::size_t>(command.proposals), searched_values(command.axes)};
  try {
    search.found = best_layouts(question, cost_model);
  } catch (const InvalidInput& error) {
    search.failure = error.what();
  }
  return search;
}

std::vector<StepPart> parts_of(const LayoutProposal& proposal) {
  return parts_of_step(proposal.estimate, axes_of_layout(proposal.plan, proposal.estimate.comms, axis_of));
}

/// Returns "gemm 61%, bubble 12%, exposed tensor 9%".
std::string largest_parts(const LayoutProposal& proposal) {
  constexpr std::size_t kShown = 3;
  std::vector<std::string> texts;
  for (const StepPart& part : parts_of(proposal)) {
    if (texts.size() == kShown) break;
    texts.push_back(
        fmt::format("{} {:.0f}%", part.name, 100 * part.seconds / proposal.estimate.step.seconds));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

double tokens_per_s(const LayoutProposal& proposal) {
  return static_cast<double>(proposal.plan.tokens_per_step()) / proposal.estimate.step.seconds;
}

double tflops_per_gpu(const LayoutProposal& proposal) {
  return tokens_per_s(proposal) * static_cast<double>(proposal.plan.flops_per_token()) /
         static_cast<double>(proposal.plan.fields.gpus) / 1e12;
}

/// Returns "fsdp 64", "hsdp 8", "ddp", what is kept for the whole step, and if the optimizer of replicas is sharded.
std::string sharding_text(const Case& c) {
  const std::string zero1 = c.shard_optimizer == "on" ? ", ZeRO-1" : "";
  if (c.parallel == "ddp") return "ddp" + zero1;
  const std::int64_t shards = c.parallel == "hsdp" ? c.shard_group : c.gpus / (c.tensor * c.pipeline);
  std::string text = fmt::format("{} {}", c.parallel, shards);
  if (c.reshard == "off")
    text += c.grad_sync == "last" ? ", weights+grads kept" : ", weights kept";
  else if (c.grad_sync == "last")
    text += ", grads kept";
  return text + zero1;
}

/// Returns the stack's speed of a proposal, and its speed-up over that of `bf16` (null: none).
StackPrediction predict_stack(Stack stack, const LayoutProposal& proposal, const LayoutProposal* bf16,
                              const Machine& machine) {
  const PlannedStep own{proposal.plan, proposal.estimate.step};
  if (!bf16) return predict_stack(stack, machine, own, nullptr);
  const PlannedStep base{bf16->plan, bf16->estimate.step};
  return predict_stack(stack, machine, own, &base);
}

std::vector<std::string> row_of(const LayoutProposal& proposal, const LayoutProposal* bf16,
                                const Machine& machine) {
  const Case& c = proposal.plan.fields;
  const StepEstimate& step = proposal.estimate.step;
  return {c.recipe,
          std::to_string(c.tensor),
          std::to_string(c.context),
          c.virtual_stages > 1 ? fmt::format("{} x {}", c.pipeline, c.virtual_stages)
                               : std::to_string(c.pipeline),
          std::to_string(c.gpus / (c.tensor * c.context * c.pipeline)),
          std::to_string(c.ep),
          sharding_text(c),
          std::to_string(c.batch),
          std::to_string(c.micro_steps()),
          c.recompute,
          c.gather,
          gib(proposal.estimate.peak_bytes) +
              (fit_of(proposal.estimate.peak_bytes, machine) == Fit::tight ? " tight" : ""),
          ms_text(1e3 * step.seconds),
          fmt::format("{}-{}", ms_text(1e3 * step.low()), ms_text(1e3 * step.high())),
          with_commas(tokens_per_s(proposal)),
          fmt::format("{:.0f}", tflops_per_gpu(proposal)),
          bf16 ? speedup_text(speedup_of(step, bf16->estimate.step)) : "-",
          largest_parts(proposal)};
}

const LayoutProposal* best_of(const std::vector<RecipeSearch>& searches, const std::string& recipe) {
  for (const RecipeSearch& search : searches)
    if (search.recipe == recipe && !search.found.proposals.empty()) return &search.found.proposals.front();
  return nullptr;
}

/// Returns what a search says beside its proposals.
std::string remark_of(const RecipeSearch& search) {
  const LayoutSearch& found = search.found;
  if (!search.failure.empty()) return fmt::format("{}: {}", search.recipe, search.failure);
  std::string text = fmt::format(
      "{}: {} tried, {} too large, {} predicted in full{}", search.recipe, plural(found.candidates, "layout"),
      with_commas(static_cast<double>(found.too_large)), with_commas(static_cast<double>(found.predicted)),
      found.complete ? "" : ", where the search ended; fix some flags to search the rest");
  if (const auto schedule = find_recipe(search.recipe).schedule; !schedule.empty())
    text += fmt::format("; steps before {} alone", to_text(schedule.front()));
  if (found.proposals.empty() && found.unsupported == found.candidates)
    text += fmt::format("; unsupported: {}", found.unsupported_reason);
  else if (found.proposals.empty() && found.least_bytes)
    text += fmt::format("; nothing fits: the smallest needs {} GiB", gib(*found.least_bytes));
  return text;
}

std::string overlap_of(const PlanCommand& command) {
  const auto given = command.axes.find("overlap");
  return given == command.axes.end() ? Case{}.overlap : given->second.front();
}

Stack stack_of(const PlanCommand& command) {
  return command.stack.empty() ? Stack::precbench : find_stack(command.stack);
}

void print_plan(const PlanCommand& command, const std::vector<RecipeSearch>& searches,
                const CostModel& cost_model) {
  Table table;
  table.columns = {name_column("recipe"),
                   number_column("tensor", kKeyRank - 2),
                   number_column("context", kKeyRank - 2),
                   number_column("pipeline", kKeyRank - 2),
                   number_column("data", kKeyRank - 3),
                   number_column("experts", kKeyRank - 2),
                   text_column("sharding", kKeyRank - 4),
                   number_column("micro-batch", kKeyRank - 5),
                   number_column("micro-batches", kKeyRank - 5),
                   text_column("recompute", kKeyRank - 4),
                   text_column("gather", kKeyRank - 6),
                   number_column("GiB/GPU", kKeyRank - 1),
                   number_column("ms/step", kKeyRank),
                   number_column("80% interval"),
                   number_column("tokens/s", kDetailRank),
                   number_column("TFLOP/s per GPU"),
                   number_column("over bf16 (80%)", kKeyRank - 1),
                   text_column("largest parts of the step", kKeyRank - 3)};
  const Stack stack = stack_of(command);
  if (stack != Stack::precbench)
    for (const char* title : {"tokens/s", "over bf16"})
      table.columns.push_back(number_column(fmt::format("{} {} (80%)", name_of(stack), title), kKeyRank - 1));
  std::vector<StackPrediction> of_stack;
  const LayoutProposal* bf16 = best_of(searches, "bf16");
  for (const RecipeSearch& search : searches) {
    if (!table.rows.empty() && !search.found.proposals.empty())
      table.group_starts.push_back(table.rows.size());
    for (const LayoutProposal& proposal : search.found.proposals) {
      table.rows.push_back(row_of(proposal, bf16, cost_model.machine()));
      if (stack == Stack::precbench) continue;
      of_stack.push_back(predict_stack(stack, proposal, bf16, cost_model.machine()));
      for (std::string& cell : stack_cells(of_stack.back())) table.rows.back().push_back(std::move(cell));
    }
  }
  const Screen screen = plain_screen(STDOUT_FILENO);
  const std::string constants = take_constants(table, {"recipe", "GiB/GPU", "ms/step"});
  if (!table.rows.empty()) fmt::print("{}", render_term(table, screen));
  if (!constants.empty()) fmt::print("{}", paragraph("all: " + constants, screen));
  for (const RecipeSearch& search : searches) fmt::print("{}", paragraph(remark_of(search), screen));
  print_stack(stack, of_stack, screen);
  const MemoryLimit limit = memory_limit_of(cost_model.machine());
  fmt::print("{}", paragraph(fmt::format(
                                 "predicted for {}, {} GiB ({}), of which {} GiB is left for the driver and "
                                 "libraries; rates {} {}; overlapped traffic of tensor and context ranks: {}",
                                 limit.name, gib(limit.bytes), limit.source, kContextBytes >> 30,
                                 cost_model.borrowed() ? "borrowed from" : "measured on",
                                 cost_model.rates().machine, overlap_of(command)),
                             screen));
  for (const RecipeSearch& search : searches)
    if (!search.found.proposals.empty())
      fmt::print("{}",
                 command_lines(fmt::format("precbench sweep --dry-run --on {}{}", cost_model.machine().name,
                                           flags_of_case(search.found.proposals.front().plan.fields)),
                               screen));
}

Json proposal_json(const LayoutProposal& proposal, const LayoutProposal* bf16, Stack stack,
                   const Machine& machine) {
  const Case& c = proposal.plan.fields;
  const StepEstimate& step = proposal.estimate.step;
  Json json = {{"id", proposal.plan.id}};
  for (const char* name : kSearchedFields) json[name] = field_to_json(c, *find_field(name));
  json["data"] = c.gpus / (c.tensor * c.context * c.pipeline);
  json["micro_batches"] = c.micro_steps();
  json["flags"] = flags_of_case(c).substr(1);
  json["fits"] = name_of(fit_of(proposal.estimate.peak_bytes, machine));
  json["memory_bytes"] = proposal.estimate.peak_bytes;
  json["step_ms"] = 1e3 * step.seconds;
  json["step_ms_80"] = {1e3 * step.low(), 1e3 * step.high()};
  json["tokens_per_s"] = tokens_per_s(proposal);
  json["tflops_per_gpu"] = tflops_per_gpu(proposal);
  if (bf16) {
    const SpeedUp over = speedup_of(step, bf16->estimate.step);
    json["over_bf16"] = over.ratio;
    json["over_bf16_80"] = {over.low, over.high};
  }
  json["bubble_ms"] = 1e3 * proposal.estimate.bubble_seconds;
  for (const StepPart& part : parts_of(proposal)) json["parts"][part.name] = part.seconds / step.seconds;
  if (stack != Stack::precbench) json["stack"] = stack_json(predict_stack(stack, proposal, bf16, machine));
  return json;
}

Json plan_json(const std::vector<RecipeSearch>& searches, Stack stack, const CostModel& cost_model) {
  Json json = {{"machine", cost_model.machine().name}, {"rates", cost_model.rates().machine}};
  if (stack != Stack::precbench) json["stack"] = name_of(stack);
  json["recipes"] = Json::array();
  const LayoutProposal* bf16 = best_of(searches, "bf16");
  for (const RecipeSearch& search : searches) {
    const LayoutSearch& found = search.found;
    Json one = {{"recipe", search.recipe}};
    if (!search.failure.empty()) one["failure"] = search.failure;
    one["layouts"] = found.candidates;
    one["too_large"] = found.too_large;
    one["predicted"] = found.predicted;
    one["unsupported"] = found.unsupported;
    one["complete"] = found.complete;
    one["least_bytes"] = found.least_bytes ? Json(*found.least_bytes) : Json();
    one["proposals"] = Json::array();
    for (const LayoutProposal& proposal : found.proposals)
      one["proposals"].push_back(proposal_json(proposal, bf16, stack, cost_model.machine()));
    json["recipes"].push_back(std::move(one));
  }
  return json;
}

void need(bool given, const char* flag) {
  if (!given) throw InvalidInput(fmt::format("{}: plan needs it", flag));
}

/// Returns the name that `name()` finds; empty for a machine or a model that is not known.
template <class Name>
std::string known_name(const Name& name) {
  try {
    return name();
  } catch (const InvalidInput&) {
    return "";
  }
}

/// Returns the published runs that have the model, machine, GPUs, sequence, batch and recipes that the user gave.
std::vector<PublishedPoint> published_runs(const PlanCommand& command) {
  const auto given = [&](const char* name) -> std::vector<std::string> {
    const auto axis = command.axes.find(name);
    return axis == command.axes.end() ? std::vector<std::string>{}
                                      : expand_axis(*find_field(name), axis->second);
  };
  for (const auto& [name, words] : command.axes) {
    check_words(*find_field(name), words);
    if (!is_one_of({"model", "gpus", "seq", "recipe"}, name))
      throw InvalidInput(
          fmt::format("{}: does not matter to plan --layout published", flag_of(*find_field(name))));
  }
  const auto has = [](const std::vector<std::string>& values, const std::string& value) {
    return values.empty() || std::find(values.begin(), values.end(), value) != values.end();
  };
  std::vector<std::string> models;
  for (const std::string& name : given("model")) models.push_back(find_model(name).name);
  const std::string machine = command.on.empty() ? "" : find_machine(command.on).name;
  const std::int64_t batch = command.global_batch.empty() ? 0 : global_batch_of(command);
  std::vector<PublishedPoint> runs;
  for (const PublishedPoint& point : read_points(command.published))
    if (has(given("gpus"), std::to_string(point.gpus.value_or(0))) &&
        has(given("seq"), std::to_string(point.seq.value_or(0))) &&
        has(given("recipe"), recipe_of_precision(point.precision)) &&
        (batch == 0 || batch == point.global_batch.value_or(0)) &&
        (machine.empty() || known_name([&] { return published_machine(point).name; }) == machine) &&
        (models.empty() || has(models, known_name([&] { return published_model(point.model).name; }))))
      runs.push_back(point);
  runs = runs_with_layouts(runs);
  if (runs.empty())
    throw InvalidInput(fmt::format(
        "--layout published: {} has no run of Megatron on 16 or more GPUs like this; leave out --model, --on, --gpus, "
        "--seq, --global-batch or --recipe to compare more",
        command.published));
  return runs;
}

int compare_published(const PlanCommand& command) {
  const std::vector<LayoutComparison> comparisons = compare_layouts(published_runs(command));
  std::vector<Json> lines;
  for (const LayoutComparison& one : comparisons) lines.push_back(comparison_json(one));
  if (command.json)
    fmt::print("{}\n", Json(lines).dump(2, ' ', true, Json::error_handler_t::replace));
  else
    print_comparisons(comparisons);
  return write_lines(command.out, lines);
}

}  // namespace

std::string flags_of_case(const Case& c) {
  std::string text;
  const Case defaults;
  for (const Field& field : case_fields()) {
    const std::string value = get_text(c, field);
    if (field.name == std::string_view("device") || value == get_text(defaults, field)) continue;
    text += fmt::format(" {} {}", flag_of(field), value);
  }
  return text;
}

std::vector<RecipeSearch> search_recipes(const PlanCommand& command, const CostModel& cost_model) {
  const std::vector<std::string> recipes = recipes_of(command, cost_model.machine());
  for (const auto& [name, words] : command.axes) check_words(*find_field(name), words);
  global_batch_of(command);
  for (const std::string& recipe : recipes) fixed_case(command, recipe);
  std::vector<RecipeSearch> searches(recipes.size());
  for_each_index(recipes.size(), recipes.size(),
                 [&](std::size_t i) { searches[i] = search_recipe(command, recipes[i], cost_model); });
  if (std::all_of(searches.begin(), searches.end(),
                  [](const RecipeSearch& one) { return !one.failure.empty(); }))
    throw InvalidInput(searches.front().failure);
  return searches;
}

CLI::App* add_plan_command(CLI::App& app, PlanCommand& command) {
  CLI::App* sub =
      app.add_subcommand("plan", "fastest layouts of ranks for a model on a number of GPUs, by recipe");
  sub->footer(
      "Predicts with the cost model of sweep --dry-run --on; runs nothing. Flags of searched fields restrict the search to "
      "their values.\n"
      "\n"
      "Exit status: 0 with a layout for some recipe\n"
      "             1 nothing fits\n"
      "             2 bad input\n"
      "\n"
      "Examples:\n"
      "  precbench plan --model llama3.1-405b --on h100 --gpus 1024 --seq 8192 --global-batch 512\n"
      "  # eight tensor ranks, BF16 gradients\n"
      "  precbench plan --model llama3.1-70b --on h200 --gpus 64 --seq 8192 --global-batch 128 --tensor 8 --grads bf16\n"
      "  # published runs of the same model and GPU\n"
      "  precbench plan --layout published --model llama3.1-405b --on h100");
  add_fields(*sub, command.axes, true, default_of_plan);
  sub->add_option("--on", command.on, "machine: h100-sxm, gb200-nvl72, ... or a machine file")
      ->type_name("NAME|FILE.json")
      ->group("Plan");
  sub->add_option("--global-batch", command.global_batch, "sequences of an optimizer step, all GPUs together")
      ->type_name("N")
      ->group("Plan");
  sub->add_option("--proposals", command.proposals, "layouts to propose for each recipe")
      ->type_name("N")
      ->check(CLI::Range(1, 100).description(""))
      ->capture_default_str()
      ->group("Plan");
  sub->add_option(
         "--layout", command.layout,
         "best: proposals; published: proposals beside the layouts of published runs, and why they differ")
      ->check(CLI::IsMember({"best", "published"}).description(""))
      ->type_name("best|published")
      ->capture_default_str()
      ->group("Plan");
  sub->add_option("--published", command.published, "file of published runs")
      ->type_name("FILE")
      ->capture_default_str()
      ->group("Plan");
  sub->add_option("--out", command.out, "file of comparisons with published runs, a line for each")
      ->type_name("FILE")
      ->group("Plan");
  sub->add_option("--stack", command.stack,
                  "training software whose predicted speed stands beside ours: pytorch, megatron")
      ->type_name("NAME")
      ->group("Plan");
  sub->add_flag("--json", command.json, "output as JSON")->group("Plan");
  return sub;
}

int plan_layouts(const PlanCommand& command) {
  stack_of(command);
  if (command.layout == "published") {
    if (!command.stack.empty())
      throw InvalidInput("--stack: published runs are compared with our step; leave it out");
    return compare_published(command);
  }
  need(!command.on.empty(), "--on");
  need(!command.global_batch.empty(), "--global-batch");
  if (!command.out.empty()) throw InvalidInput("--out: needs --layout published");
  const CostModel cost_model(find_machine(command.on));
  const std::vector<RecipeSearch> searches = search_recipes(command, cost_model);
  if (command.json)
    fmt::print("{}\n", plan_json(searches, stack_of(command), cost_model)
                           .dump(2, ' ', true, Json::error_handler_t::replace));
  else
    print_plan(command, searches, cost_model);
  return std::any_of(searches.begin(), searches.end(),
                     [](const RecipeSearch& one) { return !one.found.proposals.empty(); })
             ? 0
             : 1;
}

}  // namespace precbench
