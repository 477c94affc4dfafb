// The files of a corpus: finding them below a directory and reading them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/data/corpus.h"

namespace precbench {

struct FoundFiles {
  std::vector<std::string> paths;  ///< regular files that match, in an order that depends on names only
  std::int64_t skipped =
      0;  ///< matching names that are no readable file, and directories that cannot be listed
};

/// Directories that find_files enters: all below the given one, or none, for folders whose layout is known.
enum class Below : std::uint8_t { all, none };

/// Returns every file below `directory` whose name matches the fnmatch pattern `glob`. Follows symbolic links
/// and enters each directory once, so that loops of links end.
FoundFiles find_files(const std::string& directory, const std::string& glob, Below below = Below::all);

/// Returns the token width of a token file (.bin: from its header; .u16; .u32), or nullopt for a text file.
/// Throws InvalidInput for a .bin that is not llm.c's.
std::optional<TokenWidth> token_width(const MappedFile& file);

/// Adds the tokens of a token file. Throws InvalidInput that names file, position and token if the file is
/// truncated, empty, or holds a token outside the corpus's vocabulary.
void add_token_file(Corpus& corpus, MappedFile file);

/// Adds a text: its bytes are the tokens, and each literal <|endoftext|> becomes the single token 0.
void add_text(Corpus& corpus, MappedFile text);

}  // namespace precbench
