// Fingerprints of file contents, so that a case becomes another one when its data changes.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/fnv1a.h"
#include "models/data/files.h"

namespace precbench {

/// Returns FNV-1a of a file, or of every file below a folder whose name matches `glob`, including names and
/// sizes. Covers all bytes of files up to kSampledBytes, and of larger ones as many in evenly spread blocks.
/// Modification times are ignored, so that copies on other machines match. Unreadable files add nothing.
/// `below`: none for a checkpoint, whose files are all in its folder: a link there may lead anywhere.
std::uint64_t fingerprint_of(const std::string& path, const std::string& glob, Below below = Below::all);
inline constexpr std::int64_t kSampledBytes = 64 * 1024;

}  // namespace precbench
