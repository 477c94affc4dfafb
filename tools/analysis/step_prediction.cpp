// Sums times of ops and collectives. See step_prediction.h.
#include "tools/analysis/step_prediction.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "results/record/step_time.h"

namespace precbench {
namespace {

/// Returns the quantity that an op's time is proportional to.
double amount_of(const OpRecord& op) { return op.flops > 0 ? op.flops : op.bytes; }

}  // namespace

std::optional<double> predicted_on_one_gpu(const Record& record, const std::vector<const Record*>& others) {
  if (!record.breakdown) return std::nullopt;
  struct Total {
    double amount = 0, ms = 0;
  };
  std::map<std::pair<std::string, std::string>, Total> totals;
  double idle_ms = 0;
  std::int64_t calls = 0;
  for (const Record* other : others) {
    if (!other->breakdown) continue;
    idle_ms += other->breakdown->idle_ms;
    for (const OpRecord& op : other->breakdown->ops) {
      calls += op.calls;
      Total& total = totals[{op.name, op.op_class}];
      total.amount += amount_of(op);
      total.ms += op.ms;
    }
  }
  double ms = 0;
  for (const OpRecord& op : record.breakdown->ops) {
    const auto total = totals.find({op.name, op.op_class});
    if (total == totals.end() || total->second.amount <= 0) return std::nullopt;
    ms += amount_of(op) * total->second.ms / total->second.amount;
    ms += static_cast<double>(op.calls) * idle_ms / static_cast<double>(calls);
  }
  return ms;
}

std::optional<ScaledStep> predicted_on_several_gpus(const Record& record, const Record& single,
                                                    double shards) {
  const auto single_ms = step_ms_of_speed(single);
  if (!single.breakdown || !single_ms || !record.communication) return std::nullopt;
  ScaledStep step;
  for (const CollectiveRecord& c : record.communication->collectives) {
    if (!c.bus_gb_per_s || *c.bus_gb_per_s <= 0) return std::nullopt;
    step.communication_ms += c.wire_bytes / *c.bus_gb_per_s / 1e6;
  }
  step.ms =
      *single_ms - single.breakdown->optimizer_ms * (1 - 1.0 / shards) + kHiddenCost * step.communication_ms;
  return step;
}

}  // namespace precbench
