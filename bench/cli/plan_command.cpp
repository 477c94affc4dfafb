// Searches layouts and prints the best. See plan_command.h.
#include "bench/cli/plan_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "bench/cli/cli.h"
#include "bench/cli/fit.h"
#include "bench/cli/predictions.h"
#include "bench/predict/case_layout.h"
#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"
#include "kernels/base/plural.h"
#include "kernels/gpu/device_info.h"
#include "results/text/lines.h"
#include "results/text/table.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Fields that a user may fix; those of kSearched are searched otherwise.
constexpr const char* kFixed[] = {"model",     "layers",    "recipe",        "seq",     "gpus",
                                  "master",    "moments",   "second_moment", "weights", "grads",
                                  "optimizer", "keep_bf16", "routing",       "grouped", "reduce_amax"};
constexpr const char* kSearched[] = {"batch",   "parallel",  "shard_group",    "context",
                                     "tensor",  "pipeline",  "virtual_stages", "gather",
                                     "reshard", "grad_sync", "recompute",      "ep"};
/// Recipes that are planned by default, where the machine multiplies their formats.
constexpr const char* kRecipes[] = {"bf16", "tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4_all"};

template <std::size_t kCount>
bool is_one_of(const char* const (&names)[kCount], const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

std::optional<std::string> default_of_plan(const Field& field) {
  if (is_one_of(kSearched, field.name)) return "searched";
  if (!is_one_of(kFixed, field.name)) return std::nullopt;
  const std::string name = field.name;
  return name == "model" || name == "recipe" || name == "gpus" || name == "seq" ? "" : default_of_case(field);
}

std::vector<std::int64_t> integers(const std::vector<std::string>& words) {
  std::vector<std::int64_t> values;
  for (const std::string& word : words) values.push_back(parse_number<std::int64_t>(word).value());
  return values;
}

/// Replaces the values of searched fields by those that the user gave.
void restrict_space(LayoutSpace& space, const Axes& axes) {
  const std::map<std::string, std::vector<std::int64_t> LayoutSpace::*> numbers = {
      {"tensor", &LayoutSpace::tensor},
      {"context", &LayoutSpace::context},
      {"pipeline", &LayoutSpace::pipeline},
      {"virtual_stages", &LayoutSpace::virtual_stages},
      {"batch", &LayoutSpace::batch},
      {"ep", &LayoutSpace::ep},
      {"shard_group", &LayoutSpace::shard_group}};
  const std::map<std::string, std::vector<std::string> LayoutSpace::*> words = {
      {"parallel", &LayoutSpace::parallel},
      {"reshard", &LayoutSpace::reshard},
      {"grad_sync", &LayoutSpace::grad_sync},
      {"recompute", &LayoutSpace::recompute},
      {"gather", &LayoutSpace::gather}};
  for (const auto& [name, given] : axes) {
    if (!is_one_of(kSearched, name)) continue;
    const Field& field = *find_field(name);
    std::vector<std::string> values;
    for (const std::string& text : field.axis ? expand_axis(field, given) : given) {
      Case c;
      set_text(c, field, text);
      values.push_back(get_text(c, field));
    }
    if (const auto number = numbers.find(name); number != numbers.end())
      space.*number->second = integers(values);
    else
      space.*words.at(name) = values;
  }
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
    if (name == "recipe" || is_one_of(kSearched, name)) continue;
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
                          static_cast<std::size_t>(command.proposals)};
  try {
    Case one = c;
    one.gpus = 1;
    const Plan plan = resolve(one, Refusals::kept);
    if (plan.refusal) throw InvalidInput(*plan.refusal);
    if (!runs_natively(plan, cost_model.machine()))
      throw InvalidInput(
          fmt::format("{} does not multiply the formats of {}", cost_model.machine().name, recipe));
    LayoutSpace space = layout_space(question, plan.model, cost_model.machine());
    if (plan.recipe.quantized()) space.gather = {"bf16", "fp8"};
    restrict_space(space, command.axes);
    search.found = search_layouts(question, space, cost_model);
  } catch (const InvalidInput& error) {
    search.failure = error.what();
  }
  return search;
}

/// A part of a step and its share.
struct Part {
  std::string name;
  double share = 0;
};

