// Detects files that are not a corpus, by their first bytes and their names.
#pragma once

#include <optional>
#include <string>

#include "models/checkpoint/mapped_file.h"

namespace precbench {

/// Returns why a file is neither text nor tokens and what to do about it, e.g. "gzip-compressed: unpack it
/// first (gunzip)"; nullopt for a usable file. Detects compressed files, archives, arrays, tables, weights,
/// text in UTF-16, and any other file with a zero byte among its first 8,000. For token files (`tokens`),
/// which may begin with any bytes, only signatures of six bytes or more count.
std::optional<std::string> not_a_corpus_reason(const MappedFile& file, bool tokens);

}  // namespace precbench
