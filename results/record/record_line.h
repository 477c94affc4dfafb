// Parses one line of a record file, independently of other lines, so that lines can be parsed in parallel.
#pragma once

#include <cstddef>
#include <exception>
#include <optional>
#include <string>

#include "kernels/base/untrusted_input.h"
#include "results/record/record.h"

namespace precbench {

/// Limits of a line. The longest run that bench accepts, a million steps with loss, gradient norm, learning
/// rate and time, stays below them (bench/case/case_limits.h).
inline constexpr JsonLimits kRecordLimits{.bytes = std::size_t{128} << 20, .depth = 16, .members = 256};

/// Problem of a line that is not JSON.
inline constexpr const char* kNotJson = "not JSON";

struct RecordLine {
  std::optional<Record> record;
  std::string problem;                       ///< why there is no record
  std::optional<std::string> contradiction;  ///< contradiction within the record (contradiction.h)
  std::size_t hash = 0;                      ///< of the whole record
  std::exception_ptr failure;                ///< exception thrown while reading, e.g. out of memory
};

/// Removes parts of a record that its reader does not need. Called by several threads concurrently.
using ReduceRecord = void (*)(Record&);

/// Returns why the JSON is not a record; null if it is one.
std::optional<std::string> not_a_record_reason(const nlohmann::ordered_json& json);

/// Never throws; errors are in the result. `reduce` may be null and is called after all checks.
RecordLine parse_record_line(const std::string& line, ReduceRecord reduce) noexcept;

}  // namespace precbench
