// Stubs of targets that read cases and predict none: the optimizer table, the plan of a sensitivity probe and the tables of
// rules reference functions that they never call.
#include <cstdlib>

#include "bench/case/rules.h"
#include "bench/machine/verification.h"
#include "models/transformer/optimizer/update_rules.h"

namespace precbench {

void adamw_update(const UpdateContext&, int) { std::abort(); }
void lion_update(const UpdateContext&, int) { std::abort(); }
void adafactor_update(const UpdateContext&, int) { std::abort(); }
void muon_update(const UpdateContext&, int) { std::abort(); }
void adafactor_scalars(const OptimizerOptions&, double, StepScalars&) { std::abort(); }

std::optional<std::string> layers_unsupported_reason(const Plan&, const ConvertedLayers&) { std::abort(); }
std::span<const Rule> support_rules() { std::abort(); }
std::int64_t Plan::flops_per_token() const { std::abort(); }

}  // namespace precbench
