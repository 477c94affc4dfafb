// Sets of recipes that --recipe takes beside names and files.
#pragma once

#include <string>
#include <vector>

#include "bench/cli/axis.h"
#include "kernels/device/device.h"
#include "kernels/numerics/recipe.h"

namespace precbench {

/// Returns the weakest support among the three GEMMs, with the reason if it is not native.
GemmSupport gemm_support_of(const Recipe& recipe, const Device& device);

/// A named set; `what` describes its members for help and lists.
struct RecipeSet {
  const char* name;
  const char* what;
  bool (*has)(const Recipe& recipe);  ///< null for `native`, whose members depend on the device
};
/// Returns all, fp8, mx, fp4, native.
const std::vector<RecipeSet>& recipe_sets();

/// Returns the names of a set's recipes in the order of `list recipes`; null if `word` names no set. `native`
/// stays a word, because this does not know the device.
std::optional<std::vector<std::string>> recipes_in(const std::string& word);

/// Returns the recipes whose GEMMs all run natively on a device.
std::vector<std::string> native_recipes(const Device& device);
/// The same of a device by name, "cpu" or that of the first GPU. Throws InvalidInput if there is no such device.
std::vector<std::string> native_recipes(const std::string& device);

/// Replaces `native` among the words of the recipe axis by the recipes that the device named in `axes`, or
/// the one that --device auto selects, runs natively. Throws InvalidInput if the axes name several devices.
void expand_native(Axes& axes);

}  // namespace precbench
