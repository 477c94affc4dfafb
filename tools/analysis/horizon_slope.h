// The slope S = -dL/d ln(tokens) of BF16's loss at the horizon of a planned run, from the reader's own runs or
// from a published law.
//
// Own runs are fitted by L = E + b / D^beta, D tokens, with the exponent beta of the published law, so that S
// at the horizon T is beta b / T^beta. What is fitted:
//   - the end losses of two or more runs of different lengths, each with its learning rate's decay;
//   - else one run's part at a constant learning rate, its second half; equally long runs are averaged;
//   - else the second half of one run, with a warning: while the rate decays, the loss also falls by the decay.
// The slope of a short, young run itself is never used: at 800 steps it is 30 to 80 times as steep.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "results/record/statistics.h"
#include "tools/analysis/token_cost.h"

namespace precbench {

/// The loss curve of one BF16 run. The series have equal lengths; `rate` may be empty if it is unknown.
struct BaseRun {
  std::string name;
  std::vector<double> tokens, loss, rate;  ///< tokens seen, ascending; nats; learning rate
};

struct HorizonSlope {
  MeanWithInterval slope;  ///< nats per factor e of tokens, with its 95% interval
  std::string source;      ///< "2 runs of 10B and 40B tokens", "law of Besiroglu et al. 2024 (...)"
  std::vector<std::string> warnings;  ///< one sentence each
};

/// Returns the law's slope, as exactly known.
HorizonSlope slope_of_law(const ScalingLaw& law, double horizon);

/// Returns the slope at the horizon from one or more runs. Throws InvalidInput if the runs are too short to
/// fit, or if their losses do not fall significantly with tokens.
HorizonSlope slope_of_runs(const std::vector<BaseRun>& runs, double horizon,
                           const ScalingLaw& law = kBesiroglu2024);

}  // namespace precbench
