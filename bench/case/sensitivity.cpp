// Generates the variants of a recipe to measure. See sensitivity.h.
#include "bench/case/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "bench/case/choose_layers.h"
#include "bench/case/plan.h"
#include "kernels/base/enum_names.h"
#include "kernels/base/errors.h"
#include "models/config/block.h"

namespace precbench {
namespace {

using Group = SensitivityGroup;

constexpr EnumNames<Group, 8> kGroupNames{
    {"gemms", "operands", "roles", "blocks", "linears", "elements", "scales", "best"}};

/// Visits every operand of a recipe's GEMMs in a fixed order.
template <class Visit>
void for_each_operand(Recipe& recipe, Visit&& visit) {
  for (const auto& [role, gemm] : {std::pair(GemmRole::fprop, &recipe.fprop),
                                   {GemmRole::dgrad, &recipe.dgrad},
                                   {GemmRole::wgrad, &recipe.wgrad}}) {
    visit(role, gemm->a, true);
    visit(role, gemm->b, false);
  }
}

GemmRecipe& gemm_of(Recipe& recipe, GemmRole role) {
  return role == GemmRole::fprop ? recipe.fprop : role == GemmRole::dgrad ? recipe.dgrad : recipe.wgrad;
}

/// Returns true for operands whose elements and scales have finer and coarser variants.
bool is_fp8(const QuantFormat& format) {
  return format.quantized() && format.dtype != DType::e2m1 && !is_custom(format);
}

bool quantizes(const GemmRecipe& gemm) { return gemm.a.quantized() || gemm.b.quantized(); }

/// Makes a changed recipe valid: operands that reuse fprop's FP8 data need fprop in the recipe, and
/// transposed FP8 data needs equal formats. Returns what this changed, for the cell's note; null if nothing.
std::optional<std::string> make_consistent(Recipe& recipe) {
  std::optional<std::string> note;
  for_each_operand(recipe, [&](GemmRole role, QuantFormat& operand, bool) {
    const bool weight = role == GemmRole::dgrad;  // dgrad.b reuses fprop's W, wgrad.b its X
    const bool source = weight ? recipe.fprop.b.quantized() : recipe.fprop.a.quantized();
    if (operand.from_fprop && !source)
      operand.from_fprop = false, note = "backward quantizes values, not fprop's codes";
  });
  const bool seen = recipe.dgrad.b.from_fprop || recipe.wgrad.b.from_fprop;
  if (!seen) recipe.mask_clipped = false;
  if (recipe.flow && flow_unsupported_reason(recipe))
    recipe.flow = false, note = "wgrad quantizes values, not transposed codes";
  return note;
}

/// Kind of a GEMM operand by its contents.
enum class OperandKind : std::uint8_t { weights, activations, gradients };
constexpr EnumNames<OperandKind, 3> kOperandNames{{"weights", "activations", "gradients"}};

OperandKind kind_of(GemmRole role, bool is_a) {
  if (is_a) return role == GemmRole::fprop ? OperandKind::activations : OperandKind::gradients;
  return role == GemmRole::wgrad ? OperandKind::activations : OperandKind::weights;
}

/// FP8 and similar element formats, from fine to coarse.
constexpr QuantFormat kElements[] = {{.dtype = DType::e4m4}, {.dtype = DType::e3m4},
                                     {.dtype = DType::e5m3}, {.dtype = DType::e4m3},
                                     {.dtype = DType::e3m3}, {.dtype = DType::e4m3, .dropped_bits = 1},
                                     {.dtype = DType::e5m2}};

constexpr QuantFormat kScales[] = {{.granularity = Granularity::tensor, .scale = ScaleType::f32},
                                   {.granularity = Granularity::row, .scale = ScaleType::f32_pow2},
                                   {.granularity = Granularity::block_1x128, .scale = ScaleType::f32_pow2},
                                   {.granularity = Granularity::block_1x32,
                                    .scale = ScaleType::ue8m0,
                                    .scale_rounding = ScaleRounding::rceil}};

class CellMaker {
 public:
  explicit CellMaker(const Plan& plan) : plan_(plan) {
    const std::string& words = plan.fields.keep_bf16;
    kept_ = words.empty() ? plan.recipe.keep_bf16 : parse_keep_bf16(words);
    whole_flops_ = flops_of(plan_);
  }

