// Sums the accounts of a dry run. See dry_record.h.
#include "bench/measure/dry_record.h"

#include <algorithm>
#include <vector>

#include "bench/case/plan.h"
#include "bench/measure/record_builder.h"
#include "bench/predict/op_record.h"
#include "bench/predict/predict.h"
#include "kernels/base/errors.h"

namespace precbench {
namespace {

Communication communication_of(const Breakdown& breakdown) {
  Communication communication;
  communication.backend = "dry";
  std::vector<CollectiveRecord>& collectives = communication.collectives;
  for (const OpRecord& op : breakdown.ops) {
    if (op.op_class != name_of(OpClass::communication)) continue;
    auto known = std::find_if(collectives.begin(), collectives.end(),
                              [&](const CollectiveRecord& one) { return one.name == op.name; });
    if (known == collectives.end())
      known = collectives.insert(known, CollectiveRecord{op.name, 0, 0, 0, std::nullopt});
    known->calls += op.calls;
    known->wire_bytes += op.bytes;
    communication.wire_bytes += op.bytes;
  }
  communication.predicted_wire_bytes = communication.wire_bytes;
  return communication;
}

}  // namespace

Record dry_record(const Plan& plan) {
  Record record = start_record(plan);
  const auto cannot_run = [&](const std::string& why) {
    record.status = Status::unsupported;
    record.error = why;
    return record;
  };
  if (const auto why = unsupported_reason(plan)) return cannot_run(*why);
  set_model_size(record, plan);
  record.training.emplace().tokens_per_step = plan.tokens_per_step();
  try {
    const DryRun accounts = dry_run(plan, nullptr);
    record.memory = Memory{memory_segments(accounts.highest, accounts.most()), std::nullopt, std::nullopt};
    Breakdown& breakdown = record.breakdown.emplace();
    for (const CountedOp& op : accounts.trace.counted())
      breakdown.ops.push_back(op_record(op.cost, op.calls, 0));
    if (plan.ranks > 1) record.communication = communication_of(breakdown);
  } catch (const Unsupported& error) {
    return cannot_run(error.what());
  } catch (const OutOfMemory& error) {
    return cannot_run(error.what());
  }
  return record;
}

}  // namespace precbench
