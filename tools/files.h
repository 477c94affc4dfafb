// Whole files, written.
#pragma once

#include <string>

namespace precbench {

/// Writes `text` to a file, or behind what is there. Throws InvalidInput ("cannot write FILE: No space left on
/// device").
void write_file(const std::string& path, const std::string& text, bool append = false);

/// The same to standard output.
void write_standard_output(const std::string& text);

}  // namespace precbench
