// Names that people use for presets: a preset's own name, or the Hugging Face repository of the published
// model, with or without its owner; in any letter case.
#pragma once

#include <string>
#include <vector>

namespace precbench {

/// A repository on the Hugging Face hub and the preset with the values of its config.json. Where the preset
/// has `cuts`, it is a different model, and the repository's name does not stand for it.
struct HubName {
  std::string repository;
  std::string preset;
};
const std::vector<HubName>& hub_names();

/// Returns the name of the preset that `name` stands for; `name` itself if it stands for none. Throws
/// InvalidInput for the repository of a model of which the preset is a variant only, and says how it differs.
std::string preset_name(const std::string& name);

/// Returns the reason why `name` is no model, with a suggestion that has the same sizes and versions in its
/// name: one of another size would lead to another model's results.
std::string unknown_model(const std::string& name);

}  // namespace precbench
