// Finds the records of a case by its fields. Needed for schema 1, whose ids are hashed differently.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "results/record/record_file.h"

namespace precbench {

class FieldIndex {
 public:
  /// The records must outlive the index.
  explicit FieldIndex(std::vector<const LocatedRecord*> records) : records_(std::move(records)) {}

  /// Returns the records that have every work-defining field (changes_work) of this one with equal values.
  /// They may have additional newer fields, except those that are only written if used (only_where_used).
  const std::vector<const LocatedRecord*>& like(const Record& record);

 private:
  using ByValues = std::map<std::string, std::vector<const LocatedRecord*>>;

  std::vector<const LocatedRecord*> records_;
  std::map<std::vector<std::string>, ByValues> by_names_;  ///< built on demand for each list of fields
};

}  // namespace precbench
