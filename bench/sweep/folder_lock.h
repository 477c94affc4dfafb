// The lock of a sweep's folder against other sweeps: flock of FOLDER/.lock. Some network file systems refuse flock
// (NFS without a lock service, Lustre mounted without -o flock). There the lock is the file FOLDER/.lock-owner, which
// only one process can create and which names it. A process that dies leaves the file. The next one on the same host
// notices and takes over; on another host nobody can tell, so the error says which file to remove.
#pragma once

#include <string>

namespace precbench {

class FolderLock {
 public:
  /// flock(2); a parameter so that tests can have a file system that refuses it.
  using Flock = int (*)(int descriptor, int operation);

  /// Locks an existing folder. Warns once on standard error if flock does not work there. Throws InvalidInput if
  /// another sweep has the lock or the files cannot be created.
  explicit FolderLock(const std::string& folder);
  FolderLock(const std::string& folder, Flock flock);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;  // of .lock
  std::string owner_;    // path of .lock-owner, if this process has made it; else empty
};

/// Returns the path of the file that flock locks.
std::string lock_in(const std::string& folder);

}  // namespace precbench
