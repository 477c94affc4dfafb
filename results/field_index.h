// Finds the records of a case by its fields, where ids cannot tell: those of schema 1 are hashed in another way.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "results/record_file.h"

namespace precbench {

class FieldIndex {
 public:
  /// The records must outlive the index.
  explicit FieldIndex(std::vector<const LocatedRecord*> records) : records_(std::move(records)) {}

  /// Those that have every field of this one that changes the work (changes_work), with its value. They may have
  /// more fields, younger ones, but none that stands only where it is used (only_where_used).
  const std::vector<const LocatedRecord*>& like(const Record& record);

 private:
  using ByValues = std::map<std::string, std::vector<const LocatedRecord*>>;

  std::vector<const LocatedRecord*> records_;
  std::map<std::vector<std::string>, ByValues> by_names_;  ///< made for each list of fields that is asked for
};

}  // namespace precbench
