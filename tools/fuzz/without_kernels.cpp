// Stubs for functions that the optimizer table and the plan of a sensitivity probe reference but no fuzz
// target calls: targets read cases and run none, so kernels are not linked.
#include <cstdlib>

#include "bench/case/supported.h"
#include "models/transformer/flops.h"
#include "models/transformer/optimizer/update_rules.h"

namespace precbench {

void adamw_update(const UpdateContext&, int) { std::abort(); }
void lion_update(const UpdateContext&, int) { std::abort(); }
void adafactor_update(const UpdateContext&, int) { std::abort(); }
void muon_update(const UpdateContext&, int) { std::abort(); }
void adafactor_scalars(const OptimizerOptions&, double, StepScalars&) { std::abort(); }

std::optional<std::string> layers_unsupported_reason(const Plan&, const ConvertedLayers&) { std::abort(); }
FlopCount flops_per_token(const ModelConfig&, std::int64_t, FlopConvention) { std::abort(); }

}  // namespace precbench
