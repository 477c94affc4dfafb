// The folder that a sweep writes to, locked against other sweeps during the object's lifetime, and its two
// files.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>

#include "bench/sweep/folder_lock.h"
#include "results/record/record.h"

namespace precbench {

/// Thrown if a finished row could not be written, because the disk is full or the folder gone: not an error
/// of the input.
struct CannotKeepRow : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Checks what the constructor of SweepFolder would, except for another sweep's lock, and leaves nothing
/// behind. Throws InvalidInput.
void check_out(const std::string& path);

class SweepFolder {
 public:
  /// Creates the folder if it is missing. Throws InvalidInput if it cannot be created or written, if another
  /// sweep writes to it, or if one of its files exists but is not a writable regular file (writing to a pipe
  /// would wait for a reader).
  explicit SweepFolder(const std::string& path);
  SweepFolder(const SweepFolder&) = delete;
  SweepFolder& operator=(const SweepFolder&) = delete;

  std::string records() const;
  /// Returns the file with the first runs of an interleaved sweep. Not named *.jsonl, so that no reader takes
  /// it for records.
  std::string first_runs() const;

  /// Both throw CannotKeepRow.
  void append_row(const Record& record);
  void append_first_run(const Record& record) const;

  /// Declares records() as it is now to be what the caller has read or repaired.
  void rows_are_known() { last_ = identity(); }
  /// Returns true if somebody else has removed, replaced or changed records() since then.
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
  std::optional<FolderLock> lock_;
  bool taken_ = false;
  Identity last_;  // of records() when it was declared known, or after the last append
};

}  // namespace precbench
