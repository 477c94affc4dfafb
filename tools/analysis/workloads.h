// Identity of the work that each record measured.
//
// A model, recipe, data set or initial weights may change between two sweeps: a file, or a built-in. The
// cases then have equal fields, and only the definitions in the records differ. Here each version gets its
// own name, such as "mini.json (version 2)", so that code that groups, pairs or labels by fields never
// confuses two versions.
//
// Records of schema 1 have no definition. For their files the version is inferred from the id, into which
// bench hashed the file's content, from the model's FLOPs, tensors and vocabulary, and from the quantized
// formats. Without evidence a record belongs to the preceding version in its own record file, by time. A new
// id that several files may have caused is attributed to the model first: fewer ratios, but no wrong ones.
// Built-ins count as unchanged.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "results/record/record_file.h"

namespace precbench {

using RecordRefs = std::vector<const LocatedRecord*>;

/// Returns true if the field names files, whose content is part of the id (bench/case/case.cpp).
bool is_file(const CaseFields& fields, const std::string& key);

class Workloads {
 public:
  explicit Workloads(const RecordRefs& records);

  /// Returns the fields of the case that change the work (changes_work), in record order; an empty
  /// text becomes null.
  CaseFields fields(const LocatedRecord* record) const {
    const auto of_version = fields_.find(record);
    return of_version == fields_.end() ? work_.of(record->record.case_fields) : of_version->second;
  }

  /// Returns one line for each name with several versions.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void tell_apart(const RecordRefs& by_time, const std::string& key);

  CaseFieldsChange work_;
  std::unordered_map<const LocatedRecord*, CaseFields> fields_;  ///< only records whose fields name a version
  std::vector<std::string> notes_;
};

}  // namespace precbench
