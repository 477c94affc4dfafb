// Fuzzes a recipe file.
#include <nlohmann/json.hpp>

#include "kernels/numerics/recipe.h"
#include "tools/fuzz/fuzz.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(recipe) {
  const std::string path = scratch().write("recipe.json", std::string(text_of(data, size)));
  taken([&] {
    const Recipe recipe = find_recipe(path);
    for (const std::int64_t tokens : {128, 96}) shape_unsupported_reason(recipe, tokens, 256, 384);
    expect(recipe_from_json(recipe_to_json(recipe)) == recipe);
  });
  return 0;
}
