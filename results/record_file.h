// Files of records: one JSON object a line, appended one by one, so that whatever ends a sweep, finished
// lines stay.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "results/record.h"
#include "results/record_line.h"

namespace precbench {

/// Fields that the cases of a set may have, all different ones together; a case has less than forty. Each is a column.
inline constexpr std::size_t kMostCaseFields = 256;
/// Problems of a set that are named one by one.
inline constexpr std::size_t kMostProblems = 1000;

/// Appends one line, the record as readable_record() returns it, in a single write and waits until it is on the disk. Makes
/// the file, not its folder. Throws InvalidInput ("cannot write FILE: No space left on device ...", or what readable_record
/// says); the file is then as it was before.
void append_record(const std::string& path, const Record& record);

/// Brings a file whose writer was killed into order: a last line that is not a JSON object goes to
/// FILE.broken, and a whole last object without its newline gets it. Returns what was done, in one line; null
/// if nothing was to do or the file does not exist. Reads no more of the file than that line. Throws InvalidInput if
/// the file is no regular one, cannot be read or written, or if the line is too long to be a record.
std::optional<std::string> repair_tail(const std::string& path);

/// A name beside a file that is free: FILE.1, else FILE.2, ...
std::string spare_name(const std::string& path);

/// Where a record stands.
struct Origin {
  Shared<std::string> file = std::string();  ///< never null; the records of a file share its name
  std::size_t line = 0;                      ///< the first is 1

  std::string text() const;  ///< "out/records.jsonl:12"
};

/// A record and where it stands.
struct LocatedRecord {
  Record record;
  Origin origin;
  /// A case that failed before it could tell where it ran has that of the record before it in the file, or after it, on
  /// the same kind of device. Null for all others.
  Shared<Environment> neighbour{};

  /// Where the case ran.
  const Environment& env() const { return neighbour ? *neighbour : *record.env; }
};

struct RecordSet {
  std::vector<LocatedRecord> records;
  /// What a reader must be told, one line each, with the place named: lines that are no records, a last line
  /// that was only half written, records of an unknown schema (all left out); a case that is repeated (the newest by
  /// `created` is kept, and of equal fields that of schema 2); records that contradict themselves (contradiction.h)
  /// or are of several method versions, or of one that this program does not know yet (all kept). Beyond kMostProblems they are counted in a last line.
  std::vector<std::string> problems;
  /// The first of them without what was read nevertheless, for readers who refuse it; empty where there is none.
  std::string first_problem{};
  /// Ids of cases of which two different records are there and their times do not tell which is newer. The one
  /// that stands later is kept, but nobody should rely on it.
  std::vector<std::string> undecided{};
  /// Of the paths read those in which no line is a record, "PATH: no record in it (the first problem)".
  std::vector<std::string> without_record;
};

/// Reads record files, and every *.jsonl of folders, in the order given (a folder's by name), line by line. "-" and
/// /dev/stdin are standard input, /dev/fd/N another descriptor that is open already. Throws InvalidInput if a path does
/// not exist, cannot be read, is no regular file (a named pipe), or is a folder without a file of records. A record is reduced as soon as it is read, so that no more is held of many than their reader looks at.
RecordSet read_records(const std::vector<std::string>& paths, ReduceRecord reduce = nullptr);

}  // namespace precbench
