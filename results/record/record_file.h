// Record files: one JSON object per line, appended one at a time, so that finished lines survive the end of a
// sweep.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "results/record/record.h"
#include "results/record/record_line.h"

namespace precbench {

/// Maximum number of different case fields in a set; a case has less than forty. Each is a column.
inline constexpr std::size_t kMostCaseFields = 256;
/// Maximum number of problems of a set that are reported individually.
inline constexpr std::size_t kMostProblems = 1000;

/// Appends the record, as returned by readable_record(), in a single write and waits until it is on disk.
/// Creates the file but not its folder. Throws InvalidInput ("cannot write FILE: No space left on device
/// ...", or readable_record's message); the file is then unchanged.
void append_record(const std::string& path, const Record& record);

/// Repairs a file whose writer was killed. Moves a last line that is not a JSON object to FILE.broken, and
/// completes a whole last object with its newline. Returns what was done, in one line; nullopt if nothing was
/// to do or the file does not exist. Reads only the last line. Throws InvalidInput if the file is not a
/// regular file, cannot be read or written, or the line is too long to be a record.
std::optional<std::string> repair_tail(const std::string& path);

/// Returns the first unused name of FILE.1, FILE.2, ...
std::string spare_name(const std::string& path);

/// File and line of a record.
struct Origin {
  std::string file;
  std::size_t line = 0;  ///< from 1

  std::string text() const;  ///< returns "out/records.jsonl:12"
};

/// A record and its origin.
struct LocatedRecord {
  Record record;
  Origin origin;
  /// For a case that failed before its environment was known: that of the previous record in the file, or of
  /// the next, on the same kind of device. Null otherwise.
  std::shared_ptr<const Environment> neighbour{};

  /// Returns the environment of the case.
  const Environment& env() const { return neighbour ? *neighbour : record.env; }
};

struct RecordSet {
  std::vector<LocatedRecord> records;
  /// Problems, one line each with its place. Left out: lines that are not records, a half-written last line,
  /// records of an unknown schema. Resolved: repeated cases (the newest by `created` is kept, see Repeats; of equal fields
  /// that of schema 2). Kept: records that contradict themselves (contradiction.h) or have mixed or unknown
  /// method versions. A file without a record has one line. Problems beyond kMostProblems are counted in a last line.
  std::vector<std::string> problems;
  /// The first problem without its outcome, for readers that refuse it; empty if there is none.
  std::string first_problem{};
  /// Ids of cases with two different records whose times do not tell which is newer. The later one is kept
  /// but is unreliable.
  std::vector<std::string> undecided{};
  /// Paths in which no line is a record: "PATH: no record in it (the first problem)".
  std::vector<std::string> without_record;
};

/// Which measured records of one case on one machine are kept: the newest, or all of them, as of a baseline with repeats.
/// Records that are equal, or whose times do not tell their order, are problems either way.
enum class Repeats : std::uint8_t { newest, all };

/// Reads record files, plain or packed with xz, and those of folders (record_folder.h), in the order given. "-" and /dev/stdin are
/// standard input, /dev/fd/N is an open descriptor. Applies `reduce` to every record as it is read, to limit
/// memory. Throws InvalidInput if a path does not exist, cannot be read, is not a regular file (a named
/// pipe), is damaged xz data, or is a folder without record files.
RecordSet read_records(const std::vector<std::string>& paths, ReduceRecord reduce = nullptr,
                       Repeats repeats = Repeats::newest);

}  // namespace precbench