  SensitivityCells make() && {
    add({"recipe", CellKind::whole, plan_.recipe.name}, plan_);
    add({"recipe", CellKind::control, "nothing"}, nothing());
    if (plan_.any())
      for (const Group group : plan_.sensitivity) add_group(group);
    return std::move(made_);
  }

  double whole_flops() const { return whole_flops_; }

  /// Returns the case with `keep` in BF16; null if this leaves nothing in the recipe or is not supported.
  std::optional<SensitivityCell> kept_cell(CellName name, const KeepBf16& keep) const {
    SensitivityCell cell{std::move(name), {}};
    cell.keep_bf16 = words_of(keep);
    Case c = plan_.fields;
    c.keep_bf16 = fmt::format("{}", fmt::join(cell.keep_bf16, ","));
    try {
      cell.layers = convert(c, plan_.model, plan_.recipe);
    } catch (const InvalidInput&) {
      return std::nullopt;  // separate q, k and v with delayed scaling
    }
    cell.kept_flops = kept_flops(cell.layers);
    return cell;
  }

 private:
  /// Returns the GEMM FLOPs of the layers in the recipe, in multiply-adds per token.
  double flops_of(const ConvertedLayers& layers) const {
    double weights = 0;
    for (std::int64_t layer = 0; layer < plan_.model.layers; ++layer)
      for (const LinearSpec& linear : block_of(plan_.model, layer).linears) {
        const double met = linear.experts > 1 ? static_cast<double>(plan_.model.moe.rule.top_k) /
                                                    static_cast<double>(linear.experts)
                                              : 1.0;
        const auto in = static_cast<double>(linear.in);
        if (layers.converts(layer, linear.role))
          weights += met * static_cast<double>(linear.size());
        else if (linear.role == LinearRole::qkv)
          for (const LinearRole part : kQkvParts)
            if (layers.converts(layer, part))
              weights +=
                  in * static_cast<double>(linear.parts[static_cast<std::size_t>(place_in_qkv(part))].size);
      }
    if (layers.head_converted) weights += static_cast<double>(head_linear(plan_.model).size());
    double gemms = 0;
    for (const GemmRole role : kGemmRoles) gemms += quantizes(layers.recipe.gemm(role)) ? 1 : 0;
    return weights * gemms;
  }

  std::optional<double> kept_flops(const ConvertedLayers& layers) const {
    for (const GemmRole role : kGemmRoles)
      if (layers.recipe.gemm(role).a.quantized() != layers.recipe.gemm(role).b.quantized())
        return std::nullopt;
    return whole_flops_ > 0 ? std::max(0.0, 1 - flops_of(layers) / whole_flops_) : 0.0;
  }

  ConvertedLayers nothing() const {
    ConvertedLayers layers = plan_;
    layers.converted.assign(layers.converted.size(), {});
    layers.head_converted = false;
    return layers;
  }

  void add(CellName name, ConvertedLayers layers, std::optional<std::string> note = std::nullopt) {
    if (auto why = layers_unsupported_reason(plan_, layers))
      return skip(name.group, name.part, *std::move(why));
    SensitivityCell cell{std::move(name), std::move(layers)};
    cell.kept_flops = kept_flops(cell.layers);
    cell.note = std::move(note);
    made_.cells.push_back(std::move(cell));
  }

  void add_kept(CellName name, const KeepBf16& keep) {
    std::optional<SensitivityCell> cell = kept_cell(name, keep);
    if (!cell) return;
    if (auto why = layers_unsupported_reason(plan_, cell->layers))
      return skip(name.group, name.part, *std::move(why));
    made_.cells.push_back(*std::move(cell));
  }

