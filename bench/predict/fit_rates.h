// Rates of ops from records: the times of the profiled step's ops, scaled so that they add up to the median
// step, because events around every op slow a profiled step down. See rates.h.
#pragma once

#include <string>
#include <vector>

#include "bench/machine/machine.h"
#include "bench/predict/rates.h"
#include "results/record/record.h"

namespace precbench {

/// Returns the ops of a measured step by shape. Ops of older records, which have no shapes, are divided among
/// the shapes that `counted`, the ops of the case's dry run, has for them, in proportion to their expected times; ops
/// whose calls differ from the dry run's, because the program has changed, are left out.
std::vector<OpRecord> ops_with_shapes(const std::vector<OpRecord>& measured,
                                      const std::vector<OpRecord>& counted, const OpPeaks& peaks);

struct FittedRates {
  Rates rates;
  std::vector<std::string> skipped;  ///< a line for each record that gives no rates
  std::vector<const Record*> used;   ///< the others
};

/// Returns the rates of the records that ran on one GPU of the machine's model, natively; of several records
/// of one case the latest counts.
FittedRates fit_rates(const Machine& machine, const std::vector<const Record*>& records);

}  // namespace precbench
