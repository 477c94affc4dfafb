// Dry runs and what is read off their books. See predict.h.
#include "bench/predict.h"

#include <algorithm>

#include "bench/peaks.h"
#include "bench/rank.h"
#include "bench/session.h"
#include "kernels/cuda/device_info.h"
#include "kernels/devices.h"
#include "models/flops.h"

namespace precbench {
namespace {

class Books final : public OpObserver {
 public:
  void begin(const OpCost& cost) override { ops.push_back(cost); }
  void end(const OpCost&) override {}
  std::vector<OpCost> ops;
};

}  // namespace

double DryRun::model_flops() const {
  double total = 0;
  for (const OpCost& op : ops) total += op.flops;
  return total;
}

DryRun dry_run(const Plan& plan, const Device* device) {
  const std::unique_ptr<Device> dry = make_dry_device(device);
  const std::unique_ptr<Comm> comm = make_dry_comm(0, plan.ranks);
  constexpr std::int64_t kUnlimited = std::int64_t{1} << 55;
  Rank rank(*dry, *comm, plan, dry->allocate(kUnlimited), kUnlimited);
  Books books;
  dry->set_observer(&books);
  comm->set_observer(&books);
  rank.enqueue();
  return {rank.arena().peak(), rank.arena().highest(), rank.arena().peak_extent(), std::move(books.ops)};
}

MemorySegments memory_segments(const MemoryUse& highest, std::int64_t peak) {
  const auto of = [&](Segment segment) { return highest.bytes[static_cast<int>(segment)]; };
  MemorySegments m;
  m.weights = of(Segment::weights);
  m.quantized_weights = of(Segment::quantized_weights);
  m.master = of(Segment::master);
  m.gradients = of(Segment::gradients);
  m.moments = of(Segment::moments);
  m.activations = of(Segment::activations);
  m.workspace = of(Segment::workspace);
  m.communication = of(Segment::communication);
  m.other = of(Segment::other);
  m.total = highest.total();
  m.peak = peak;
  return m;
}

double speed_of_light(const std::vector<OpCost>& ops, const OpPeaks& peaks) {
  double seconds = 0;
  for (const OpCost& op : ops) {
    if (op.op_class == OpClass::communication) continue;
    const double rate = op.math == DType::bf16 ? peaks.bf16_flops : peaks.fp8_flops;
    seconds += std::max(op.flops / rate, op.bytes / peaks.bytes);
  }
  return seconds;
}

int visible_gpus() { return find_gpus().count; }

Prediction predict(const Case& c) {
  const Plan plan = make_plan(c);
  Prediction p;
  const double per_token = static_cast<double>(flops_per_token(plan.model, plan.T).total());
  p.flops_per_token = per_token;
  p.flops_per_step = per_token * static_cast<double>(plan.tokens_per_step());
  p.unsupported = plan.why_unsupported();
  if (!p.unsupported.empty()) return p;
  const DryRun books = dry_run(plan, nullptr);
  p.memory = memory_segments(books.highest, books.peak.total());
  if (c.device == "cuda" && visible_gpus() > 0) {
    const std::optional<Peak> peak = dense_peaks(gpu_properties(0).name);
    if (peak && peak->fp8_tflops)
      p.seconds_per_step = speed_of_light(
          books.ops, {peak->bf16_tflops * 1e12, *peak->fp8_tflops * 1e12, peak->memory_gb_per_s * 1e9});
  }
  return p;
}

}  // namespace precbench
