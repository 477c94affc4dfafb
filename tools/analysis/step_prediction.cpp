// Sums times of ops and collectives. See step_prediction.h.
#include "tools/analysis/step_prediction.h"

#include <algorithm>
#include <cmath>

#include "results/record/step_time.h"

namespace precbench {
namespace {

/// Returns the quantity that an op's time is proportional to.
double amount_of(const OpRecord& op) { return op.flops > 0 ? op.flops : op.bytes; }

/// Returns the amount of one call; null for an op that does nothing.
std::optional<double> size_of(const OpRecord& op) {
  const double amount = amount_of(op);
  if (op.calls < 1 || !(amount > 0)) return std::nullopt;
  return amount / static_cast<double>(op.calls);
}

constexpr const char* kCollectives = "communication";

}  // namespace

std::vector<OpRecord> ops_of_all_shapes(const Breakdown& breakdown) {
  std::vector<OpRecord> sums;
  for (const OpRecord& op : breakdown.ops) {
    auto known = std::find_if(sums.begin(), sums.end(), [&](const OpRecord& one) {
      return one.name == op.name && one.op_class == op.op_class;
    });
    if (known == sums.end()) known = sums.insert(known, OpRecord{.name = op.name, .op_class = op.op_class});
    known->calls += op.calls;
    known->ms += op.ms;
    known->flops += op.flops;
    known->bytes += op.bytes;
  }
  return sums;
}

OpRateTable::OpRateTable(const std::vector<const Record*>& steps) {
  for (const Record* step : steps) {
    if (!step->breakdown) continue;
    idle_ms_ += step->breakdown->idle_ms;
    for (const OpRecord& op : ops_of_all_shapes(*step->breakdown)) {
      calls_ += static_cast<double>(op.calls);
      const auto size = size_of(op);
      if (!size || !(op.ms > 0) || op.op_class == kCollectives) continue;
      ops_[{op.name, op.op_class}].push_back({*size, amount_of(op), op.ms});
      if (op.flops > 0) continue;
      memory_bound_.amount += op.bytes;
      memory_bound_.ms += op.ms;
    }
  }
}

std::optional<double> OpRateTable::near_ms(const OpRecord& op) const {
  const auto size = size_of(op);
  if (!size) return 0;
  const auto distance = [&](const Measured& one) { return std::fabs(std::log(one.size / *size)); };
  std::vector<Measured> near;
  if (const auto known = ops_.find({op.name, op.op_class}); known != ops_.end())
    for (const Measured& one : known->second)
      if (distance(one) <= std::log(kNearSize)) near.push_back(one);
  std::stable_sort(near.begin(), near.end(),
                   [&](const Measured& a, const Measured& b) { return distance(a) < distance(b); });
  if (near.size() > kNearestOps) near.resize(kNearestOps);
  if (near.empty()) return std::nullopt;
  Measured total;
  for (const Measured& one : near) {
    total.amount += one.amount;
    total.ms += one.ms;
  }
  return amount_of(op) * total.ms / total.amount;
}

std::optional<double> OpRateTable::ms(const OpRecord& op) const {
  if (const auto near = near_ms(op)) return near;
  if (op.flops > 0 || !(memory_bound_.ms > 0)) return std::nullopt;
  return op.bytes * memory_bound_.ms / memory_bound_.amount;
}

std::optional<double> predicted_compute_ms(const Record& record, const OpRateTable& rates) {
  if (!record.breakdown) return std::nullopt;
  double ms = 0;
  for (const OpRecord& op : ops_of_all_shapes(*record.breakdown)) {
    if (op.op_class == kCollectives) continue;
    const auto own = rates.ms(op);
    if (!own) return std::nullopt;
    ms += *own + static_cast<double>(op.calls) * rates.gap_ms();
  }
  return ms;
}

std::optional<double> predicted_on_one_gpu(const Record& record, const std::vector<const Record*>& others) {
  return predicted_compute_ms(record, OpRateTable(others));
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
