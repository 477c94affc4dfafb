// Stores common parts of records once: runs of a case differ in their numbers and little else.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "results/record.h"

namespace precbench {

/// The distinct values of one type seen so far.
template <class T>
class ValuePool {
 public:
  /// Replaces `value` by an earlier one with equal bytes (record_bytes.h), if there is one.
  void share(T& value);

 private:
  std::unordered_map<std::string, T> known_;
};

class RecordPool {
 public:
  /// Lets the record share its equal parts with earlier records.
  void share(Record& record);

 private:
  /// Cases that differ only in the seed.
  struct Runs {
    std::size_t count = 0;
    std::optional<CaseFields> fields{};  ///< of one of them, once there are many
  };
  void share(CaseFields& fields);
  void share(Shared<DefinitionRecord>& definition);

  CaseFields like_;                             ///< of a recent record, for others to share
  std::unordered_map<std::string, Runs> runs_;  ///< by all fields except the seed
  std::map<std::array<const void*, 4>, Shared<DefinitionRecord>> whole_definitions_;  ///< by their parts
  ValuePool<DefinitionPart> definitions_;
  ValuePool<Shared<Environment>> environments_;
  ValuePool<Shared<Support>> supports_;
  ValuePool<Shared<Flops>> flops_;
  ValuePool<Shared<std::string>> sources_;
  ValuePool<Shared<DeviceRates>> rates_;
  ValuePool<Shared<MemorySegments>> segments_;
  ValuePool<Shared<OpWork>> ops_;
  ValuePool<SharedList<std::string>> texts_;
};

}  // namespace precbench
