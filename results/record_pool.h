// What records have in common, held once: the runs of a case differ in their numbers, and in little else.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "results/record.h"

namespace precbench {

/// The different values of one type that were met.
template <class T>
class ValuePool {
 public:
  /// Makes `value` the one of equal bytes (record_bytes.h) that was met before, if any.
  void share(T& value);

 private:
  std::unordered_map<std::string, T> known_;
};

class RecordPool {
 public:
  /// Lets the record hold its equal parts together with the records before it.
  void share(Record& record);

 private:
  /// The cases met that differ in the seed alone.
  struct Runs {
    std::size_t count = 0;
    std::optional<CaseFields> fields{};  ///< of one of them, where there are many
  };
  void share(CaseFields& fields);
  void share(Shared<DefinitionRecord>& definition);

  CaseFields like_;                             ///< of a record not long ago, with which others share theirs
  std::unordered_map<std::string, Runs> runs_;  ///< by all fields but the seed
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
