// A checksum of 64 bits against damage, not against malice: as fast as memory is read, so that what goes to a disk or
// comes from it can be summed on the way. Sums are written down in checkpoints, so they never change.
#pragma once

#include <cstddef>
#include <cstdint>

namespace precbench {

/// Any change within a single word of eight bytes gives another sum; a change of more passes by chance alone, of 2^64 one.
std::uint64_t checksum(const void* data, std::int64_t bytes);

}  // namespace precbench
