// The disk space that checkpoints need, against what is free, before a case runs: a checkpoint that does not fit is
// found after the steps whose state it should have kept.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"

namespace precbench {

/// Returns the bytes that can still be written to the file system of a path, which need not exist yet; null if that
/// is unknown.
using FreeBytes = std::function<std::optional<std::int64_t>(const std::string& path)>;

/// Asks the system, which does not know quotas.
std::optional<std::int64_t> free_bytes_at(const std::string& path);

/// Returns the bytes of one checkpoint of the case, rounded up by a percent for headers and checksums; 0 if the case
/// is not supported, so that it writes none.
std::int64_t checkpoint_bytes(const Plan& plan);

/// Checkpoints from an earlier start of a case: the next one reuses or replaces them, or moves them aside (--fresh).
enum class Earlier : std::uint8_t { used, moved_aside };

/// Returns the bytes that the case's checkpoints will take beside those that are there, at the moment when they take
/// most.
std::int64_t missing_checkpoint_bytes(const Plan& plan, Earlier earlier);

/// Returns one line that says what the checkpoints of the cases need and what is free, if they do not fit; null if
/// they do or if the free space is unknown.
std::optional<std::string> space_shortage(const std::vector<Plan>& cases, Earlier earlier,
                                          const FreeBytes& free);

/// Returns "21.3 GB", "4.2 MB", "12 kB".
std::string describe_bytes(std::int64_t bytes);

}  // namespace precbench
