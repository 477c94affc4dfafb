// One line of a file of records: what it holds, or why it holds none. Knows nothing of other lines, so that lines can
// be parsed at the same time.
#pragma once

#include <cstddef>
#include <exception>
#include <optional>
#include <string>

#include "results/record.h"

namespace precbench {

/// The problem of a line that is not JSON at all.
inline constexpr const char* kNotJson = "not JSON";

struct RecordLine {
  std::optional<Record> record;
  std::string problem;                       ///< where there is no record: why
  std::optional<std::string> contradiction;  ///< of the record with itself (contradiction.h)
  std::string environment;                   ///< its env as JSON: equal ones may share their memory
  std::size_t hash = 0;                      ///< of the text
  std::exception_ptr failure;                ///< what reading threw, memory that ran out
};

/// Never throws: what goes wrong is in the result.
RecordLine parse_record_line(const std::string& line) noexcept;

}  // namespace precbench
