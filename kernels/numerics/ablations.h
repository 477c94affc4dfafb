// Ablations: recipes that change one part of another. They are the recipe files in ablations/, embedded in the program, so that
// an installed one finds them by name, too.
#pragma once

#include <string>

#include "kernels/numerics/recipe.h"

namespace precbench {

/// Returns the recipe of ablations/NAME.json. Throws std::logic_error if there is no such file.
Recipe ablation(const std::string& name);

bool is_ablation(const std::string& name);

}  // namespace precbench
