// Turns the layer and step options of case and recipe into layers and steps. See choose_layers.h.
#include "bench/case/choose_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bench/case/case_words.h"
#include "bench/case/plan.h"
#include "kernels/base/errors.h"
#include "kernels/base/plural.h"
#include "models/config/block.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

/// Number of the blocks' linear roles, for which recipes are chosen; excludes lm_head.
constexpr int kBlockRoles = kLinearRoles - 1;
static_assert(static_cast<int>(LinearRole::head) == kBlockRoles);

/// Returns "e4m3", or "e4m3 summed in e4m3".
std::string gradients_of(const KeptWords& words) {
  return words.gradient_sum.empty() ? words.gradients
                                    : fmt::format("{} summed in {}", words.gradients, words.gradient_sum);
}

/// Returns the recipes after the first one. Switching to the same recipe, as bf16 does in a sweep, is no
/// change.
std::vector<LaterLayers> later_layers(const Case& c, const ModelConfig& model, const Recipe& first,
                                      const std::vector<RecipeSwitch>& switches) {
  std::vector<LaterLayers> all;
  std::string name = first.name;
  if (!switches.empty() && c.steps == 0) throw InvalidInput("needs a number of steps: add --steps N");
  std::int64_t last = 0;
  for (const RecipeSwitch& change : switches) {
    const std::int64_t from = change.from.of(c.steps);
    // Rounding may leave a part of very few steps without any.
    if (change.from.part > 0 && from == c.steps) continue;
    if (from <= last || from >= c.steps)
      throw InvalidInput(fmt::format("{}: step {} is not between {} and {}, the last", to_text(change), from,
                                     last, c.steps));
    last = from;
    const Recipe next = find_recipe(change.recipe);
    if (!next.schedule.empty())
      throw InvalidInput(fmt::format("{}: that recipe has its own schedule", to_text(change)));
    // The state's dtypes do not change during a run, and a row must not suggest that they did.
    const KeptWords kept = kept_words(c, first), own = kept_words(c, next);
    if (!next.optimizer.empty() && (own.m != kept.m || own.v != kept.v))
      throw InvalidInput(fmt::format("{}: its optimizer state is in {} and {}, the run's in {} and {}",
                                     to_text(change), own.m, own.v, kept.m, kept.v));
    if (!next.optimizer.empty() && own != kept)
      throw InvalidInput(fmt::format(
          "{}: it has master {}, weights {}, gradients {}, but the run has {}, {}, {}", to_text(change),
          own.master, own.weights, gradients_of(own), kept.master, kept.weights, gradients_of(kept)));
    if (next.name != name) all.push_back({convert(c, model, next), from});
    name = next.name;
  }
  return all;
}

/// Returns the blocks for which is_in(block) holds, such as "0-2,5-7", or "none".
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

bool some(const ConvertedLayers::Roles& roles) {
  return std::find(roles.begin(), roles.end(), true) != roles.end();
}
bool whole(const ConvertedLayers::Roles& roles) {
  return std::all_of(roles.begin(), roles.begin() + kBlockRoles, [](bool one) { return one; });
}

/// Returns the roles that a record lists for blocks' linear layers.
std::vector<LinearRole> listed_roles(const ConvertedLayers& layers) {
  const bool apart =
      std::any_of(layers.converted.begin(), layers.converted.end(), [](const ConvertedLayers::Roles& roles) {
        return std::find(roles.begin() + kLinearRoles, roles.end(), true) != roles.end();
      });
  std::vector<LinearRole> roles;
  if (apart) roles.assign(std::begin(kQkvParts), std::end(kQkvParts));
  for (int role = 0; role < kBlockRoles; ++role)
    if (!apart || static_cast<LinearRole>(role) != LinearRole::qkv)
      roles.push_back(static_cast<LinearRole>(role));
  return roles;
}

}  // namespace

std::vector<LinearSpec> convertible_linears(const ModelConfig& model, std::int64_t layer) {
  std::vector<LinearSpec> linears = block_of(model, layer).linears;
  if (model.latent) return linears;
  const auto qkv = std::find_if(linears.begin(), linears.end(),
                                [](const LinearSpec& linear) { return linear.role == LinearRole::qkv; });
  std::vector<LinearSpec> parts;
  for (const LinearRole part : kQkvParts)
    parts.push_back({part, qkv->in, {qkv->parts[static_cast<std::size_t>(place_in_qkv(part))]}});
  linears.insert(linears.begin(), parts.begin(), parts.end());
  return linears;
}