  /// Adds a cell with the same layers and another recipe.
  void add_recipe(const char* group, CellKind kind, std::string part, Recipe recipe,
                  std::optional<std::string> note = std::nullopt) {
    if (const auto change = make_consistent(recipe)) note = note ? *note + "; " + *change : *change;
    ConvertedLayers layers = plan_;
    layers.recipe = std::move(recipe);
    add({group, kind, std::move(part)}, std::move(layers), std::move(note));
  }

  void skip(const std::string& group, const std::string& part, std::string why) {
    made_.skipped.push_back({fmt::format("{} {}", group, part), std::move(why)});
  }

  void add_group(Group group) {
    switch (group) {
      case Group::gemms:
        return add_gemms();
      case Group::operands:
        return add_operands();
      case Group::roles:
        return add_roles();
      case Group::blocks:
        return add_blocks();
      case Group::linears:
        return add_linears();
      case Group::elements:
        return add_elements();
      case Group::scales:
        return add_scales();
      case Group::best:
        return;
    }
  }

  void add_gemms() {
    for (const GemmRole role : kGemmRoles) {
      if (!quantizes(plan_.recipe.gemm(role))) continue;
      Recipe alone = plan_.recipe, kept = plan_.recipe;
      for (const GemmRole other : kGemmRoles)
        if (other != role) gemm_of(alone, other) = {};
      gemm_of(kept, role) = {};
      add_recipe("gemms", CellKind::alone, name_of(role), std::move(alone));
      if (kept.quantized())
        add_recipe("gemms", CellKind::kept, name_of(role), std::move(kept),
                   "in a recipe file: this GEMM in bf16");
    }
  }

  void add_operands() {
    for (const OperandKind kind : {OperandKind::weights, OperandKind::activations, OperandKind::gradients}) {
      Recipe recipe = plan_.recipe;
      bool left_out = false;
      for_each_operand(recipe, [&](GemmRole role, QuantFormat& operand, bool is_a) {
        const GemmRecipe& gemm = plan_.recipe.gemm(role);
        // A transform without its partner would not cancel.
        const bool transformed = gemm.a.transform && gemm.b.transform;
        const bool keep = kind_of(role, is_a) == kind;
        if (keep && transformed && operand.quantized()) left_out = true;
        if (!keep || transformed) operand = {};
      });
      for (const GemmRole role : kGemmRoles) gemm_of(recipe, role).fast_accum = false;
      std::optional<std::string> note;
      if (left_out) note = "GEMMs with a transform are in BF16";
      if (recipe.quantized())
        add_recipe("operands", CellKind::alone, kOperandNames.of(kind), std::move(recipe), std::move(note));
      else if (left_out)
        skip("operands", kOperandNames.of(kind), "its GEMMs have a transform, which needs both operands");
    }
  }

  /// Returns the layers of one role only. For q, k or v it splits qkv into three GEMMs.
  ConvertedLayers only_role(LinearRole role) const {
    ConvertedLayers layers = nothing();
    layers.head_converted = role == LinearRole::head && plan_.head_converted;
    if (role == LinearRole::head) return layers;
    const auto index = [](LinearRole one) { return static_cast<std::size_t>(one); };
    for (std::size_t block = 0; block < layers.converted.size(); ++block) {
      const ConvertedLayers::Roles& was = plan_.converted[block];
      ConvertedLayers::Roles& now = layers.converted[block];
      now[index(role)] = was[index(role)] || (is_qkv_part(role) && was[index(LinearRole::qkv)]);
      if (role == LinearRole::qkv)
        for (const LinearRole part : kQkvParts) now[index(part)] = was[index(part)];
    }
    return layers;
  }

