// The folder that a sweep writes to, locked against a second one for as long as this lives, and its two files.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <stdexcept>
#include <string>

#include "results/record.h"

namespace precbench {

/// A finished row could not be kept: the disk is full or the folder gone. The input is not to blame.
struct CannotKeepRow : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Refuses what the constructor of SweepFolder would, but for another sweep's lock, and leaves nothing behind. Throws
/// InvalidInput.
void check_out(const std::string& path);

class SweepFolder {
 public:
  /// Makes the folder if it is missing. Throws InvalidInput where it cannot be made or written, another sweep writes
  /// to it, or what has the name of one of its files is no file that can be written: to write to a pipe would wait for a
  /// reader.
  explicit SweepFolder(const std::string& path);
  ~SweepFolder();
  SweepFolder(const SweepFolder&) = delete;
  SweepFolder& operator=(const SweepFolder&) = delete;

  std::string records() const;
  /// Of an interleaved sweep: cases whose second run is missing. Not *.jsonl: no reader takes it for records.
  std::string first_runs() const;

  /// Throw CannotKeepRow.
  void append_row(const Record& record);
  void append_first_run(const Record& record) const;

  /// Takes records() as it is now for what the caller has read of it, or mended.
  void rows_are_known() { last_ = identity(); }
  /// Whether somebody else has removed, replaced or changed records() since then.
  bool rows_were_taken();

 private:
  struct Identity {
    dev_t device = 0;
    ino_t file = 0;
    off_t bytes = 0;
    bool operator==(const Identity&) const = default;
  };
  Identity identity() const;

  std::filesystem::path path_;
  int lock_;
  bool taken_ = false;
  Identity last_;  // of records() when it was known, or after the last append
};

}  // namespace precbench
