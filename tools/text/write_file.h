// Writes complete files and creates their folders.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace precbench {

/// An output file of a command; an empty path means none.
struct NamedOutput {
  std::string flag, path;
};
/// Returns true if `path` is one of `inputs`, or one of the files that are read for an input folder (record_files_in),
/// whatever its name.
bool is_among(const std::vector<std::string>& inputs, const std::string& path);

/// Throws InvalidInput if an output would overwrite another one or an input file.
void check_outputs(const std::vector<NamedOutput>& outputs, const std::vector<std::string>& inputs);

/// Throws InvalidInput if a file cannot be written; to be called before work is done for it. Does not modify
/// the file, and creates none.
void check_writable(const std::string& path);

/// A file that is written under another name beside its own and replaces an earlier one whole: a failed write leaves
/// the earlier file, and none if there was none. Devices, pipes, and files in folders that cannot be written are
/// written in place. Every function throws InvalidInput ("cannot write FILE: No space left on device").
class PendingFile {
 public:
  explicit PendingFile(const std::string& path);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  void add(const std::string& text);
  /// Gives the file its name. To be called once, last.
  void commit();

 private:
  std::string name_;   ///< as given, for messages
  std::string path_;   ///< of the file itself, behind links
  std::string place_;  ///< where it is written
  std::FILE* file_;
  bool committed_ = false;
};

/// Writes `text` to a file as PendingFile does, or appends it in place. Throws InvalidInput ("cannot write FILE: No
/// space left on device").
void write_file(const std::string& path, const std::string& text, bool append = false);

/// Writes `text` to standard output, with the same errors.
void write_standard_output(const std::string& text);

/// Creates a folder and its parents; does nothing for an empty path. Throws InvalidInput ("cannot make
/// FOLDER: Permission denied").
void make_folder(const std::string& path);

}  // namespace precbench
