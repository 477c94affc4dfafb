// Whole files, written, and their folders.
#pragma once

#include <string>
#include <vector>

namespace precbench {

/// A file that a command was told to write; an empty path: none.
struct NamedOutput {
  std::string flag, path;
};
/// Whether a file is one of `inputs`, or a record file (*.jsonl) in a folder that is, by whatever name.
bool is_among(const std::vector<std::string>& inputs, const std::string& path);

/// Throws InvalidInput where an output would replace another, or a file of the inputs.
void check_outputs(const std::vector<NamedOutput>& outputs, const std::vector<std::string>& inputs);

/// Throws InvalidInput where a file could not be written, before work is done for it. Leaves a file as it is, and no new one
/// behind.
void check_writable(const std::string& path);

/// Writes `text` to a file, or behind what is there. Throws InvalidInput ("cannot write FILE: No space left on
/// device").
void write_file(const std::string& path, const std::string& text, bool append = false);

/// The same to standard output.
void write_standard_output(const std::string& text);

/// Makes a folder and those above it; does nothing for an empty name. Throws InvalidInput ("cannot make FOLDER:
/// Permission denied").
void make_folder(const std::string& path);

}  // namespace precbench
