// Sums the accounts of a dry run. See dry_record.h.
#include "bench/measure/dry_record.h"

#include <algorithm>

#include "bench/case/supported.h"
#include "bench/measure/predict.h"
#include "bench/measure/record_builder.h"
#include "kernels/base/errors.h"

namespace precbench {
namespace {

/// Adds `op` to the entry of its name and class.
void add_op(Breakdown& breakdown, const OpCost& op) {
  const std::string op_class = name_of(op.op_class);
  auto known = std::find_if(breakdown.ops.begin(), breakdown.ops.end(), [&](const OpRecord& one) {
    return one.name == op.name && one.op_class == op_class;
  });
  if (known == breakdown.ops.end())
    known = breakdown.ops.insert(known, OpRecord{.name = op.name, .op_class = op_class});
  ++known->calls;
  known->flops += op.flops;
  known->bytes += op.bytes;
}

Communication communication_of(const Breakdown& breakdown) {
  Communication communication;
  communication.backend = "dry";
  for (const OpRecord& op : breakdown.ops) {
    if (op.op_class != name_of(OpClass::communication)) continue;
    communication.collectives.push_back({op.name, op.calls, 0, op.bytes, std::nullopt});
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
  if (plan.refusal) return cannot_run(*plan.refusal);
  if (const auto why = unsupported_reason(plan)) return cannot_run(*why);
  set_model_size(record, plan);
  record.training.emplace().tokens_per_step = plan.tokens_per_step();
  try {
    const DryRun accounts = dry_run(plan, nullptr);
    record.memory = Memory{memory_segments(accounts.highest, accounts.most()), std::nullopt, std::nullopt};
    Breakdown& breakdown = record.breakdown.emplace();
    for (const OpCost& op : accounts.ops) add_op(breakdown, op);
    if (plan.ranks > 1) record.communication = communication_of(breakdown);
  } catch (const Unsupported& error) {
    return cannot_run(error.what());
  } catch (const OutOfMemory& error) {
    return cannot_run(error.what());
  }
  return record;
}

}  // namespace precbench
