// Writes complete files and creates their folders.
#pragma once

#include <string>
#include <vector>

namespace precbench {

/// An output file of a command; an empty path means none.
struct NamedOutput {
  std::string flag, path;
};
/// Returns true if `path` is one of `inputs`, or a record file (*.jsonl) in an input folder,
/// whatever its name.
bool is_among(const std::vector<std::string>& inputs, const std::string& path);

/// Throws InvalidInput if an output would overwrite another one or an input file.
void check_outputs(const std::vector<NamedOutput>& outputs, const std::vector<std::string>& inputs);

/// Throws InvalidInput if a file cannot be written; to be called before work is done for it. Does not modify
/// the file, and creates none.
void check_writable(const std::string& path);

/// Writes `text` to a file, or appends it. Throws InvalidInput ("cannot write FILE: No
/// space left on device").
void write_file(const std::string& path, const std::string& text, bool append = false);

/// Writes `text` to standard output, with the same errors.
void write_standard_output(const std::string& text);

/// Creates a folder and its parents; does nothing for an empty path. Throws InvalidInput ("cannot make
/// FOLDER: Permission denied").
void make_folder(const std::string& path);

}  // namespace precbench
