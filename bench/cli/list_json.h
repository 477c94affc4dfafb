// Output of `precbench list --json`, for scripts. Keys are only added, never renamed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace precbench {

/// Returns {"recipes": [{name, reference, fprop, dgrad, wgrad, devices: [{device, execution, reason,
/// gemms}]}], "sets": {name: [recipe, ...]}}; `name`: one recipe, built-in or a file, empty for all. fprop
/// etc. are those of a recipe file.
nlohmann::ordered_json recipes_json(const std::string& name);

/// Returns {"models": [{name, parameters, active_parameters, flops_per_token, seq, hub_names, warnings,
/// config}]}; `name`: one model, empty for all presets. `config` is a model file.
nlohmann::ordered_json models_json(const std::string& name);

/// Returns {"devices": [{device, ordinal, name, description, memory_bytes, recipes: {native, emulated,
/// unsupported}}], "no_gpu": reason or null}.
nlohmann::ordered_json devices_json();

}  // namespace precbench