/// Returns the parts of a step, the largest first.
std::vector<Part> parts_of(const LayoutProposal& proposal) {
  const LayoutEstimate& estimate = proposal.estimate;
  const StepEstimate& step = estimate.step;
  std::map<std::string, double> seconds;
  for (int i = 0; i < kOpClasses; ++i)
    seconds[name_of(static_cast<OpClass>(i))] += step.time.class_seconds[static_cast<std::size_t>(i)];
  const std::vector<std::string> axes = axes_of_layout(proposal.plan, estimate.comms, axis_of);
  for (std::size_t i = 0; i < axes.size() && i < step.time.exposed.size(); ++i)
    seconds["exposed " + axes[i]] += step.time.exposed[i];
  seconds["slowed"] += step.time.contention;
  seconds["bubble"] += estimate.bubble_seconds;
  seconds["stragglers"] += step.seconds - step.time.seconds;
  std::vector<Part> parts;
  for (const auto& [name, value] : seconds)
    if (value > 0) parts.push_back({name, value / step.seconds});
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.share > b.share; });
  return parts;
}

/// Returns "gemm 61%, bubble 12%, exposed tensor 9%".
std::string largest_parts(const LayoutProposal& proposal) {
  constexpr std::size_t kShown = 3;
  std::vector<std::string> texts;
  for (const Part& part : parts_of(proposal)) {
    if (texts.size() == kShown) break;
    texts.push_back(fmt::format("{} {:.0f}%", part.name, 100 * part.share));
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

/// Returns the fields of a proposal that differ from a case's defaults, as flags of a sweep.
std::string flags_of(const Case& c) {
  std::string text;
  const Case defaults;
  for (const Field& field : case_fields()) {
    const std::string value = get_text(c, field);
    if (field.name == std::string_view("device") || value == get_text(defaults, field)) continue;
    text += fmt::format(" {} {}", flag_of(field), value);
  }
  return text;
}

/// Returns "fsdp 64", "hsdp 8", "ddp", and what is kept for the whole step.
std::string sharding_text(const Case& c) {
  if (c.parallel == "ddp") return "ddp";
  const std::int64_t shards = c.parallel == "hsdp" ? c.shard_group : c.gpus / (c.tensor * c.pipeline);
  std::string text = fmt::format("{} {}", c.parallel, shards);
  if (c.reshard == "off")
    text += c.grad_sync == "last" ? ", weights+grads kept" : ", weights kept";
  else if (c.grad_sync == "last")
    text += ", grads kept";
  return text;
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
  if (found.proposals.empty() && found.unsupported == found.candidates)
    text += fmt::format("; unsupported: {}", found.unsupported_reason);
  else if (found.proposals.empty() && found.least_bytes)
    text += fmt::format("; nothing fits: the smallest needs {} GiB", gib(*found.least_bytes));
  return text;
}

void print_plan(const std::vector<RecipeSearch>& searches, const CostModel& cost_model) {
  Table table;
  table.columns.push_back(name_column("recipe"));
  for (const auto& [title, rank] :
       std::initializer_list<std::pair<const char*, int>>{{"tensor", kKeyRank - 2},
                                                          {"context", kKeyRank - 2},
                                                          {"pipeline", kKeyRank - 2},
                                                          {"data", kKeyRank - 3},
                                                          {"experts", kKeyRank - 2}})
    table.columns.push_back(number_column(title, rank));
  table.columns.push_back(text_column("sharding", kKeyRank - 4));
  table.columns.push_back(number_column("micro-batch", kKeyRank - 5));
  table.columns.push_back(number_column("micro-batches", kKeyRank - 5));
  table.columns.push_back(text_column("recompute", kKeyRank - 4));
  table.columns.push_back(text_column("gather", kKeyRank - 6));
  for (const auto& [title, rank] :
       std::initializer_list<std::pair<const char*, int>>{{"GiB/GPU", kKeyRank - 1},
                                                          {"ms/step", kKeyRank},
                                                          {"80% interval", kOrdinaryRank},
                                                          {"tokens/s", kDetailRank},
                                                          {"TFLOP/s per GPU", kOrdinaryRank},
                                                          {"over bf16 (80%)", kKeyRank - 1}})
    table.columns.push_back(number_column(title, rank));
  table.columns.push_back(text_column("largest parts of the step", kKeyRank - 3));
  const LayoutProposal* bf16 = best_of(searches, "bf16");
  for (const RecipeSearch& search : searches) {
    if (!table.rows.empty() && !search.found.proposals.empty())
      table.group_starts.push_back(table.rows.size());
    for (const LayoutProposal& proposal : search.found.proposals)
      table.rows.push_back(row_of(proposal, bf16, cost_model.machine()));
  }
  const Screen screen = plain_screen(STDOUT_FILENO);
  const std::string constants = take_constants(table, {"recipe", "GiB/GPU", "ms/step"});
  if (!table.rows.empty()) fmt::print("{}", render_term(table, screen));
  if (!constants.empty()) fmt::print("{}", paragraph("all: " + constants, screen));
  for (const RecipeSearch& search : searches) fmt::print("{}", paragraph(remark_of(search), screen));
  const MemoryLimit limit = memory_limit_of(cost_model.machine());
  fmt::print(
      "{}",
      paragraph(
          fmt::format("predicted for {}, {} GiB ({}), of which {} GiB is left for the driver and "
                      "libraries; rates {} {}; tensor collectives and context keys are not overlapped",
                      limit.name, gib(limit.bytes), limit.source, kContextBytes >> 30,
                      cost_model.borrowed() ? "borrowed from" : "measured on", cost_model.rates().machine),
          screen));
  for (const RecipeSearch& search : searches)
    if (!search.found.proposals.empty())
      fmt::print("{}",
                 command_lines(fmt::format("precbench sweep --dry-run --on {}{}", cost_model.machine().name,
                                           flags_of(search.found.proposals.front().plan.fields)),
                               screen));
}

Json proposal_json(const LayoutProposal& proposal, const LayoutProposal* bf16, const Machine& machine) {
  const Case& c = proposal.plan.fields;
  const StepEstimate& step = proposal.estimate.step;
  Json json = {{"id", proposal.plan.id}};
  for (const char* name : kSearched) json[name] = field_to_json(c, *find_field(name));
  json["data"] = c.gpus / (c.tensor * c.context * c.pipeline);
  json["micro_batches"] = c.micro_steps();
  json["flags"] = flags_of(c).substr(1);
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
  for (const Part& part : parts_of(proposal)) json["parts"][part.name] = part.share;
  return json;
}

Json plan_json(const std::vector<RecipeSearch>& searches, const CostModel& cost_model) {
  Json json = {{"machine", cost_model.machine().name},
               {"rates", cost_model.rates().machine},
               {"recipes", Json::array()}};
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
      one["proposals"].push_back(proposal_json(proposal, bf16, cost_model.machine()));
    json["recipes"].push_back(std::move(one));
  }
  return json;
}

}  // namespace

