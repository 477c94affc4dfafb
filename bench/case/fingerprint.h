// What files hold, as one number: so that a case is another one once its data has changed.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/fnv1a.h"

namespace precbench {

/// FNV-1a of a file, or of every file below a folder whose name matches `glob`, names included: sizes, all bytes of
/// files up to kSampledBytes, and of larger ones as many in blocks spread evenly. Modification times are not
/// in it, so that a copy on another machine is the same. What cannot be read adds nothing.
std::uint64_t fingerprint_of(const std::string& path, const std::string& glob);
inline constexpr std::int64_t kSampledBytes = 64 * 1024;

}  // namespace precbench
