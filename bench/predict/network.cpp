// Times of collectives. See network.h.
#include "bench/predict/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "kernels/base/errors.h"

namespace precbench {
namespace {

constexpr const char* kCollectives[] = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                                        "send_recv"};

double fraction_of(const AchievedByRanks& achieved, std::int64_t ranks) {
  const auto above =
      achieved.upper_bound(static_cast<int>(std::min<std::int64_t>(ranks, std::numeric_limits<int>::max())));
  return above == achieved.begin() ? above->second : std::prev(above)->second;
}

}  // namespace

RankGroup group_of_ranks(const std::vector<int>& ranks) {
  RankGroup group{static_cast<std::int64_t>(ranks.size()), 1};
  std::int64_t stride = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 1; i < ranks.size(); ++i)
    stride = std::min<std::int64_t>(stride, ranks[i] - ranks[i - 1]);
  if (ranks.size() > 1) group.stride = stride;
  return group;
}

Collective collective_of(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kCollectives); ++i)
    if (name.starts_with(kCollectives[i])) return static_cast<Collective>(i);
  throw std::invalid_argument(fmt::format("no collective is called \"{}\"", name));
}

const char* name_of(Collective collective) { return kCollectives[static_cast<int>(collective)]; }

std::int64_t Network::members(const RankGroup& group, int level) const {
  const std::int64_t gpus = levels_.at(level).gpus;
  return gpus == 0 ? group.ranks : std::clamp<std::int64_t>(gpus / group.stride, 1, group.ranks);
}

int Network::level(const RankGroup& group) const {
  if (group.ranks <= 1) return 0;
  for (int level = 0; level < static_cast<int>(levels_.size()); ++level)
    if (members(group, level) == group.ranks) return level;
  if (levels_.empty())
    throw InvalidInput(fmt::format(
        "the machine has one GPU: its file has no \"levels\", and {} ranks need a network", group.ranks));
  throw InvalidInput(fmt::format("the machine's network joins {} GPUs; {} ranks {} apart need more",
                                 levels_.back().gpus, group.ranks, group.stride));
}

double Network::rate(Collective collective, int level, std::int64_t ranks) const {
  const NetworkLevel& at = levels_.at(level);
  const auto own = at.achieved.find(name_of(collective));
  return at.gb_per_s * 1e9 * fraction_of(own == at.achieved.end() ? at.achieved.at("") : own->second, ranks);
}

double Network::latency(const RankGroup& group) const {
  // A ring crosses domains of a level in as many of its hops as there are domains.
  double seconds = 0;
  std::int64_t left = group.ranks;
  for (int level = this->level(group); level >= 0; --level) {
    const std::int64_t inner = level == 0 ? 1 : members(group, level - 1);
    const std::int64_t domains = (group.ranks + inner - 1) / inner;
    const std::int64_t hops = level == 0 ? left : std::min(left, domains > 1 ? domains : 0);
    seconds += static_cast<double>(hops) * levels_.at(level).alpha_us * 1e-6;
    left -= hops;
  }
  return seconds;
}

double Network::bus_rate(Collective collective, const RankGroup& group) const {
  double slowest = std::numeric_limits<double>::infinity();
  for (int level = 0; level <= this->level(group); ++level) {
    // Links of one domain of the level below share what enters and leaves it.
    const std::int64_t sharing = level == 0 ? 1 : members(group, level - 1);
    const std::int64_t ranks = level == 0 ? members(group, 0) : group.ranks;
    if (ranks > 1) slowest = std::min(slowest, rate(collective, level, ranks) * static_cast<double>(sharing));
  }
  return slowest;
}

double Network::ring_seconds(Collective collective, const RankGroup& group, double bytes) const {
  const auto n = static_cast<double>(group.ranks);
  return (n - 1) / n * bytes / bus_rate(collective, group) + latency(group);
}

std::optional<double> Network::measured_seconds(Collective collective, const RankGroup& group,
                                                double bytes) const {
  const auto known = measured_.find(collective);
  if (known == measured_.end() || known->second.empty() || level(group) != 0) return std::nullopt;
  const auto above = known->second.upper_bound(group.ranks);
  const auto& [ranks, sizes] = above == known->second.begin() ? *above : *std::prev(above);
  if (sizes.empty() || bytes < sizes.front().first) return std::nullopt;
  const auto next = std::upper_bound(sizes.begin(), sizes.end(), bytes,
                                     [](double value, const auto& size) { return value < size.first; });
  const auto last = std::prev(next);
  double rate = last->second;
  if (next != sizes.end()) {  // linear in the logarithms
    const double share = std::log(bytes / last->first) / std::log(next->first / last->first);
    rate *= std::pow(next->second / last->second, share);
  }
  const auto n = static_cast<double>(group.ranks);
  const double passes = collective == Collective::all_reduce ? 2 : 1;
  const auto more_hops = static_cast<double>(std::max<std::int64_t>(group.ranks - ranks, 0));
  return passes * ((n - 1) / n * bytes / rate + more_hops * levels_.front().alpha_us * 1e-6);
}

double Network::seconds(Collective collective, const RankGroup& group, double bytes) const {
  if (group.ranks <= 1) return 0;
  if (const auto measured = measured_seconds(collective, group, bytes))
    return std::max(*measured, kShortCollectiveSeconds);
  const auto n = static_cast<double>(group.ranks);
  const int outermost = level(group);
  double seconds = 0;
  switch (collective) {
    case Collective::all_gather:
    case Collective::reduce_scatter:
      seconds = ring_seconds(collective, group, bytes);
      break;
    case Collective::all_reduce:
      seconds = 2 * ring_seconds(collective, group, bytes);
      break;
    case Collective::all_to_all:
      // Every rank sends to all others through its own link; all but a domain's share leaves the domain.
      for (int level = 0; level <= outermost; ++level) {
        const auto inside = static_cast<double>(level == 0 ? 1 : members(group, level - 1));
        seconds = std::max(seconds, (n - inside) / n * bytes / rate(collective, level, group.ranks));
      }
      seconds += levels_.at(outermost).alpha_us * 1e-6;
      break;
    case Collective::send_recv: {
      const int crossed = level({2, group.stride});
      seconds = bytes / rate(collective, crossed, 2) + levels_.at(crossed).alpha_us * 1e-6;
      break;
    }
  }
  return std::max(seconds, kShortCollectiveSeconds);
}

double straggler_factor(std::int64_t ranks, double sigma) {
  // The mean of the largest is the integral of 1 - P(all below z) over z > 0, less that of P(all below z) over z < 0.
  constexpr double kStep = 1.0 / 8, kFar = 8;
  double mean = 0;
  for (double z = -kFar + kStep / 2; z < kFar; z += kStep) {
    const double below = std::pow(std::erfc(-z / std::sqrt(2.0)) / 2, static_cast<double>(ranks));
    mean += kStep * (z > 0 ? 1 - below : -below);
  }
  return ranks <= 1 ? 1 : 1 + sigma * mean;
}

}  // namespace precbench
