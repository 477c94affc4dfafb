// Traces of layouts. The dry run traces one of the tensor, context and data ranks as it would run (traced_plan()). What
// no step has is derived by rule: a sharded optimizer, overlapped traffic, and tensor ranks of models whose step does not
// divide its matrices, with sequence parallelism.
//
// For these the dry run is of one of the data and context ranks, with a model of its share of the heads, of the FFN and of
// the vocabulary. Here the trace gets what it lacks, in the order of a step of tensor ranks:
//
//   norm [M/t] -> all-gather -> qkv, gate_up [columns / t] -> ... -> o, down [rows / t] -> reduce-scatter
//
// forward 4 collectives of a block, backward 6 (gradients gathered and scattered twice each, the norm's output
// gathered twice for weight gradients, beside dgrad where traffic overlaps); norms work on M/t rows; quantized copies are
// made of gathered rows, or, with one scale per tensor, before the gather, which then moves FP8.
//
// Experts are divided among consecutive ranks of tensor, context and data together. A rank routes the M/t rows that
// its norm leaves it: there is no gather before the router and no scatter after the experts, but an all-to-all with
// the ranks that share the experts. Their part of the trace comes from a second dry run, of ranks with M/t rows and
// all heads.
#pragma once

#include <cstdint>

#include "bench/case/plan.h"
#include "bench/predict/trace.h"

namespace precbench {

/// Ranks of each axis, innermost first in the order of GPUs: tensor, context, data, pipeline.
struct ParallelLayout {
  int tensor = 1, context = 1, data = 1, pipeline = 1;
  int interleave = 1;  ///< groups of layers per pipeline stage
  /// Consecutive ranks of tensor, context and data that share a block's experts and exchange rows by all-to-all; 1: as
  /// the case says.
  int experts = 1;
  bool tensor_fp8 = true;  ///< tensor ranks gather FP8 data where a cast has one scale
  /// Tensor collectives run beside the GEMM that needs or makes their data; false: between the two.
  bool tensor_overlap = false;
  /// Keys and values arrive beside the attention; false: before it.
  bool context_overlap = false;
  /// Ranks with replicas of weights share their optimizer (ZeRO-1): gradients are reduce-scattered, updated weights
  /// gathered in BF16. Replicas are all data and context ranks (ddp), the groups of hsdp, and of experts the ranks that
  /// hold the same ones.
  bool sharded_optimizer = false;

  int ranks() const { return tensor * context * data * pipeline; }
  /// Number of data and context ranks of one stage.
  int traced_ranks() const { return context * data; }
  /// Returns true if tensor ranks share experts, so that a rank's rows differ inside and outside of them.
  bool divides_expert_rows() const { return tensor > 1 && experts > 1; }
};

/// How much of a block's forward pass runs again in backward, as fractions.
struct RecomputeShare {
  double blocks = 0;     ///< of all blocks
  double gemms = 1;      ///< of the GEMM work of such a block
  double attention = 1;  ///< of its attention

  /// Returns true if some blocks recompute and others do not.
  bool is_partial() const { return blocks > 0 && blocks < 1; }
  /// Return what such blocks need, seconds or bytes, from what they need if all of them recompute and if none does.
  double mixed(double all, double none) const { return all * blocks + none * (1 - blocks); }
  std::int64_t mixed(std::int64_t all, std::int64_t none) const {
    return static_cast<std::int64_t>(mixed(static_cast<double>(all), static_cast<double>(none)));
  }
};

/// Returns a case whose blocks do not recompute.
Case without_recompute(Case c);

/// Returns the plan whose dry run is traced: that of a step of tensor ranks where precbench has one that exchanges as the
/// layout says, local_plan() elsewhere. Arguments and errors as there.
Plan traced_plan(const Case& c, const ModelConfig& model, const ParallelLayout& layout);
/// Returns what the trace of `plan`, a traced_plan(), lacks of the layout: all but tensor ranks of a step of their own.
ParallelLayout lacking(ParallelLayout layout, const Plan& plan);

/// Returns the plan of one rank's share: `c` has the model, global sequence length and micro-batch; `gpus` and `context`
/// become those of the layout. Throws InvalidInput if tensor ranks do not divide the heads, context ranks the sequence,
/// or the ranks that share experts the experts.
Plan local_plan(Case c, const ModelConfig& model, const ParallelLayout& layout);
/// Returns the plan whose trace has the experts' part for divides_expert_rows().
Plan expert_plan(Case c, const ModelConfig& model, const ParallelLayout& layout);

/// Adds tensor parallelism, unless it is there, and the sharded optimizer to the trace of traced_plan(), lets the exchange
/// of keys overlap as the layout says, and scales what runs again in backward. `experts`: the trace of expert_plan(),
/// required for divides_expert_rows().
Trace parallel_trace(const Trace& local, const Plan& plan, const ParallelLayout& layout,
                     const RecomputeShare& recompute = {}, const Trace* experts = nullptr);

/// Returns among how many ranks a sharded optimizer divides a traced rank's state: the mean over its parameters.
/// Experts have fewer replicas than replicated weights, and weights that FSDP shards have none.
double optimizer_shards(const Plan& plan, const ParallelLayout& layout);

}  // namespace precbench
