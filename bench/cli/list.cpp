// Tables of `precbench list`. See list.h.
#include "bench/cli/list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bench/cli/local_devices.h"
#include "bench/cli/recipe_sets.h"
#include "bench/machine/verification.h"
#include "bench/process/standard_error.h"
#include "kernels/device/devices.h"
#include "kernels/gpu/device_info.h"
#include "kernels/numerics/ablations.h"
#include "kernels/numerics/recipe.h"
#include "models/config/config.h"
#include "models/transformer/flops.h"
#include "results/record/printable.h"
#include "results/text/lines.h"
#include "results/text/table.h"

namespace precbench {
namespace {

/// Maps the reason why recipes do not run natively to their names.
using Notes = std::map<std::string, std::vector<std::string>>;

/// Describes both operands of a GEMM without repeating common parts: "e4m3 row f32", "e5m2 and e4m3 tensor
/// f32", "e2m1 1x32 ue8m0/floor, same of fprop".
std::string operands_of(const GemmRecipe& gemm) {
  const std::string a = describe(gemm.a), b = describe(gemm.b);
  if (a == b) return a;
  if (b.starts_with(a)) return a + ", same" + b.substr(a.size());
  const std::size_t of_a = a.find(' '), of_b = b.find(' ');
  if (of_a != a.npos && of_b != b.npos && a.substr(of_a) == b.substr(of_b))
    return a.substr(0, of_a) + " and " + b;
  return a + ", " + b;
}

/// Describes the operands of the three GEMMs. One with the operands of an earlier GEMM refers to it, "as
/// fprop".
std::vector<std::string> products_of(const Recipe& recipe) {
  std::vector<std::string> all, shown;
  for (const GemmRole role : kGemmRoles) {
    all.push_back(operands_of(recipe.gemm(role)));
    const auto first = std::find(all.begin(), all.end(), all.back()) - all.begin();
    const std::string reference = std::string("as ") + name_of(kGemmRoles[first]);
    const bool repeated = first + 1 < std::ssize(all) && reference.size() < all.back().size();
    shown.push_back(repeated ? reference : all.back());
  }
  return shown;
}

/// Describes a recipe's settings besides GEMM operands: layers kept in BF16, schedule, optimizer state. Empty
/// for most recipes; "m e4m3, v fp16, gradients e4m3".
std::string other_than_products(const Recipe& recipe) {
  std::vector<std::string> words;
  if (const std::vector<std::string> kept = words_of(recipe.keep_bf16); !kept.empty())
    words.push_back(fmt::format("bf16 in {}", fmt::join(kept, " ")));
  for (const RecipeSwitch& change : recipe.schedule) words.push_back(to_text(change));
  const RecipeState& optimizer = recipe.optimizer;
  for (const auto& [what, format] :
       {std::pair("m", &optimizer.m), std::pair("v", &optimizer.v), std::pair("master", &optimizer.master),
        std::pair("weights", &optimizer.weights), std::pair("gradients", &optimizer.gradients)})
    if (!format->empty()) words.push_back(fmt::format("{} {}", what, *format));
  if (!optimizer.gradient_sum.empty()) words.back() += " summed in " + optimizer.gradient_sum;
  if (recipe.kept != KeptActivations{}) words.push_back("keeps " + describe(recipe.kept));
  if (recipe.weight_only.quantized()) words.push_back("weights stored as " + describe(recipe.weight_only));
  return fmt::format("{}", fmt::join(words, ", "));
}

/// Returns a recipe's row and adds a note for each device that does not run it natively.
std::vector<std::string> row_of(const Recipe& recipe, const std::vector<LocalDevice>& all, Notes& notes) {
  std::vector<std::string> row = products_of(recipe);
  row.insert(row.begin(), recipe.name);
  std::string fast;
  for (const GemmRole role : kGemmRoles) fast += recipe.gemm(role).fast_accum ? "+" : "-";
  row.push_back(fast);
  for (const LocalDevice& d : all) {
    const GemmSupport support = gemm_support_of(recipe, *d.device);
    row.push_back(name_of(support.execution));
    if (!support.reason.empty())
      notes[fmt::format("{} on {}: {}", name_of(support.execution), d.name, support.reason)].push_back(
          recipe.name);
  }
  return row;
}

std::string words_line(const std::vector<std::string>& words, const Screen& screen) {
  return indented_line(fmt::format("{}", fmt::join(words, ", ")), screen);
}

/// Returns the sets that --recipe takes, with their members; those of `native` on the last device.
std::string sets_of(const std::vector<LocalDevice>& all, const Screen& screen) {
  std::string text = "Sets for --recipe:\n";
  for (const RecipeSet& set : recipe_sets()) {
    const std::vector<std::string> names =
        set.has ? recipes_in(set.name).value() : native_recipes(*all.back().device);
    const bool everything = names.size() == listed_recipes().size();
    text += paragraph(fmt::format("{}: {}{}", set.name, set.what,
                                  set.has ? "" : fmt::format(" (here {})", all.back().name)),
                      screen);
    if (!everything) text += words_line(names, screen);
  }
  return text;
}

/// Prints text that may exceed the stream's buffer. Throws system_error at once: errno is lost later.
void put(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
    throw std::system_error(errno, std::generic_category(), "cannot write standard output");
}

constexpr std::int64_t kListedLength = 8192;

std::string flops_note(const char* what, const Screen& screen) {
  return paragraph(
      fmt::format(
          "{} per token of a training step at sequence length {}. Attention counts the pairs that a causal "
          "mask and the windows leave, and no routers: \"causal\" in records, Megatron-Bridge's convention but "
          "for its padded vocabulary. torchtitan counts as many keys for each query as its window has, norms "
          "and routers.",
          what, kListedLength),
      screen, "");
}

std::string gigaflops_per_token(const ModelConfig& model, FlopConvention convention) {
  const FlopCount count = flops_per_token(model, kListedLength, convention);
  return fmt::format("{:.3f}", static_cast<double>(count.total()) / 1e9);
}

}  // namespace

void list_recipes() {
  const std::vector<LocalDevice> all = local_devices();
  const Screen screen = plain_screen(STDOUT_FILENO);
  std::string text;
  Notes notes;
  const auto print_table = [&](const char* heading, const std::vector<Recipe>& recipes) {
    Table table;
    table.columns = {name_column("recipe"), text_column("fprop X, W", kKeyRank),
                     text_column("dgrad dY, W", kKeyRank), text_column("wgrad dY, X", kKeyRank),
                     text_column("fast", kDetailRank)};
    for (const LocalDevice& d : all) table.columns.push_back(text_column("on " + d.name, kKeyRank));
    for (const Recipe& recipe : recipes) table.rows.push_back(row_of(recipe, all, notes));
    if (!std::all_of(recipes.begin(), recipes.end(),
                     [](const Recipe& recipe) { return other_than_products(recipe).empty(); })) {
      table.columns.push_back(text_column("also", kOrdinaryRank));
      for (std::size_t i = 0; i < recipes.size(); ++i)
        table.rows[i].push_back(other_than_products(recipes[i]));
    }
    text += fmt::format("{}\n{}\n", heading, render_term(table, screen));
  };
  std::vector<Recipe> ablations;
  for (const auto* groups : {&recipe_groups(), &fp4_groups()})
    for (const RecipeGroup& group : *groups) {
      std::vector<Recipe> recipes;
      for (const Recipe& recipe : group.recipes)
        (is_ablation(recipe.name) ? ablations : recipes).push_back(recipe);
      print_table(group.name, recipes);
    }
  print_table(weight_only_group().name, weight_only_group().recipes);
  print_table("Ablations: recipe files in kernels/numerics/ablations, found by name", ablations);
  print_table("Controls, known to be worse", control_recipes());
  for (
      const char* legend :
      {"as fprop, as dgrad: the formats of that GEMM. fast: fast accumulation in fprop, dgrad, wgrad.",
       "Emulated recipes: the loss is exact, speed is not reported.",
       "Recipe files also support e4m4, e5m3, e4m2, e4m1, e5m1, e3m4 and e3m3, lists of values (grid) and ue5m3 "
       "scales, emulated everywhere.",
       "list recipes --recipe NAME prints a recipe as such a file, with its source."})
    text += paragraph(legend, screen, "");
  text += "What stays in memory for the backward pass (--kept, or \"kept\" of a recipe file):\n";
  for (const KeptStack& stack : kept_stacks())
    text += paragraph(fmt::format("{}: {} ({})", stack.name, describe(stack.kept), stack.reference), screen);
  text += sets_of(all, screen);
  for (const auto& [why, which] : notes) text += paragraph(why + ":", screen) + words_line(which, screen);
  put(text);
}

void list_recipe(const std::string& name) {
  const Recipe recipe = find_recipe(name);
  const std::vector<LocalDevice> all = local_devices();
  Table table;
  table.columns = {name_column("GEMM"), text_column("a", kKeyRank), text_column("b", kKeyRank),
                   text_column("fast", kDetailRank)};
  for (const LocalDevice& d : all) table.columns.push_back(text_column("on " + d.name, kKeyRank));
  std::vector<std::string> notes;
  for (const GemmRole role : kGemmRoles) {
    const GemmRecipe& gemm = recipe.gemm(role);
    std::vector<std::string> row = {name_of(role), describe(gemm.a), describe(gemm.b),
                                    gemm.fast_accum ? "yes" : "no"};
    for (const LocalDevice& d : all) {
      const GemmSupport support = recipe_support(*d.device, recipe, role);
      row.emplace_back(name_of(support.execution));
      if (!support.reason.empty())
        notes.push_back(fmt::format("{} on {}: {}", name_of(role), d.name, support.reason));
    }
    table.rows.push_back(std::move(row));
  }
  put(recipe_to_json(recipe).dump(2) + "\n");
  // Standard output is the recipe file alone.
  const Screen screen = plain_screen(STDERR_FILENO);
  std::string text = "\n" + render_term(table, screen);
  if (!notes.empty()) text += "\n";
  for (const std::string& note : notes) text += paragraph(note, screen);
  log_text(text);
}

void list_models() {
  const Screen screen = plain_screen(STDOUT_FILENO);
  Table table;
  table.columns = {name_column("model")};
  for (const auto& [title, rank] :
       std::initializer_list<std::pair<const char*, int>>{{"parameters", kKeyRank},
                                                          {"active", kKeyRank - 1},
                                                          {"layers", kOrdinaryRank},
                                                          {"width", kOrdinaryRank - 1},
                                                          {"ffn", kOrdinaryRank - 2},
                                                          {"heads", kOrdinaryRank - 3},
                                                          {"kv heads", kOrdinaryRank - 4},
                                                          {"head dim", kOrdinaryRank - 5},
                                                          {"vocab", kOrdinaryRank - 6},
                                                          {"tied", kDetailRank + 1},
                                                          {"QK norm", kDetailRank},
                                                          {"GFLOPs per token", kOrdinaryRank + 1},
                                                          {"torchtitan", kDetailRank + 2}})
    table.columns.push_back(number_column(title, rank));
  for (const ModelConfig& m : model_presets())
    table.rows.push_back({m.name, fmt::format("{}", parameter_count(m)),
                          m.moe ? fmt::format("{}", active_parameter_count(m)) : "-",
                          fmt::format("{}", m.layers), fmt::format("{}", m.width), fmt::format("{}", m.ffn),
                          fmt::format("{}", m.heads), fmt::format("{}", m.kv_heads),
                          fmt::format("{}", m.head_dim), fmt::format("{}", m.vocab), m.tied ? "yes" : "no",
                          m.norms_all_heads()             ? "all heads"
                          : m.qk_norm                     ? "yes"
                          : m.block.unit_queries_and_keys ? "no gains"
                                                          : "no",
                          gigaflops_per_token(m, FlopConvention::causal),
                          gigaflops_per_token(m, FlopConvention::torchtitan)});
  put(render_term(table, screen) + "\n" + flops_note("GFLOPs", screen));
}

void list_model(const std::string& name_or_path) {
  const ModelConfig m = find_model(name_or_path);
  const Screen screen = plain_screen(STDOUT_FILENO);
  std::vector<NamedText> rows;
  const auto add = [&](const char* what, std::string value) { rows.emplace_back(what, std::move(value)); };
  const auto count = [&](const char* what, std::int64_t value) { add(what, fmt::format("{}", value)); };
  add("model", printable(m.name));
  count("parameters", parameter_count(m));
  count("active parameters", active_parameter_count(m));
  for (const auto& [what, convention] : {std::pair("FLOPs per token", FlopConvention::causal),
                                         std::pair("  as torchtitan counts", FlopConvention::torchtitan)})
    add(what,
        fmt::format("{:.4e}", static_cast<double>(flops_per_token(m, kListedLength, convention).total())));
  count("layers", m.layers);
  count("width", m.width);
  count("ffn", m.ffn);
  add("heads, kv heads, head dim", fmt::format("{}, {}, {}", m.heads, m.kv_heads, m.head_dim));
  if (m.latent)
    add("latent of q, of kv, RoPE dim, value dim",
        fmt::format("{}, {}, {}, {}", m.latent.q_rank, m.latent.kv_rank, m.latent.rope_dim, m.latent.v_dim));
  add("vocab", fmt::format("{}{}", m.vocab, m.tied ? ", tied" : ""));
  if (m.moe) {
    add("experts, top_k, expert ffn",
        fmt::format("{}, {}, {}", m.moe.rule.experts, m.moe.rule.top_k, m.moe.expert_ffn));
    if (m.moe.shared_ffn > 0) count("shared ffn", m.moe.shared_ffn);
    if (m.moe.dense_layers > 0) count("dense layers", m.moe.dense_layers);
    if (m.moe.layer_interval > 1) add("layers with experts", fmt::format("one in {}", m.moe.layer_interval));
  }
  if (m.max_positions > 0) count("max positions", m.max_positions);
  if (m.unchunked_positions > 0) count("positions without chunks", m.unchunked_positions);
  if (m.block.temperature_positions > 0) count("positions of the temperature", m.block.temperature_positions);
  if (!m.cuts.empty()) add("cuts", printable(m.cuts));
  std::string text = definitions(rows, screen) + "\n" + flops_note("FLOPs", screen);
  for (const std::string& what : m.not_modelled) text += paragraph("warning: " + what, screen);
  if (m.not_modelled.empty()) text += "no warnings\n";
  put(text);
}

void list_devices() {
  const Screen screen = plain_screen(STDOUT_FILENO);
  std::string text;
  const auto add = [&](const std::string& name, const std::string& what, const Device& device) {
    std::vector<NamedText> rows = {{"native", ""}, {"emulated", ""}, {"unsupported", ""}};
    for (const Recipe& recipe : listed_recipes()) {
      std::string& names = rows[static_cast<std::size_t>(gemm_support_of(recipe, device).execution)].second;
      names += (names.empty() ? "" : ", ") + recipe.name;
    }
    for (NamedText& row : rows)
      if (row.second.empty()) row.second = "-";
    text += (text.empty() ? "" : "\n") + paragraph(name + ": " + what, screen) + definitions(rows, screen);
  };
  add("cpu", "this machine's processor", *make_cpu_device(1));
  const VisibleGpus gpus = find_gpus();
  for (int ordinal = 0; ordinal < gpus.count; ++ordinal)
    add(fmt::format("{} {}", gpus.device, ordinal), gpu_properties(ordinal).description, *open_gpu(ordinal));
  if (gpus.count == 0) text += '\n' + paragraph("no GPU: " + gpus.reason, screen);
  put(text);
}

}  // namespace precbench
