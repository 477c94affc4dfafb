// Data that opens but may not be what the model needs: text, whose tokens are its bytes, and tokens of too few bits.
#pragma once

#include <string>
#include <vector>

#include "models/data/data.h"

namespace precbench {

/// Returns true if tokens of the data are bytes of a text: a corpus of text, or documents with strings.
bool reads_bytes(const DataSource& data);

/// Returns a line ("uint16 tokens: ...") if the data is uint16 tokens and the vocabulary has more than 65,536, whose
/// larger ids they cannot hold. `path`: as the user gave it.
std::vector<std::string> token_warnings(const DataSource& data, const std::string& path);

}  // namespace precbench
