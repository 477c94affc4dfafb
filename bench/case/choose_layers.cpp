// Words about layers and steps into layers and steps. See choose_layers.h.
#include "bench/case/choose_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bench/case/case_limits.h"
#include "kernels/base/errors.h"
#include "models/config/block.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// The roles of the blocks' linear layers that recipes are chosen by; lm_head is none of them.
constexpr int kBlockRoles = kLinearRoles - 1;
static_assert(static_cast<int>(LinearRole::head) == kBlockRoles);

/// What the case keeps in BF16, or, where it says nothing, the recipe.
ConvertedLayers convert(const Case& c, const ModelConfig& model, const Recipe& recipe) {
  const KeepBf16 keep = c.keep_bf16.empty() ? recipe.keep_bf16 : parse_keep_bf16(c.keep_bf16);
  const bool quantized = recipe.quantized();
  const auto converts = [&](const LinearSpec& linear, std::int64_t layer) {
    return quantized && !keep.keeps(recipe, linear.role, layer, model.layers, linear.expert_out(), linear.in);
  };
  ConvertedLayers layers{recipe, std::vector<ConvertedLayers::Roles>(model.layers), false};
  const BlockSpec first = block_of(model, 0), last = block_of(model, model.layers - 1);
  for (std::int64_t layer = 0; layer < model.layers; ++layer)
    for (const LinearSpec& linear : (model.has_experts(layer) ? last : first).linears)
      if (static_cast<int>(linear.role) < kBlockRoles)
        layers.converted[layer][static_cast<int>(linear.role)] = converts(linear, layer);
  layers.head_converted = c.head == "recipe" && converts(head_linear(model), 0);
  return layers;
}

/// What follows the first recipe. Going on with the same one, as bf16 does in a sweep of several, is no change.
std::vector<LaterLayers> later_layers(const Case& c, const ModelConfig& model, const Recipe& first,
                                      const std::vector<RecipeSwitch>& switches) {
  std::vector<LaterLayers> all;
  std::string name = first.name;
  if (!switches.empty() && c.steps == 0) throw InvalidInput("needs a number of steps: add --steps N");
  std::int64_t last = 0;
  for (const RecipeSwitch& change : switches) {
    const std::int64_t from = change.from.of(c.steps);
    if (from <= last || from >= c.steps)
      throw InvalidInput(fmt::format("{}: step {} is not between {} and {}, the last", to_text(change), from,
                                     last, c.steps));
    last = from;
    const Recipe next = find_recipe(change.recipe);
    if (!next.schedule.empty())
      throw InvalidInput(fmt::format("{}: it has a schedule of its own", to_text(change)));
    // What the optimizer keeps does not change in a run, and a row must not say that it did.
    const MomentWords kept = moment_words(c, first), own = moment_words(c, next);
    if (!next.optimizer.empty() && own != kept)
      throw InvalidInput(fmt::format("{}: it keeps moments in {} and {}, and the run in {} and {}",
                                     to_text(change), own.m, own.v, kept.m, kept.v));
    if (next.name != name) all.push_back({convert(c, model, next), from});
    name = next.name;
  }
  return all;
}

/// "0-2,5-7"; "none". `is_in(block)`.
template <class IsIn>
std::string ranges_of(std::size_t blocks, IsIn&& is_in) {
  std::string text;
  for (std::size_t begin = 0; begin < blocks; ++begin) {
    if (!is_in(begin)) continue;
    std::size_t end = begin;
    while (end + 1 < blocks && is_in(end + 1)) ++end;
    text += fmt::format("{}{}-{}", text.empty() ? "" : ",", begin, end);
    begin = end;
  }
  return text.empty() ? "none" : text;
}

std::int64_t count_in(const ConvertedLayers::Roles& roles) {
  return std::count(roles.begin(), roles.begin() + kBlockRoles, true);
}

}  // namespace

bool ConvertedLayers::any() const {
  return head_converted || std::any_of(converted.begin(), converted.end(),
                                       [](const Roles& roles) { return count_in(roles) > 0; });
}

bool ConvertedLayers::converts_block(std::int64_t layer) const {
  return count_in(converted[layer]) == kBlockRoles;
}

std::int64_t first_delayed_step(const Definition& definition) {
  if (definition.recipe.delayed()) return 0;
  for (const LaterLayers& later : definition.later)
    if (later.recipe.delayed()) return later.from;
  return -1;
}

const ConvertedLayers& layers_at(const Definition& definition, std::int64_t step) {
  const ConvertedLayers* layers = &definition;
  for (const LaterLayers& later : definition.later)
    if (later.from <= step) layers = &later;
  return *layers;
}

void choose_layers(const Case& c, Definition& definition) {
  const Recipe recipe = definition.recipe;
  try {
    static_cast<ConvertedLayers&>(definition) = convert(c, definition.model, recipe);
    // A row that bears a recipe's name must be of that recipe.
    if (recipe.quantized() && !definition.any())
      throw InvalidInput(
          fmt::format("{} leaves none of the {} blocks of {} to {}; nothing would be converted",
                      c.keep_bf16.empty() ? "it" : c.keep_bf16, definition.model.layers, c.model, c.recipe));
  } catch (const InvalidInput& error) {
    throw InvalidInput(
        fmt::format("{}: {}", c.keep_bf16.empty() ? recipe.name + ": layers" : "--keep-bf16", error.what()));
  }
  try {
    definition.later =
        later_layers(c, definition.model, recipe,
                     c.switch_recipe.empty() ? recipe.schedule : parse_switches(c.switch_recipe));
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format(
        "{}: {}", c.switch_recipe.empty() ? recipe.name + ": schedule" : "--switch-recipe", error.what()));
  }
}

Json layers_record(const ConvertedLayers& layers) {
  const Json row = recipe_to_json(layers.recipe);
  Json json = Json::object();
  // All of the row but its layers and schedule, which stand here as what they come to.
  for (const char* key : {"name", "reference", "fprop", "dgrad", "wgrad", "mask_clipped", "optimizer"})
    if (row.contains(key)) json[key] = row.at(key);
  const std::vector<ConvertedLayers::Roles>& converted = layers.converted;
  json["blocks"] = ranges_of(converted.size(), [&](std::size_t b) { return count_in(converted[b]) > 0; });
  const bool whole = std::all_of(converted.begin(), converted.end(), [](const ConvertedLayers::Roles& roles) {
    return count_in(roles) == 0 || count_in(roles) == kBlockRoles;
  });
  for (int role = 0; !whole && role < kBlockRoles; ++role)
    json["linears"][name_of(static_cast<LinearRole>(role))] =
        ranges_of(converted.size(), [&](std::size_t b) { return converted[b][role]; });
  json["head"] = layers.head_converted;
  return json;
}

}  // namespace precbench
