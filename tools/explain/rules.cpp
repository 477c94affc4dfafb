// The step that rules repair, and all rules in their order. See rules.h.
#include "tools/explain/rules.h"

#include <algorithm>
#include <utility>

namespace precbench {

StepRepairs::StepRepairs(const TrainingTrace& trace_, Explanation& all_, const Expectation* expectation)
    : trace(trace_),
      all(all_),
      work(all_.steps.step),
      gaps(all_.gaps),
      expected(expectation),
      items(replay_items(trace_, all_.steps.step, all_.steps.waits_at_end)),
      remaining(items),
      host_share(host_share_of(trace_, work)),
      now(time_of(items)) {
  all.unprofiled = now;
}

bool StepRepairs::add(Finding finding, double predicted) {
  finding.predicted = predicted;
  finding.lost = now - predicted;
  if (finding.lost < kLeastLoss * now) return false;
  all.findings.push_back(std::move(finding));
  return true;
}

void StepRepairs::add(Finding finding, const ReplayItems& repaired, bool host) {
  if (!add(std::move(finding), time_of(repaired)) || !host) return;
  for (std::size_t i = 0; i < items.size(); ++i) {
    ReplayItem& left = remaining[i];
    left.host = std::min(left.host, repaired[i].host);
    left.hole = std::min(left.hole, repaired[i].hole);
    left.compile = std::min(left.compile, repaired[i].compile);
    left.duration = std::min(left.duration, repaired[i].duration);
    left.gap = std::min(left.gap, repaired[i].gap);
    left.waits = left.waits && repaired[i].waits;
    left.removed = left.removed || repaired[i].removed;
  }
}

ReplayItems StepRepairs::with_gemms(const std::map<GemmShape, double>& factors) const {
  return scaled([&](const Work& kernel) {
    const auto found = kernel.gemm ? factors.find(*kernel.gemm) : factors.end();
    return found == factors.end() ? 1.0 : found->second;
  });
}

void remove_launch(ReplayItem& item) {
  item.host = item.duration = item.gap = 0;
  item.removed = true;
}

void find_lost_time(const TrainingTrace& trace, Explanation& all, const Expectation* expectation) {
  StepRepairs step(trace, all, expectation);
  // The last two look for the waiting for the host that the repairs of others leave.
  for (const auto rule : {find_recompilation, find_waiting, find_copies, find_not_fused, find_optimizer,
                          find_attention, find_wide_gemms, find_alignment, find_unconverted, find_small_gemms,
                          find_collectives, find_small_batch, find_graph_breaks, find_launch_bound})
    rule(step);
  std::stable_sort(all.findings.begin(), all.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.lost > b.lost; });
}

}  // namespace precbench
