// A 64-bit checksum against accidental damage, not against malice. It runs at memory speed, so that data can
// be summed on its way to or from a disk. Sums are stored in checkpoints, so they never change.
#pragma once

#include <cstddef>
#include <cstdint>

namespace precbench {

/// Any change within one 8-byte word changes the sum; larger changes go undetected with probability 2^-64.
std::uint64_t checksum(const void* data, std::int64_t bytes);

}  // namespace precbench
