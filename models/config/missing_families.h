// Families of models that are not supported: what a step of theirs needs, and the nearest one that is supported.
#pragma once

#include <string>

namespace precbench {

struct MissingFamily {
  const char* model_type;  ///< of its config.json
  const char* hub_name;    ///< beginning of its repositories' names without their owner, in lower case
  const char* missing;     ///< what is not supported, a noun phrase
  const char* nearest;     ///< a supported model_type; empty: none is near
  const char* preset;      ///< a preset; empty: none is near
};

/// Returns the family of a model_type, or null.
const MissingFamily* missing_family_of_type(const std::string& model_type);
/// Returns the family of a repository's name without its owner, in lower case; null: none.
const MissingFamily* missing_family_of_name(const std::string& name);

}  // namespace precbench
