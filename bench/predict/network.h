// Time of a collective on a machine's network, from the levels that its group crosses.
//
// A group is `ranks` GPUs, `stride` apart in the machine's order of GPUs, starting at a multiple of their
// span, so that a domain of G GPUs holds min(ranks, max(1, G / stride)) members. At every level that the
// group crosses, a ring moves (n - 1) / n of the buffer through the links of a domain's members; the slowest level
// counts. A ring has one hop per rank: those between domains cost the outer level's latency, the others the
// inner one's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/machine/machine.h"

namespace precbench {

/// Ranks of a communicator and their distance in the machine's order of GPUs.
struct RankGroup {
  std::int64_t ranks = 1, stride = 1;
  bool operator==(const RankGroup&) const = default;
};

/// Returns the group of these ranks, ascending: their number and the smallest distance between two.
RankGroup group_of_ranks(const std::vector<int>& ranks);

enum class Collective : std::uint8_t { all_gather, reduce_scatter, all_reduce, all_to_all, send_recv };
/// Returns the collective of a Comm's name ("all_gather", "reduce_scatter bf16", "all_reduce_max"). Throws
/// std::invalid_argument for an unknown one.
Collective collective_of(std::string_view name);
const char* name_of(Collective collective);

/// Bytes per second that a rank passes on in a collective alone in one domain, by number of ranks and bytes of the full
/// buffer, ascending. Latencies are included.
using BusRates = std::map<Collective, std::map<std::int64_t, std::vector<std::pair<double, double>>>>;

/// Seconds that any collective takes at least: launch and synchronization (20 us in our H200 records).
inline constexpr double kShortCollectiveSeconds = 20e-6;

class Network {
 public:
  explicit Network(std::vector<NetworkLevel> levels) : levels_(std::move(levels)) {}
  explicit Network(const Machine& machine) : Network(machine.levels) {}
  /// Groups within one domain of the innermost level take `measured` rates, where those have their collective.
  Network(const Machine& machine, BusRates measured)
      : levels_(machine.levels), measured_(std::move(measured)) {}

  /// Returns the seconds of one collective of a full buffer of `bytes`, alone on its links; 0 for one rank.
  /// all_to_all: bytes that a rank sends, its own part included. send_recv: bytes of the message, between
  /// ranks `stride` apart. Throws InvalidInput if the group exceeds the outermost level.
  double seconds(Collective collective, const RankGroup& group, double bytes) const;
  /// Returns the index of the outermost level that the group crosses; 0 for one rank.
  int level(const RankGroup& group) const;
  /// Returns the bytes per second of one rank at a level for large buffers: link rate times the fraction achieved.
  double rate(Collective collective, int level, std::int64_t ranks) const;
  /// Returns the bytes per second that a ring of the group passes from rank to rank: that of the slowest level, whose
  /// links a domain's members share.
  double bus_rate(Collective collective, const RankGroup& group) const;
  const std::vector<NetworkLevel>& levels() const { return levels_; }

 private:
  /// Returns how many members of the group one domain of a level holds.
  std::int64_t members(const RankGroup& group, int level) const;
  double ring_seconds(Collective collective, const RankGroup& group, double bytes) const;
  /// Returns the seconds according to measured_; null for collectives, groups and small buffers that it does not have.
  std::optional<double> measured_seconds(Collective collective, const RankGroup& group, double bytes) const;
  double latency(const RankGroup& group) const;

  std::vector<NetworkLevel> levels_;
  BusRates measured_;
};

/// Spread of step times between equal boards: 1.4 to 1.8% in our H200 records.
inline constexpr double kBoardSpread = 0.016;

/// Returns the expected time of the slowest of `ranks` ranks, whose times are normal with mean 1 and standard deviation `sigma`.
double straggler_factor(std::int64_t ranks, double sigma = kBoardSpread);

}  // namespace precbench
