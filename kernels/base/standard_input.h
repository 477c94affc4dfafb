// Standard input in place of a file, named "-".
#pragma once

#include <string>

namespace precbench {

inline constexpr const char* kStandardInput = "-";

/// Returns the content of a file, or of standard input for "-". Standard input is read once: the same
/// `reader`, a flag, gets its content again. Throws InvalidInput like read_regular_file, and if standard
/// input cannot be read, has more than `most` bytes or has been read for another flag.
std::string read_input(const std::string& path, std::size_t most, const char* reader);

/// Returns the name of an input for messages: "standard input", or the path.
std::string name_of_input(const std::string& path);

}  // namespace precbench
