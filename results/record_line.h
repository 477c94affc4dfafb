// One line of a file of records: what it holds, or why it holds none. Knows nothing of other lines, so that lines can
// be parsed at the same time.
#pragma once

#include <cstddef>
#include <exception>
#include <optional>
#include <string>

#include "kernels/base/untrusted_input.h"
#include "results/record.h"

namespace precbench {

/// What a line of records may be, and is refused beyond: the longest run that bench takes, a million steps with their loss,
/// gradient norm, learning rate and time, is less (bench/case/case_limits.h).
inline constexpr JsonLimits kRecordLimits{.bytes = std::size_t{128} << 20, .depth = 16, .members = 256};

/// The problem of a line that is not JSON at all.
inline constexpr const char* kNotJson = "not JSON";

struct RecordLine {
  std::optional<Record> record;
  std::string problem;                       ///< where there is no record: why
  std::optional<std::string> contradiction;  ///< of the record with itself (contradiction.h)
  std::size_t hash = 0;                      ///< of all that the record says
  std::exception_ptr failure;                ///< what reading threw, memory that ran out
};

/// Takes from a record what its reader does not look at. Called by several threads at a time.
using ReduceRecord = void (*)(Record&);

/// Returns why the JSON is no record; empty if it is one.
std::string why_no_record(const nlohmann::ordered_json& json);

/// Never throws: what goes wrong is in the result. `reduce` may be null; it comes after every check.
RecordLine parse_record_line(const std::string& line, ReduceRecord reduce) noexcept;

}  // namespace precbench
