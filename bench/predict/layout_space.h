// The question that a search of layouts answers, and the space of values that it tries.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bench/case/plan.h"
#include "bench/machine/machine.h"

namespace precbench {

/// Values that a search tries, by field of the case. Combinations that cannot be are left out.
struct LayoutSpace {
  std::vector<std::int64_t> tensor, context, pipeline, virtual_stages, batch, ep;
  std::vector<std::string> parallel, shard_optimizer, reshard, grad_sync, recompute, gather;
  std::vector<std::int64_t> shard_group;  ///< of hsdp
};

/// Fields of a case that a search sets (LayoutSpace), but for `accumulation`, `exchange` and `slots`, which follow.
inline constexpr const char* kSearchedFields[] = {
    "batch",  "parallel",        "shard_group", "context",   "tensor",    "pipeline", "virtual_stages",
    "gather", "shard_optimizer", "reshard",     "grad_sync", "recompute", "ep"};
bool is_searched(std::string_view field);

struct LayoutQuestion {
  /// Model, recipe, gpus, seq, overlap, dtypes of states. The search sets kSearchedFields.
  Case c;
  std::int64_t global_batch = 0;  ///< sequences of a step
  std::int64_t memory = 0;        ///< bytes that a rank may need
  std::size_t proposals = 3;
  /// Values that a user gave of searched fields, as stored in a case: the search tries these alone.
  std::map<std::string, std::vector<std::string>> given = {};
};

/// Returns the values tried by default: powers of two, tensor ranks within an NVLink domain, and numbers of stages that
/// divide the GPUs.
LayoutSpace layout_space(const LayoutQuestion& question, const ModelConfig& model, const Machine& machine);

/// Replaces the values of searched fields by those that the user gave.
void restrict_space(LayoutSpace& space, const LayoutQuestion& question);

}  // namespace precbench
