// Runs the probes one after the other. See probes.h.
#include "bench/measure/probes.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "bench/measure/bus_bandwidth.h"
#include "bench/measure/measured_rates.h"
#include "bench/measure/quantization.h"
#include "bench/step/measure_sensitivity.h"
#include "kernels/base/errors.h"
#include "kernels/gpu/device_info.h"

namespace precbench {

std::optional<std::int64_t> bytes_for_arena(const Plan& plan, const NodeShare& share) {
  if (!plan.on_gpu || plan.fields.fidelity_batches == 0) return std::nullopt;
  // Upper bound for NCCL's buffers and cuBLASLt's kernels.
  constexpr std::int64_t kLibraries = std::int64_t{4} << 30;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < share.local; ++i) least = std::min(least, gpu_memory(share.first_gpu + i).free_bytes);
  return least - kLibraries;
}

void probe_fidelity(Rank& rank, const Plan& plan, const DataSource& data, ReferencePlace place,
                    RecordBuilder& builder, StepBoard* board) {
  if (plan.fields.fidelity_batches == 0) return;
  if (board) board->note_work(rank.comm().rank(), "the fidelity probe");
  std::vector<Fidelity> fidelity = measure_fidelity(rank, plan, data, place);
  std::optional<SensitivityRecord> sensitivity;
  if (!plan.sensitivity.empty()) {
    if (board) board->note_work(rank.comm().rank(), "the sensitivity of the loss");
    sensitivity = measure_sensitivity(rank, plan, data, place);
  }
  rank.parameters().release_gradients();
  rank.arena().restart_accounts();
  if (rank.comm().rank() != 0) return;
  builder.add_fidelity(std::move(fidelity));
  if (sensitivity) builder.add_sensitivity(*std::move(sensitivity));
}

void run_probes(Rank& rank, StepRunner& runner, std::int64_t step, const Plan& plan,
                const std::vector<CollectiveCount>& collectives, RecordBuilder& builder, StepBoard* board) {
  const bool first = rank.comm().rank() == 0;
  const auto note = [&](const char* what) {
    if (board) board->note_work(rank.comm().rank(), what);
  };
  note("the profiled step");
  const StepProfiler::Result profile = runner.profile(step);
  if (plan.ranks > 1 && plan.on_gpu) {
    note("the collectives alone");
    rank.parameters().release_gradients();
    const auto rates = bus_bandwidths(rank.device(), rank.arena(), rank.parameters().comms(), collectives);
    if (first) builder.add_bus_rates(rates);
  }
  QuantizationStatistics statistics(rank.device(), rank.arena(), plan);
  if (plan.recipe.quantized()) {
    rank.transformer().set_quantization_observer(&statistics);
    note("the quantization statistics");
    rank.use_layers_of(plan.later.empty() ? step : plan.later.front().from - 1);  // uses the first recipe
    rank.forward_backward();
    rank.parameters().complete_all();
    rank.transformer().set_quantization_observer(nullptr);
  }
  if (!first) return;
  builder.add_breakdown(profile);
  builder.add_quantization(statistics.result());
  builder.add_flow(profile, statistics.conversions());
}

std::optional<OpRates> probe_gpu(const Plan& plan, const NodeShare& share, const Record& record,
                                 RecordBuilder& builder, StepBoard* board) {
  if (!record.env.gpu || record.support->path() != ExecutionPath::native) return std::nullopt;
  if (share.beside_others)
    return std::nullopt;  // seconds of work of every case, for rates that would be too low
  for (int rank = share.first; board && rank < share.first + share.local; ++rank)
    board->note_work(rank, "the GPU's rates");
  try {
    return measure_rates(*make_gpu_device(share.first_gpu), plan.recipe);
  } catch (const OutOfMemory& error) {
    builder.warn({fmt::format("the GPU's own rates were not measured: {}", error.what())});
    return std::nullopt;
  }
}

}  // namespace precbench