  void add_roles() {
    for (const LinearRole role : {LinearRole::qkv, LinearRole::q, LinearRole::k, LinearRole::v, LinearRole::o,
                                  LinearRole::gate_up, LinearRole::down, LinearRole::head}) {
      // Delayed scaling has one scale for qkv, and latent attention no such parts.
      if (is_qkv_part(role) && (plan_.recipe.delayed() || plan_.model.latent)) continue;
      ConvertedLayers alone = only_role(role);
      if (!alone.any()) continue;
      const std::string name = role == LinearRole::head ? "head" : name_of(role);
      add({"roles", CellKind::alone, name}, std::move(alone));
      KeepBf16 keep = kept_;
      keep.roles[static_cast<std::size_t>(role)] = true;
      add_kept({"roles", CellKind::kept, name}, keep);
    }
  }

  void add_blocks() {
    for (std::int64_t block = 0; block < plan_.model.layers; ++block) {
      ConvertedLayers alone = nothing();
      alone.converted[static_cast<std::size_t>(block)] = plan_.converted[static_cast<std::size_t>(block)];
      if (!alone.any()) continue;
      add({"blocks", CellKind::alone, std::to_string(block)}, std::move(alone));
      add_kept({"blocks", CellKind::kept, std::to_string(block)}, with(KeptBlock{block}));
    }
  }

  void add_linears() {
    for (std::int64_t block = 0; block < plan_.model.layers; ++block)
      for (const LinearRole role : kLinearsOfBlock) {
        const ConvertedLayers alone = only_role(role);
        const ConvertedLayers::Roles& roles = alone.converted[static_cast<std::size_t>(block)];
        if (std::find(roles.begin(), roles.end(), true) == roles.end()) continue;
        add_kept({"linears", CellKind::kept, fmt::format("{}.{}", block, name_of(role))},
                 with(KeptBlock{block, role}));
      }
  }

  KeepBf16 with(const KeptBlock& kept) const {
    KeepBf16 keep = kept_;
    keep.blocks.push_back(kept);
    return keep;
  }

  bool has_fp8() const {
    bool fp8 = false;
    Recipe recipe = plan_.recipe;
    for_each_operand(recipe,
                     [&](GemmRole, const QuantFormat& operand, bool) { fp8 = fp8 || is_fp8(operand); });
    return fp8;
  }

  void add_elements() {
    if (!has_fp8())
      return skip("elements", "all", "FP4 and grids have no formats with more or fewer bits here");
    for (const QuantFormat& element : kElements) {
      Recipe recipe = plan_.recipe;
      for_each_operand(recipe, [&](GemmRole, QuantFormat& operand, bool) {
        if (is_fp8(operand)) operand.dtype = element.dtype, operand.dropped_bits = element.dropped_bits;
      });
      if (!(recipe == plan_.recipe))
        add_recipe("elements", CellKind::variant, element_name(element), std::move(recipe));
    }
  }

  void add_scales() {
    if (!has_fp8()) return skip("scales", "all", "scales of FP4 and grids are part of their formats");
    for (const QuantFormat& scale : kScales) {
      Recipe recipe = plan_.recipe;
      for_each_operand(recipe, [&](GemmRole, QuantFormat& operand, bool) {
        if (!is_fp8(operand)) return;
        operand.granularity = scale.granularity, operand.scale = scale.scale;
        operand.scale_rounding = scale.scale_rounding, operand.history = {};
      });
      for (const GemmRole role : kGemmRoles)
        if (block_length(scale.granularity) > 0) gemm_of(recipe, role).fast_accum = false;
      if (!(recipe == plan_.recipe))
        add_recipe("scales", CellKind::variant, name_of(scale.granularity), std::move(recipe));
    }
  }

