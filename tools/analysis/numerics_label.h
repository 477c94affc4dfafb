// Identity of what a recipe computes: its name and the modifiers that change its numerics.
#pragma once

#include <string>

#include "tools/analysis/analysis.h"

namespace precbench {

/// Returns the recipe with its modifiers ("nvfp4 + head recipe"), without those that only say how ranks exchange
/// values: a study on one rank also holds for FP8 gathers.
inline std::string numerics_label(const CaseFields& fields) {
  std::string label = field_text(fields.value("recipe", nullptr));
  for (const std::string& modifier : modifiers_of(fields)) {
    const std::string key = modifier.substr(0, modifier.find(' '));
    if (key != "gather" && key != "reduce_amax" && key != "dispatch") label += " + " + modifier;
  }
  return label;
}

/// Returns true for a model or recipe that is given as a file instead of by its name.
inline bool is_file_name(const std::string& text) {
  return text.find('/') != std::string::npos || text.ends_with(".json");
}

}  // namespace precbench
