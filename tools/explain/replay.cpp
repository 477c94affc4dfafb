// Follows host and streams through equal steps. See replay.h.
#include "tools/explain/replay.h"

#include <algorithm>
#include <map>

#include "tools/explain/gaps.h"

namespace precbench {
namespace {

/// A launch that takes longer waits for a place in the queue.
constexpr double kLongLaunchNs = 20'000;
/// Gaps of queued kernels above this are no property of the GPU.
constexpr double kMostGapNs = 5'000, kUsualGapNs = 1'000;
/// Time between a launch and the earliest start of its kernel, and between a kernel's end and the return of a wait.
constexpr double kLatencyNs = 4'000, kReturnNs = 5'000;
constexpr int kPeriods = 6;
/// Time of the call that launches a kernel, without the profiler; fitted to the steps in results/h200/traces that wait for
/// the host.
constexpr double kLaunchNs = 5'800;
/// Value of host_share_of() for a trace with fewer than kFewLaunches launches, and its bounds for other traces.
constexpr double kUsualShare = 0.65, kLeastShare = 0.45, kMostShare = 0.95;
constexpr std::size_t kFewLaunches = 20;

/// Time of spans before a moment.
class Spans {
 public:
  explicit Spans(const std::vector<HostDelay>& delays, GapCause cause) {
    for (const HostDelay& delay : delays)
      if (delay.cause == cause) spans_.push_back({delay.begin, delay.end});
    std::sort(spans_.begin(), spans_.end());
  }
  /// Returns the time of spans that begin in [from, to).
  double between(std::int64_t from, std::int64_t to) const {
    double sum = 0;
    for (auto at = std::lower_bound(spans_.begin(), spans_.end(), std::pair(from, std::int64_t{0}));
         at != spans_.end() && at->first < to; ++at)
      sum += static_cast<double>(std::min(at->second, to) - at->first);
    return sum;
  }

 private:
  std::vector<std::pair<std::int64_t, std::int64_t>> spans_;
};

}  // namespace

std::vector<ReplayItem> replay_items(const TrainingTrace& trace, const StepWork& step, bool waits_at_end) {
  const std::vector<HostDelay> delays = host_delays(trace, step);
  const Spans holes(delays, GapCause::host), compiling(delays, GapCause::compile);
  struct Entry {
    std::int64_t begin, end;  ///< of the call on the host
    bool waits;
    std::size_t work;
  };
  std::vector<Entry> entries;
  std::int64_t last_launch = step.host_begin;
  for (std::size_t i = 0; i < step.work.size(); ++i) {
    const Work& work = step.work[i];
    const bool known = work.call != kNoIndex;
    const std::int64_t begin = known ? trace.calls[work.call].start : work.start,
                       end = known ? trace.calls[work.call].end() : work.start;
    last_launch = std::max(last_launch, begin);
    entries.push_back({begin, end, false, i});
  }
  for (const HostDelay& delay : delays)
    if (delay.cause == GapCause::synchronize && (delay.begin <= last_launch || waits_at_end))
      entries.push_back({delay.begin, delay.end, true, 0});
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.waits < b.waits;
  });

  std::vector<ReplayItem> items;
  std::vector<std::size_t> item_of(step.work.size(), ReplayItem::kNone);
  std::int64_t at = step.host_begin;
  for (const Entry& entry : entries) {
    ReplayItem item;
    item.waits = entry.waits;
    item.work = entry.work;
    const std::int64_t until = entry.waits ? entry.begin : entry.end;
    if (until > at) {
      item.hole = holes.between(at, until);
      item.compile = compiling.between(at, until);
      item.host = static_cast<double>(until - at) - item.hole - item.compile;
      const auto call = static_cast<double>(entry.end - entry.begin);
      if (!entry.waits && call > kLongLaunchNs) item.host -= call - kLongLaunchNs;
      item.host = std::max(item.host, 0.0);
    }
    at = std::max(at, entry.end);
    if (!entry.waits) {
      const Work& work = step.work[entry.work];
      item.duration = static_cast<double>(work.duration);
      item.stream = work.stream;
      item_of[entry.work] = items.size();
    }
    items.push_back(item);
  }

  if (!items.empty() && step.host_end > at) {  // what follows delays the next step's first launch
    double waited = 0;
    for (const HostDelay& delay : delays)
      if (delay.cause == GapCause::synchronize && delay.end > at)
        waited += static_cast<double>(delay.end - std::max(delay.begin, at));
    ReplayItem& first = items.front();
    const double hole = holes.between(at, step.host_end), compile = compiling.between(at, step.host_end);
    first.hole += hole;
    first.compile += compile;
    first.host += std::max(0.0, static_cast<double>(step.host_end - at) - hole - compile - waited);
  }

  // Find the kernel that released each one on the GPU, in the order of their starts.
  std::map<std::int32_t, std::size_t> last;  // by stream: index in step.work
  for (std::size_t i = 0; i < step.work.size(); ++i) {
    const Work& work = step.work[i];
    ReplayItem& item = items[item_of[i]];
    std::int64_t released = -1;
    for (const auto& [stream, before] : last) {
      const std::int64_t end = step.work[before].end();
      if (end > work.start || end <= released) continue;
      released = end;
      const bool other = stream != work.stream && item_of[before] < item_of[i] &&
                         static_cast<double>(work.start - end) < 2 * kMostGapNs;
      item.after = other ? item_of[before] : ReplayItem::kNone;
    }
    const bool queued = work.call != kNoIndex && trace.calls[work.call].end() < released;
    item.gap = queued ? std::min(static_cast<double>(work.start - released), kMostGapNs) : kUsualGapNs;
    last[work.stream] = i;
  }
  return items;
}

double replay(const std::vector<ReplayItem>& items, double host_share) {
  double host = 0, all = 0, before = 0, period = 0;
  std::map<std::int32_t, double> streams;
  std::vector<double> ends(items.size(), 0);
  for (int i = 0; i < kPeriods; ++i) {
    for (auto& [stream, end] : streams) end = all;  // the optimizer separates steps on all streams
    for (std::size_t j = 0; j < items.size(); ++j) {
      const ReplayItem& item = items[j];
      host += host_share * item.host + item.hole + item.compile;
      if (item.waits) {
        if (all > host) host = all + kReturnNs;
        continue;
      }
      if (item.removed) {
        ends[j] = streams[item.stream];
        continue;
      }
      double& stream = streams[item.stream];
      double ready = stream;
      if (item.after != ReplayItem::kNone) ready = std::max(ready, ends[item.after]);
      const double start = std::max(host + kLatencyNs, ready + item.gap);
      stream = ends[j] = start + item.duration;
      all = std::max(all, stream);
    }
    // The host may be behind the GPU as well as ahead of it.
    period = std::max(all, host) - before;
    before = std::max(all, host);
  }
  return period;
}

double host_share_of(const TrainingTrace& trace, const StepWork& step) {
  std::vector<std::int64_t> launches;
  for (const Work& work : step.work)
    if (work.call != kNoIndex &&
        trace.name(trace.calls[work.call].name).find("LaunchKernel") != std::string::npos)
      launches.push_back(trace.calls[work.call].duration);
  if (launches.size() < kFewLaunches) return kUsualShare;
  const auto middle = launches.begin() + static_cast<std::ptrdiff_t>(launches.size() / 2);
  std::nth_element(launches.begin(), middle, launches.end());
  return std::clamp(kLaunchNs / std::max(static_cast<double>(*middle), 1.0), kLeastShare, kMostShare);
}

}  // namespace precbench