ConvertedLayers convert(const Case& c, const ModelConfig& model, const Recipe& recipe) {
  const KeepBf16 keep = c.keep_bf16.empty() ? recipe.keep_bf16 : parse_keep_bf16(c.keep_bf16);
  for (const KeptBlock& kept : keep.blocks)
    if (kept.block >= model.layers)
      throw InvalidInput(fmt::format("block:{}: {} has {}, counted from 0", kept.block, model.name,
                                     plural(model.layers, "block")));
  const bool quantized = recipe.quantized();
  const auto converts_as = [&](LinearRole role, std::int64_t layer, std::int64_t out, std::int64_t in) {
    return quantized && !keep.keeps(recipe, role, layer, model.layers, out, in);
  };
  // All matrices of a layer have one size, except that q differs from k and v.
  const auto converts = [&](const LinearSpec& linear, std::int64_t layer) {
    return converts_as(linear.role, layer, linear.parts.front().size, linear.in);
  };
  // The linear layers of latents share qkv's recipe, whatever their sizes.
  bool latents_differ = false;
  if (quantized && model.latent) {
    const std::vector<LinearSpec> linears = block_of(model, 0).linears;
    for (const LinearSpec& linear : linears)
      if (is_latent_up(linear.role))
        latents_differ |= keep.keeps_size(recipe, linear.out(), linear.in) !=
                          keep.keeps_size(recipe, linears.front().parts.front().size, linears.front().in);
  }
  const auto is_apart = [&](const LinearSpec& linear) {
    if (linear.role != LinearRole::qkv) return false;
    const auto differ = [&](const ParameterPart& one, const ParameterPart& other) {
      return keep.keeps_size(recipe, one.size, linear.in) != keep.keeps_size(recipe, other.size, linear.in);
    };
    const bool by_size = quantized && std::adjacent_find(linear.parts.begin(), linear.parts.end(), differ) !=
                                          linear.parts.end();
    const bool apart = by_size || keep.qkv_apart() || latents_differ;
    if (apart && model.latent)
      throw InvalidInput(fmt::format(
          "{} has latent attention (MLA), whose linear layers up to o cannot be selected separately",
          model.name));
    if (apart && recipe.delayed())
      throw InvalidInput(fmt::format(
          "{} has one delayed scale for qkv; q, k and v cannot be selected separately", recipe.name));
    return apart;
  };
  ConvertedLayers layers{recipe, std::vector<ConvertedLayers::Roles>(model.layers), false};
  BlockSpec blocks[2];  // without and with experts
  for (const std::int64_t layer : model.layer_of_each_kind())
    blocks[model.has_experts(layer)] = block_of(model, layer);
  for (std::int64_t layer = 0; layer < model.layers; ++layer)
    for (const LinearSpec& linear : blocks[model.has_experts(layer)].linears) {
      if (static_cast<int>(linear.role) >= kBlockRoles) continue;
      ConvertedLayers::Roles& roles = layers.converted[layer];
      const bool apart = is_apart(linear);
      if (!apart) roles[static_cast<int>(linear.role)] = converts(linear, layer);
      for (const LinearRole part : kQkvParts)
        if (apart)
          roles[static_cast<int>(part)] =
              converts_as(part, layer, linear.parts[place_in_qkv(part)].size, linear.in);
    }
  layers.head_converted = kHeadInRecipeWords.find(c.head).value() && converts(head_linear(model), 0);
  return layers;
}

bool ConvertedLayers::any() const {
  return head_converted || std::any_of(converted.begin(), converted.end(), some);
}

bool ConvertedLayers::converts_block(std::int64_t layer) const { return whole(converted[layer]); }

std::int64_t first_delayed_step(const Definition& definition) {
  if (definition.recipe.delayed()) return 0;
  for (const LaterLayers& later : definition.later)
    if (later.recipe.delayed()) return later.from;
  return -1;
}

int current_micro_steps(const Definition& definition, std::int64_t step, int accumulation) {
  const std::int64_t first = first_delayed_step(definition);
  const Recipe& recipe = layers_at(definition, step).recipe;
  if (first < 0 || step < first || !recipe.delayed()) return 0;
  const History& history = recipe.fprop.a.history;
  const int per_update = history.update == HistoryUpdate::micro ? 1 : accumulation;
  const std::int64_t left =
      std::int64_t{history.current_updates()} * per_update - (step - first) * accumulation;
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, accumulation));
}

std::int64_t typical_step(const Definition& definition, std::int64_t begin, int accumulation) {
  const std::int64_t first = first_delayed_step(definition);
  if (first < 0 || begin < first) return begin;
  const History& history = layers_at(definition, first).recipe.fprop.a.history;
  const int per_step = history.update == HistoryUpdate::micro ? accumulation : 1;
  return std::max<std::int64_t>(begin,
                                first + std::max(1, (history.current_updates() + per_step - 1) / per_step));
}

const ConvertedLayers& layers_at(const Definition& definition, std::int64_t step) {
  const ConvertedLayers* layers = &definition;
  for (const LaterLayers& later : definition.later)
    if (later.from <= step) layers = &later;
  return *layers;
}

void choose_layers(const Case& c, Definition& definition, bool may_convert_none) {
  const Recipe recipe = definition.recipe;
  try {
    static_cast<ConvertedLayers&>(definition) = convert(c, definition.model, recipe);
    // A row with a recipe's name must use the recipe.
    if (recipe.quantized() && !definition.any() && !may_convert_none)
      throw InvalidInput(
          fmt::format("{} keeps all linear layers of the {} of {} in BF16; none would run in {}",
                      c.keep_bf16.empty() ? "it" : c.keep_bf16, plural(definition.model.layers, "block"),
                      c.model, c.recipe));
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
  // Copies the recipe except for its layers and schedule, which are replaced by the result of applying them.
  for (const char* key : {"name", "reference", "fprop", "dgrad", "wgrad", "mask_clipped", "flow", "kept",
                          "weight_only", "optimizer", "gradients"})
    if (row.contains(key)) json[key] = row.at(key);
  const std::vector<ConvertedLayers::Roles>& converted = layers.converted;
  json["blocks"] = ranges_of(converted.size(), [&](std::size_t b) { return some(converted[b]); });
  const bool alike = std::all_of(converted.begin(), converted.end(), [](const ConvertedLayers::Roles& roles) {
    return !some(roles) || whole(roles);
  });
  if (!alike)
    for (const LinearRole role : listed_roles(layers))
      json["linears"][name_of(role)] =
          ranges_of(converted.size(), [&](std::size_t b) { return converted[b][static_cast<int>(role)]; });
  json["head"] = layers.head_converted;
  return json;
}

}  // namespace precbench
