// Adds doubts before removing values, because they are about the measurement as it was. See finish_row.h.
#include "bench/sweep/finish_row.h"

#include <algorithm>
#include <utility>

#include "bench/machine/environment.h"
#include "kernels/base/errors.h"
#include "results/record/readable_record.h"
#include "results/record/step_time.h"

namespace precbench {

Record finish_row(const Plan& plan, Record record) {
  for (const std::string& doubt : speed_doubts(record))
    if (!std::count(record.warnings.begin(), record.warnings.end(), doubt)) record.warnings.push_back(doubt);
  try {
    return readable_record(record);
  } catch (const InvalidInput& error) {
    Record failed = failed_record(plan, Status::crashed, error.what());
    failed.study = plan.study;
    return failed;
  }
}

}  // namespace precbench
