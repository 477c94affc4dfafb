// Rules of tensor and pipeline parallelism, of a sharded optimizer and of overlapped traffic, which this program predicts
// and does not run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "bench/case/plan.h"

namespace precbench {

/// Largest number of forward passes of all stages of a pipeline schedule, which are simulated one by one.
inline constexpr std::int64_t kMostPipelinePasses = std::int64_t{1} << 20;

/// Returns true for the fields of layouts that are only predicted.
bool is_layout_field(std::string_view name);

/// Returns true if a case has a flag of a layout that is only predicted.
bool is_predicted_only(const Case& c);

/// Returns true if several ranks hold the same optimizer state, which --shard-optimizer can divide: replicas of ddp and hsdp,
/// and ranks with the same experts.
bool has_optimizer_replicas(const Case& c, const ModelConfig& model);

/// Returns the flag that gives a case its Case::micro_steps().
const char* micro_steps_flag(const Case& c);

/// Returns why a case cannot run if is_predicted_only(), naming the flag and the command that predicts it.
std::optional<std::string> predicted_only_reason(const Case& c);

/// Throws InvalidInput with predicted_only_reason() of the first of these cases that has one.
void refuse_predicted_only(const std::vector<Plan>& cases);

/// Returns the rule that a layout of tensor and pipeline ranks breaks, with the nearest value that works where there is
/// one; null if it can be predicted. The rules of one rank's share are unsupported_reason()'s.
std::optional<std::string> layout_unsupported_reason(const Plan& plan);

}  // namespace precbench
