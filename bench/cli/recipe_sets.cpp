// Members of the sets. See recipe_sets.h.
#include "bench/cli/recipe_sets.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/machine/verification.h"
#include "kernels/base/errors.h"
#include "kernels/base/near_words.h"
#include "kernels/device/devices.h"
#include "kernels/gpu/device_info.h"

namespace precbench {
namespace {

constexpr const char* kNative = "native";

template <class Predicate>
bool any_operand(const Recipe& recipe, Predicate&& holds) {
  return std::any_of(std::begin(kGemmRoles), std::end(kGemmRoles),
                     [&](GemmRole role) { return holds(recipe.gemm(role).a) || holds(recipe.gemm(role).b); });
}

bool is_mx(const QuantFormat& format) { return format.scale == ScaleType::ue8m0; }
bool is_fp4(const QuantFormat& format) { return format.dtype == DType::e2m1; }
bool is_fp8(const QuantFormat& format) { return format.quantized() && !is_mx(format) && !is_fp4(format); }

std::unique_ptr<Device> open_device(const std::string& name) {
  if (!is_gpu(name)) return make_cpu_device(1);
  if (const VisibleGpus gpus = find_gpus(); gpus.count == 0)
    throw InvalidInput(
        fmt::format("--recipe {}: asks the GPU which recipes it runs natively: {}", kNative, gpus.reason));
  return open_gpu(0);
}

/// Returns the one device of the axes.
std::string device_of(const Axes& axes) {
  const auto given = axes.find("device");
  if (given == axes.end()) return best_device();
  const std::vector<std::string> devices = expand_axis(*find_field("device"), given->second);
  if (devices.size() > 1)
    throw InvalidInput(fmt::format("--recipe {}: needs one device, not {}", kNative, devices.size()));
  return devices.front() == Case{}.device ? best_device() : devices.front();
}

}  // namespace

GemmSupport gemm_support_of(const Recipe& recipe, const Device& device) {
  GemmSupport weakest;
  for (const GemmRole role : kGemmRoles) {
    const GemmSupport support = recipe_support(device, recipe, role);
    if (support.execution > weakest.execution) weakest = support;
  }
  return weakest;
}

const std::vector<RecipeSet>& recipe_sets() {
  static const std::vector<RecipeSet> sets = {
      {"all", "every built-in recipe, bf16 included, controls not", [](const Recipe&) { return true; }},
      {"fp8", "8-bit GEMM operands with scales of tensors, rows or blocks of 128",
       [](const Recipe& recipe) { return any_operand(recipe, is_fp8); }},
      {"mx", "GEMM operands of 8 or 4 bits with MX scales (powers of two, blocks of 32)",
       [](const Recipe& recipe) { return any_operand(recipe, is_mx); }},
      {"fp4", "4-bit GEMM operands", [](const Recipe& recipe) { return any_operand(recipe, is_fp4); }},
      {kNative, "recipes that the device runs natively, bf16 included", nullptr},
  };
  return sets;
}

std::optional<std::vector<std::string>> recipes_in(const std::string& word) {
  const auto& sets = recipe_sets();
  const auto set = std::find_if(sets.begin(), sets.end(),
                                [&](const RecipeSet& one) { return equal_but_for_case(word, one.name); });
  if (set == sets.end()) return std::nullopt;
  if (!set->has) return std::vector<std::string>{set->name};
  std::vector<std::string> names;
  for (const Recipe& recipe : listed_recipes())
    if (set->has(recipe)) names.push_back(recipe.name);
  return names;
}

std::vector<std::string> native_recipes(const Device& device) {
  std::vector<std::string> names;
  for (const Recipe& recipe : listed_recipes())
    if (gemm_support_of(recipe, device).execution == Execution::native) names.push_back(recipe.name);
  return names;
}

std::vector<std::string> native_recipes(const std::string& device) {
  return native_recipes(*open_device(device));
}

void expand_native(Axes& axes) {
  const auto recipes = axes.find("recipe");
  if (recipes == axes.end()) return;
  std::vector<std::string> words;
  for (const std::string& word : expand_axis(*find_field("recipe"), recipes->second)) {
    const std::vector<std::string> names =
        word == kNative ? native_recipes(device_of(axes)) : std::vector{word};
    words.insert(words.end(), names.begin(), names.end());
  }
  recipes->second = std::move(words);
}

}  // namespace precbench