std::vector<RecipeSearch> search_recipes(const PlanCommand& command, const CostModel& cost_model) {
  const std::vector<std::string> recipes = recipes_of(command, cost_model.machine());
  for (const auto& [name, words] : command.axes) check_words(*find_field(name), words);
  global_batch_of(command);
  for (const std::string& recipe : recipes) fixed_case(command, recipe);
  std::vector<RecipeSearch> searches(recipes.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < recipes.size(); i = next++)
      searches[i] = search_recipe(command, recipes[i], cost_model);
  };
  std::vector<std::thread> others;
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  for (std::size_t i = 1; i < std::min(cores, recipes.size()); ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
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
      "  precbench plan --model llama3.1-70b --on h200 --gpus 64 --seq 8192 --global-batch 128 --tensor 8 --grads bf16");
  add_fields(*sub, command.axes, true, default_of_plan);
  sub->add_option("--on", command.on, "machine: h100-sxm, gb200-nvl72, ... or a machine file")
      ->type_name("NAME|FILE.json")
      ->required()
      ->group("Plan");
  sub->add_option("--global-batch", command.global_batch, "sequences of an optimizer step, all GPUs together")
      ->type_name("N")
      ->required()
      ->group("Plan");
  sub->add_option("--proposals", command.proposals, "layouts to propose for each recipe")
      ->type_name("N")
      ->check(CLI::Range(1, 100).description(""))
      ->capture_default_str()
      ->group("Plan");
  sub->add_flag("--json", command.json, "output as JSON")->group("Plan");
  return sub;
}

int plan_layouts(const PlanCommand& command) {
  const CostModel cost_model(find_machine(command.on));
  const std::vector<RecipeSearch> searches = search_recipes(command, cost_model);
  if (command.json)
    fmt::print("{}\n", plan_json(searches, cost_model).dump(2, ' ', true, Json::error_handler_t::replace));
  else
    print_plan(searches, cost_model);
  return std::any_of(searches.begin(), searches.end(),
                     [](const RecipeSearch& one) { return !one.found.proposals.empty(); })
             ? 0
             : 1;
}

}  // namespace precbench
