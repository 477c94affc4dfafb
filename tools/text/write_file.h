// Whole files, written, and their folders.
#pragma once

#include <string>

namespace precbench {

/// Writes `text` to a file, or behind what is there. Throws InvalidInput ("cannot write FILE: No space left on
/// device").
void write_file(const std::string& path, const std::string& text, bool append = false);

/// The same to standard output.
void write_standard_output(const std::string& text);

/// Makes a folder and those above it; does nothing for an empty name. Throws InvalidInput ("cannot make FOLDER:
/// Permission denied").
void make_folder(const std::string& path);

}  // namespace precbench
