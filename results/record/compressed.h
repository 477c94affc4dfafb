// Tells files of compressors other than xz, which are not read as records, from others, and how to unpack them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace precbench {

/// Returns the program whose `PROGRAM -dc` unpacks data that begins so: "gzip", "zstd" or "bzip2"; "" for other
/// data.
std::string_view unpacker_of(std::string_view data);

/// Throws InvalidInput if one of the paths is a compressed file, or a folder that has compressed record files
/// (*.jsonl.gz, ...) alone: "FILE: compressed with gzip; unpack it on the way: gzip -dc FILE | precbench report -".
/// `reader`: the command that reads records from standard input, "precbench report -". Paths that cannot be read are
/// passed over.
void refuse_compressed(const std::vector<std::string>& paths, const std::string& reader);

}  // namespace precbench
