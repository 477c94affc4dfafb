// Output of `precbench list`: one aligned table each, followed by notes.
#pragma once

#include <string>

namespace precbench {

/// Prints every built-in recipe, in groups: the formats of its three GEMMs and its support (native, emulated,
/// unsupported) on the CPU and on the first GPU, if any.
void list_recipes();
/// Prints one recipe, built-in or from a file: its JSON, a valid recipe file, on standard output, and the
/// support of each GEMM on standard error. Throws InvalidInput like find_recipe.
void list_recipe(const std::string& name);
/// Prints every preset: shape, parameter count, and FLOPs per token in both conventions.
void list_models();
/// Prints one model, a preset or a file: shape, total and active parameters, FLOPs per token, and warnings
/// for keys of its file that are not modelled. Throws InvalidInput like find_model.
void list_model(const std::string& name_or_path);
/// Prints the CPU device and every GPU with the recipes that each runs natively, emulates or does not
/// support.
void list_devices();

}  // namespace precbench
