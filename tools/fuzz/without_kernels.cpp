// Stubs: targets read cases and run none, so kernels are not linked. The optimizer table and the plan of a
// sensitivity probe reference functions that no target calls; `--recipe native` asks for a device and is refused.
#include <cstdlib>

#include "bench/case/plan.h"
#include "bench/case/supported.h"
#include "bench/machine/verification.h"
#include "kernels/base/errors.h"
#include "kernels/device/devices.h"
#include "models/transformer/optimizer/update_rules.h"

namespace precbench {

void adamw_update(const UpdateContext&, int) { std::abort(); }
void lion_update(const UpdateContext&, int) { std::abort(); }
void adafactor_update(const UpdateContext&, int) { std::abort(); }
void muon_update(const UpdateContext&, int) { std::abort(); }
void adafactor_scalars(const OptimizerOptions&, double, StepScalars&) { std::abort(); }

std::optional<std::string> layers_unsupported_reason(const Plan&, const ConvertedLayers&) { std::abort(); }
std::unique_ptr<Device> make_cpu_device(int) { throw InvalidInput("fuzz targets have no device"); }
std::unique_ptr<Device> open_gpu(int, const GpuOptions&) {
  throw InvalidInput("fuzz targets have no device");
}
std::int64_t Plan::flops_per_token() const { std::abort(); }

}  // namespace precbench
