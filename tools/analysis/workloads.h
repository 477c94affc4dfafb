// The work that each record measured, in fields that tell it from other work.
//
// A model, a recipe, data or first weights may change between two sweeps: a file, or what is built in. Cases before and
// after have equal fields, and only the record tells them apart, by its definition. What has changed goes by a name for
// each of its versions here, "mini.json (version 2)", so that whoever groups, pairs or labels by fields never takes two
// for one.
//
// Records of schema 1 have no definition, and of their files a version is guessed: by the id, into which bench hashed
// what the file held, by the model's FLOPs, tensors and vocabulary, and by the formats of what was quantized. Where
// nothing shows which version a record is of, it is the one before it in its own file of records, by time. A new id that
// several files may have caused is laid to the model first: fewer ratios, none wrong. What is built in counts as
// unchanged.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "results/record_file.h"

namespace precbench {

using RecordRefs = std::vector<const LocatedRecord*>;

/// Whether the field is the name of files, whose content takes part in the id (bench/case/case.cpp).
bool is_file(const CaseFields& fields, const std::string& key);

class Workloads {
 public:
  explicit Workloads(const RecordRefs& records);

  /// The fields of the case that change the work (changes_work), in the record's order; an empty text is null.
  CaseFields fields(const LocatedRecord* record) const {
    const auto of_version = fields_.find(record);
    return of_version == fields_.end() ? work_.of(record->record.case_fields) : of_version->second;
  }

  /// One line for each name that has several versions.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void tell_apart(const RecordRefs& by_time, const std::string& key);

  CaseFieldsChange work_;
  std::unordered_map<const LocatedRecord*, CaseFields> fields_;  ///< where they name a version
  std::vector<std::string> notes_;
};

}  // namespace precbench
