// What the names of a case stood for when it ran: the model, the recipe, the data and the first weights, written out. An
// edited preset, recipe or file goes by the name it had; by this, two records are told to be of other work.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace precbench {

/// A JSON object that does not change any more; records share it where it is the same.
using DefinitionPart = std::shared_ptr<const nlohmann::ordered_json>;

/// `definition` of a record. bench/case/definition.h makes it, and record.schema.json says what stands in each part.
struct DefinitionRecord {
  DefinitionPart model, recipe, data, init;
};

/// Every value that decides the work, a line each, in an order of their own: "recipe.fprop.a.scale=ue8m0". Where a
/// recipe comes from (`reference`) is left out. Equal texts, equal work.
std::string canonical_text(const DefinitionRecord& definition);

/// The first value that two definitions do not share.
struct DefinitionDifference {
  std::string field;                  ///< "recipe.fprop.a.scale_rounding"
  std::string baseline{}, current{};  ///< "none" where one does not have it
};
std::optional<DefinitionDifference> first_difference(const DefinitionRecord& baseline,
                                                     const DefinitionRecord& current);

}  // namespace precbench
