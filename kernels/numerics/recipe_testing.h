// Helpers for tests of recipes: rows changed in one place, their error messages, and a row as one line of
// text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kernels/numerics/recipe.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench::testing {

using nlohmann::json;

/// Returns a built-in row under another name, as a user would start from one.
inline json copy_of(const char* name) {
  json row = recipe_to_json(find_recipe(name));
  row["name"] = "mine";
  return row;
}

inline std::string error_of_row(const json& row) {
  return refusal_of([&] { recipe_from_json(row); });
}

inline std::string error_with(const char* base, const char* pointer, const json& value) {
  json row = copy_of(base);
  row[json::json_pointer(pointer)] = value;
  return error_of_row(row);
}

inline std::string error_without(const char* base, const char* object, const char* key) {
  json row = copy_of(base);
  row[json::json_pointer(object)].erase(key);
  return error_of_row(row);
}

inline std::string row_text(const char* name) {
  const Recipe recipe = find_recipe(name);
  std::string text;
  for (GemmRole role : kGemmRoles) {
    const GemmRecipe& gemm = recipe.gemm(role);
    text += std::string(name_of(role)) + ": " + describe(gemm.a) + " x " + describe(gemm.b) +
            (gemm.fast_accum ? " fast; " : "; ");
  }
  return text;
}

}  // namespace precbench::testing
