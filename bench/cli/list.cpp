// Tables of `precbench list`. See list.h.
#include "bench/cli/list.h"

#include <fmt/format.h>

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
#include "bench/cli/text_table.h"
#include "bench/machine/verification.h"
#include "bench/process/tell.h"
#include "kernels/device/devices.h"
#include "kernels/gpu/device_info.h"
#include "kernels/numerics/recipe.h"
#include "models/config/config.h"
#include "models/transformer/flops.h"
#include "results/record/printable.h"

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

/// Joins words with commas into lines for a terminal, indented by two spaces.
std::string wrapped(const std::vector<std::string>& words) {
  constexpr std::size_t kWidth = 100;
  std::string text, line = " ";
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string word = words[i] + (i + 1 < words.size() ? "," : "");
    if (line.size() + word.size() + 1 > kWidth && line != " ") {
      text += line + "\n";
      line = " ";
    }
    line += " " + word;
  }
  return text + line + "\n";
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

/// Returns the sets that --recipe takes, with their members; those of `native` on the last device.
std::string sets_of(const std::vector<LocalDevice>& all) {
  std::string text = "Sets for --recipe:\n";
  for (const RecipeSet& set : recipe_sets()) {
    const std::vector<std::string> names =
        set.has ? recipes_in(set.name).value() : native_recipes(*all.back().device);
    const bool everything = names.size() == listed_recipes().size();
    text += fmt::format("{}: {}{}\n", set.name, set.what,
                        set.has ? "" : fmt::format(" (here {})", all.back().name));
    if (!everything) text += wrapped(names);
  }
  return text;
}

/// Prints text that may exceed the stream's buffer. Throws system_error at once: errno is lost later.
void put(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
    throw std::system_error(errno, std::generic_category(), "cannot write standard output");
}

constexpr std::int64_t kListedLength = 8192;

std::string flops_note(const char* what) {
  return fmt::format(
      "{} per token of a training step at sequence length {}. Attention counts\n"
      "the pairs that a causal mask and the windows leave, and no routers: \"causal\" in\n"
      "records, Megatron-Bridge's convention but for its padded vocabulary. torchtitan\n"
      "counts as many keys for each query as its window has, norms and routers.\n",
      what, kListedLength);
}

std::string gigaflops_per_token(const ModelConfig& model, FlopConvention convention) {
  const FlopCount count = flops_per_token(model, kListedLength, convention);
  return fmt::format("{:.3f}", static_cast<double>(count.total()) / 1e9);
}

}  // namespace

void list_recipes() {
  const std::vector<LocalDevice> all = local_devices();
  std::string text;
  Notes notes;
  const auto print_table = [&](const char* heading, const std::vector<Recipe>& recipes) {
    TextRows rows = {{"recipe", "fprop X, W", "dgrad dY, W", "wgrad dY, X", "fast"}};
    for (const LocalDevice& d : all) rows[0].push_back("on " + d.name);
    for (const Recipe& recipe : recipes) rows.push_back(row_of(recipe, all, notes));
    if (!std::all_of(recipes.begin(), recipes.end(),
                     [](const Recipe& recipe) { return other_than_products(recipe).empty(); })) {
      rows[0].push_back("also");
      for (std::size_t i = 0; i < recipes.size(); ++i) rows[i + 1].push_back(other_than_products(recipes[i]));
    }
    text += fmt::format("{}\n{}\n", heading, fitted(rows));
  };
  for (const RecipeGroup& group : recipe_groups()) print_table(group.name, group.recipes);
  for (const RecipeGroup& group : fp4_groups()) print_table(group.name, group.recipes);
  print_table(weight_only_group().name, weight_only_group().recipes);
  print_table("Controls, known to be worse", control_recipes());
  text +=
      "as fprop, as dgrad: the formats of that GEMM. fast: fast accumulation in fprop, dgrad, wgrad.\n"
      "Emulated recipes: the loss is exact, speed is not reported.\n"
      "Recipe files also support e4m4, e5m3, e4m2, e4m1, e5m1, e3m4 and e3m3, lists of values (grid) and ue5m3\n"
      "scales, emulated everywhere.\n"
      "list recipes --recipe NAME prints a recipe as such a file, with its source.\n";
  text += sets_of(all);
  for (const auto& [why, which] : notes) text += fmt::format("{}:\n{}", why, wrapped(which));
  put(text);
}

