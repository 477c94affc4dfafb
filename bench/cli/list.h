// What `precbench list` prints on standard output: one aligned table each, and notes below it.
#pragma once

#include <string>

namespace precbench {

/// Every built-in recipe, in groups: the formats of its three GEMMs, and native, emulated or unsupported on the CPU and on
/// the first GPU, if there is one.
void list_recipes();
/// One row in full, a built-in one or a file's. Standard output is its JSON, which is a recipe file; standard error says
/// how each GEMM runs here. Throws InvalidInput as find_recipe does.
void list_recipe(const std::string& name);
/// Every preset: its shape, its parameter count, and the FLOPs of a token in both conventions.
void list_models();
/// One model, a preset or a file: its shape, all and active parameters, the FLOPs of a token, and what its file asks for that is
/// not modelled. Throws InvalidInput as find_model does.
void list_model(const std::string& name_or_path);
/// The CPU device and every GPU: what it has and which GEMM modes it runs natively.
void list_devices();

}  // namespace precbench
