// What the table of optimizers names and no fuzz target calls: targets read cases and run none, so that kernels stay out.
#include <cstdlib>

#include "models/transformer/update_rules.h"

namespace precbench {

void adamw_update(const UpdateContext&, int) { std::abort(); }
void lion_update(const UpdateContext&, int) { std::abort(); }
void adafactor_update(const UpdateContext&, int) { std::abort(); }
void muon_update(const UpdateContext&, int) { std::abort(); }
void adafactor_scalars(const OptimizerOptions&, double, StepScalars&) { std::abort(); }

}  // namespace precbench
