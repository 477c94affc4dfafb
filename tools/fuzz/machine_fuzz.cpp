// Fuzzes a machine file (`--on FILE`): the step of a small model on eight GPUs is predicted for every machine that is
// read, as `sweep --dry-run --on FILE` does.
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/case/case.h"
#include "bench/predict/cost_model.h"
#include "bench/predict/predict.h"
#include "kernels/base/untrusted_input.h"
#include "tools/fuzz/fuzz.h"

using namespace precbench;

namespace {

/// Returns the trace of a step with every collective of data parallelism.
Trace small_trace() {
  Case c;
  c.device = "cuda", c.model = "tiny", c.recipe = "tensorwise", c.parallel = "fsdp";
  c.gpus = 8, c.seq = 64, c.batch = 1, c.accumulation = 2;
  return dry_run(validate(c, Refusals::thrown), nullptr).trace;
}

/// Returns some of the measured rates: an input need not read all of them.
Rates few_rates() {
  constexpr std::size_t kEvery = 100;
  Rates rates = *embedded_rates("h200");
  std::vector<RatePoint> few;
  for (std::size_t i = 0; i < rates.points.size(); i += kEvery) few.push_back(rates.points[i]);
  rates.points = std::move(few);
  return rates;
}

}  // namespace

PRECBENCH_FUZZ_TARGET(machine) {
  static const Trace trace = small_trace();
  static const Rates rates = few_rates();
  taken([&] {
    const Machine machine =
        machine_from_json(parse_description<nlohmann::json>(text_of(data, size)), "fuzzed", "machine");
    expect(usable_bytes(machine) > 0);
    const CostModel model(machine, rates, OpTimer(rates, peaks_of(machine)));
    const StepEstimate step = estimate_step(model, trace, 8);
    expect(step.seconds > 0 && std::isfinite(step.high()) && step.low() <= step.high());
  });
  return 0;
}