  const Plan& plan_;
  KeepBf16 kept_;  // set by the case or its recipe
  double whole_flops_ = 0;
  SensitivityCells made_;
};

/// Combines two keep_bf16 settings: layers that either keeps are kept.
KeepBf16 both(KeepBf16 keep, const std::vector<std::string>& words) {
  const KeepBf16 more = parse_keep_bf16(fmt::format("{}", fmt::join(words, ",")));
  for (const KeptBlock& block : more.blocks)
    if (std::find(keep.blocks.begin(), keep.blocks.end(), block) == keep.blocks.end())
      keep.blocks.push_back(block);
  for (std::size_t role = 0; role < keep.roles.size(); ++role)
    keep.roles[role] = keep.roles[role] || more.roles[role];
  return keep;
}

}  // namespace

const char* name_of(SensitivityGroup group) { return kGroupNames.of(group); }

std::vector<SensitivityGroup> parse_sensitivity(const std::string& text) {
  std::vector<SensitivityGroup> groups;
  if (text.empty() || text == "none") return groups;
  bool wanted[std::size(kGroupNames.names)] = {};
  const auto want = [&](const std::string& word) {
    const bool all = word == "all";
    if (all || word == "standard") {
      for (std::size_t i = 0; i < std::size(wanted); ++i)
        wanted[i] = wanted[i] || all || static_cast<Group>(i) != Group::linears;
      return true;
    }
    const std::optional<Group> group = kGroupNames.find(word);
    if (group) wanted[static_cast<std::size_t>(*group)] = true;
    return group.has_value();
  };
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (const std::string word = text.substr(begin, end - begin); !want(word))
      throw InvalidInput(fmt::format("--sensitivity: \"{}\" is none of standard, all, {}", word,
                                     fmt::join(kGroupNames.names, ", ")));
    begin = end + 1;
  }
  for (std::size_t i = 0; i < std::size(wanted); ++i)
    if (wanted[i]) groups.push_back(static_cast<Group>(i));
  return groups;
}

SensitivityCells sensitivity_cells(const Plan& plan) { return CellMaker(plan).make(); }

std::vector<const SensitivityCell*> candidates_of(const std::vector<SensitivityCell>& cells) {
  std::vector<const SensitivityCell*> candidates;
  for (const SensitivityCell& cell : cells)
    if (cell.name.kind == CellKind::kept && !cell.keep_bf16.empty()) candidates.push_back(&cell);
  return candidates;
}

std::vector<SensitivityCell> sets_together(const Plan& plan,
                                           const std::vector<const SensitivityCell*>& candidates,
                                           const std::string& ranking) {
  const CellMaker maker(plan);
  std::vector<SensitivityCell> sets;
  KeepBf16 keep =
      plan.fields.keep_bf16.empty() ? plan.recipe.keep_bf16 : parse_keep_bf16(plan.fields.keep_bf16);
  double kept_flops = 0;
  std::size_t taken = 0, wanted = 1;
  for (const SensitivityCell* candidate : candidates) {
    const KeepBf16 more = both(keep, candidate->keep_bf16);
    auto set = maker.kept_cell({"best", CellKind::set, ""}, more);
    if (!set || !set->layers.any()) continue;
    if (layers_unsupported_reason(plan, set->layers) || *set->kept_flops <= kept_flops) continue;
    keep = more, kept_flops = *set->kept_flops;
    if (++taken < wanted) continue;
    set->name.part = fmt::format("{} by {}", taken, ranking);
    sets.push_back(*std::move(set));
    wanted *= 2;
  }
  return sets;
}

double quantized_flops(const Plan& plan) {
  constexpr double kPerMultiplyAdd = 2;
  return kPerMultiplyAdd * CellMaker(plan).whole_flops() / static_cast<double>(plan.flops_per_token());
}

bool wants_sets(const Plan& plan) {
  return std::find(plan.sensitivity.begin(), plan.sensitivity.end(), Group::best) != plan.sensitivity.end();
}

std::size_t most_cells(const Plan& plan) {
  if (plan.sensitivity.empty()) return 0;
  const SensitivityCells made = sensitivity_cells(plan);
  std::size_t sets = 0;
  if (wants_sets(plan))
    for (std::size_t size = 1; size <= candidates_of(made.cells).size(); size *= 2) sets += 2;
  return made.cells.size() + sets;
}

}  // namespace precbench
