// Files that are not what a corpus reads, told apart by their first bytes and by their names.
#pragma once

#include <optional>
#include <string>

#include "models/checkpoint/mapped_file.h"

namespace precbench {

/// Returns why a file is neither text nor tokens and what to do about it, "gzip-compressed: unpack it first (gunzip)":
/// compressed files, archives, arrays, tables, weights, text in UTF-16, and whatever else has a zero byte among its first
/// 8,000. Nothing for a file to train on. Of token files (`tokens`), which may begin with any bytes, only signatures of
/// six bytes or more count.
std::optional<std::string> why_no_corpus(const MappedFile& file, bool tokens);

}  // namespace precbench
