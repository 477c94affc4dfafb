// Reads a log of any size in bounded memory: detects its format by content, and splits it into runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/import/log_format.h"

namespace precbench {

/// Bytes of a line that are read; a longer line is not understood.
inline constexpr std::size_t kLongestLogLine = std::size_t{1} << 20;

struct LogLines {
  std::int64_t used = 0, header = 0, skipped = 0;  ///< lines of steps, with other facts, not understood
  std::string first_skipped;                       ///< printable and shortened; empty: none
};

struct LogFile {
  const LogFormat* format = nullptr;  ///< null: no line of a step was recognised
  std::vector<LogRun> runs;
  LogLines lines;
  bool cut = false;  ///< the last line has no end: the log is being written, or was cut
  std::string
      sha256;  ///< 64 hex digits, of the log as it was read; of longer lines the first kLongestLogLine bytes
  std::string looks_like;  ///< for an unrecognised file: what it may be; empty: unknown
};

/// Reads a file or a descriptor (line_reader.h). `format`: null to detect it: the first lines are given to all readers, until one
/// of them has kSteps steps. Throws InvalidInput as LineReader and RunCollector do.
LogFile read_log(const std::string& path, const LogFormat* format);

/// Returns "; it looks like a torchtitan log: precbench import FILE" for a file whose first lines have a step of a known format;
/// empty for others, descriptors and files that cannot be read.
std::string import_hint(const std::string& path);

}  // namespace precbench
