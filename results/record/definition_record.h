// Full description of the model, recipe, data and initial weights of a case when it ran. Detects that an
// edited preset, recipe or file under the same name is other work.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace precbench {

/// An immutable JSON object, shared by records if equal.
using DefinitionPart = std::shared_ptr<const nlohmann::ordered_json>;

/// The `definition` of a record, made by bench/case/definition.h. record.schema.json describes its parts.
struct DefinitionRecord {
  DefinitionPart model, recipe, data, init;
};

/// Returns every value that determines the work, one line each in sorted order: "recipe.fprop.a.scale=ue8m0".
/// The source of a recipe (`reference`) is left out. Equal texts mean equal work.
std::string canonical_text(const DefinitionRecord& definition);

/// The first value in which two definitions differ.
struct DefinitionDifference {
  std::string field;                  ///< "recipe.fprop.a.scale_rounding"
  std::string baseline{}, current{};  ///< "none" if absent
};
std::optional<DefinitionDifference> first_difference(const DefinitionRecord& baseline,
                                                     const DefinitionRecord& current);

}  // namespace precbench