void list_recipe(const std::string& name) {
  const Recipe recipe = find_recipe(name);
  TextRows rows = {{"GEMM", "a", "b", "fast"}};
  const std::vector<LocalDevice> all = local_devices();
  for (const LocalDevice& d : all) rows[0].push_back("on " + d.name);
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
    rows.push_back(row);
  }
  put(recipe_to_json(recipe).dump(2) + "\n");
  // Standard output is the recipe file alone.
  std::string text = "\n" + fitted(rows);
  for (const std::string& note : notes) text += fmt::format("\n{}", printable(note));
  if (!notes.empty()) text += "\n";
  tell_raw(text);
}

/// Returns parameters and, for a mixture of experts, active parameters: "30532122624 3353298944".
std::string parameters_of(const ModelConfig& model) {
  const std::string all = fmt::format("{}", parameter_count(model));
  return model.moe ? fmt::format("{} {}", all, active_parameter_count(model)) : all;
}

void list_models() {
  TextRows rows = {{"model", "parameters, active", "layers", "width", "ffn", "heads", "kv heads", "head dim",
                    "vocab", "tied", "QK norm", "GFLOPs per token", "torchtitan"}};
  for (const ModelConfig& m : model_presets())
    rows.push_back({m.name, parameters_of(m), fmt::format("{}", m.layers), fmt::format("{}", m.width),
                    fmt::format("{}", m.ffn), fmt::format("{}", m.heads), fmt::format("{}", m.kv_heads),
                    fmt::format("{}", m.head_dim), fmt::format("{}", m.vocab), m.tied ? "yes" : "no",
                    m.norms_all_heads()             ? "all heads"
                    : m.qk_norm                     ? "yes"
                    : m.block.unit_queries_and_keys ? "no gains"
                                                    : "no",
                    gigaflops_per_token(m, FlopConvention::causal),
                    gigaflops_per_token(m, FlopConvention::torchtitan)});
  fmt::print("{}", fitted(rows));
  fmt::print("\n{}", flops_note("GFLOPs"));
}

void list_model(const std::string& name_or_path) {
  const ModelConfig m = find_model(name_or_path);
  TextRows rows;
  const auto add = [&](const char* what, std::string value) { rows.push_back({what, std::move(value)}); };
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
  std::string text = aligned(rows, "ll") + "\n" + flops_note("FLOPs");
  for (const std::string& what : m.not_modelled) text += fmt::format("warning: {}\n", printable(what));
  if (m.not_modelled.empty()) text += "no warnings\n";
  put(text);
}

void list_devices() {
  TextRows rows = {{"device", "what", "native", "emulated", "unsupported"}};
  const auto add = [&](const std::string& name, const std::string& what, const Device& device) {
    std::vector<std::string> row = {name, what, "", "", ""};
    for (const Recipe& recipe : listed_recipes()) {
      std::string& cell = row[2 + static_cast<int>(gemm_support_of(recipe, device).execution)];
      cell += (cell.empty() ? "" : " ") + recipe.name;
    }
    for (std::string& cell : row)
      if (cell.empty()) cell = "-";
    rows.push_back(row);
  };
  add("cpu", "this machine's processor", *make_cpu_device(1));
  const VisibleGpus gpus = find_gpus();
  for (int ordinal = 0; ordinal < gpus.count; ++ordinal) {
    add(fmt::format("{} {}", gpus.device, ordinal), gpu_properties(ordinal).description, *open_gpu(ordinal));
  }
  fmt::print("{}", fitted(rows));
  if (gpus.count == 0) fmt::print("\nno GPU: {}\n", gpus.reason);
}

}  // namespace precbench
