// Detects that other processes slowed a measurement. The spread within a run does not show a process that ran
// all the time.
#include <fmt/format.h>

#include <optional>
#include <string>

#include "results/record/step_time.h"
#include "tools/gate/gate.h"

namespace precbench {
namespace {

/// Time that threads wait for a CPU, over the step's, from which a machine is busy. Below the usual tolerance
/// of 3%.
constexpr double kWaitShare = 0.02;
/// Share of the CPU time that the baseline had, below which a run had too little.
constexpr double kOfBaseline = 0.9;
/// Share of wall time times threads, below which a run had too little if the baseline's is unknown. Threads
/// also sleep where a step has too little work for all of them.
constexpr double kOfWallTime = 0.75;

/// Returns CPU time over wall time times threads (or CPUs, if fewer); null if unknown or on a GPU, whose step
/// needs little of it.
std::optional<double> cpu_share(const Record& record) {
  if (record.env.gpu || !record.timing || !record.timing->cpu_ms || !record.timing->wall_ms)
    return std::nullopt;
  double cpus = static_cast<double>(record.env.threads.value_or(0));
  if (const auto available = cpus_for_threads(record.env)) cpus = *available;
  const double possible = *record.timing->wall_ms * cpus;
  return possible > 0 ? std::optional(*record.timing->cpu_ms / possible) : std::nullopt;
}

}  // namespace

std::string busy_reason(const Record& record, const Record& baseline) {
  for (const std::string& doubt : warnings_and_doubts(record))
    if (doubt.starts_with("step times are noisy: ")) return doubt.substr(0, doubt.find(", so "));
  if (!record.timing) return "";
  const auto wall_ms = record.timing->wall_ms, wait_ms = record.timing->cpu_wait_ms;
  if (wall_ms && wait_ms && *wall_ms > 0 && *wait_ms > kWaitShare * *wall_ms)
    return fmt::format(
        "its threads waited {:.3g} ms of each step of {:.3g} ms for a CPU, because other processes ran",
        *wait_ms, *wall_ms);
  const auto share = cpu_share(record);
  const auto usual = cpu_share(baseline);
  if (share && *share < (usual ? kOfBaseline * *usual : kOfWallTime))
    return fmt::format("it had {:.0f}% of the CPU time of its threads{}", 100 * *share,
                       usual ? fmt::format(", the baseline {:.0f}%", 100 * *usual) : "");
  return "";
}

}  // namespace precbench
