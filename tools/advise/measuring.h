// The commands that check an advice on the reader's GPUs and text.
#pragma once

#include <string>
#include <vector>

#include "tools/advise/advice.h"

namespace precbench {

/// Most GPUs that the commands need.
inline constexpr double kMeasuredGpus = 4;

/// Returns at most two commands: the sweep that measures the speed of BF16 and the recommended recipe (or the best one, if
/// BF16 is recommended) on up to kMeasuredGpus, in a setting in which both fit, of fewer layers if need be; and the
/// study that measures what the recipe costs on the reader's text. `given`: fields that the reader fixed. Empty without a
/// recommendation, or if not even one layer fits.
std::vector<std::string> measuring_commands(const Advice& advice, const AdviseHost& host,
                                            const AdviseHost::Words& given);

}  // namespace precbench
