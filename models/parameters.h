// One rank's weights, master weights, gradients and moments, as flat buffers over a Layout, and the three
// calls by which the model uses them whatever the parallel strategy:
//   gather(unit)     the unit's BF16 weights, whole          one rank, DDP: a view   FSDP: all-gather of the
//   shards gradients(unit)  where backward writes the unit's gradient reduce(unit)     that gradient is
//   complete               DDP: all-reduce         FSDP: reduce-scatter
// Under FSDP blocks take turns in two buffers, so that a gather can overlap the block before.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/comm/comm.h"
#include "kernels/device.h"
#include "kernels/memory.h"
#include "models/layout.h"

namespace precbench {

enum class Parallel : std::uint8_t { ddp, fsdp };
/// What is updated: an FP32 master that the BF16 weights are rounded from, or the BF16 weights themselves,
/// rounded to nearest or stochastically.
enum class Master : std::uint8_t { fp32, bf16, bf16_sr };

struct ParameterOptions {
  Parallel parallel = Parallel::ddp;
  Master master = Master::fp32;
  DType weights = DType::bf16;  ///< f32: the FP32 reference model of the tests
  DType moments = DType::f32;
  DType gradients = DType::f32;
  int accumulation = 1;  ///< micro-steps whose gradients are summed before an optimizer step
};

class Parameters {
 public:
  Parameters(Device& device, Comm& comm, Arena& arena, const ModelConfig& config,
             const ParameterOptions& options);

  const Layout& layout() const { return layout_; }
  const ParameterOptions& options() const { return options_; }

  // ---- for the model
  /// To be called before the first micro-step of every optimizer step.
  void begin_step();
  void begin_micro_step(int micro_step);
  Tensor gather(int unit);
  Tensor gradients(int unit);
  /// To be called before a gradient is written: takes the lent buffer back from there to its end. Backward
  /// must finish tensors in descending order of address.
  void claim(const Tensor& gradient);
  /// Whether backward must add to gradients(unit) instead of overwriting it.
  bool accumulates() const { return !sharded() && micro_step_ > 0; }
  void reduce(int unit);

  // ---- for the optimizer: this rank's part of a unit. `master` is empty where the weights are their own.
  struct Shard {
    Tensor weights, master, m, v, gradient;
    std::vector<Run> runs;
    std::int64_t model_offset = 0;  ///< of the shard's first element
  };
  Shard shard(int unit) const;
  bool sharded() const { return layout_.pieces() > 1; }
  Comm& comm() { return comm_; }

  // ---- in and out
  /// Matrices ~ N(0, std), gains 1, moments 0. The same numbers whatever the sharding.
  void initialize(std::uint64_t seed, float std);
  enum class Kind : std::uint8_t { weights, gradients };
  /// Calls `read(parameter, values)` for every parameter that this rank holds a part of; values, all of
  /// them, to be filled in FP32 [size]. Moments start at 0.
  void load(const std::function<void(const Parameter&, float*)>& read);
  /// Calls `write(parameter, values)` in FP32 for every parameter, on every rank (a collective). Weights come
  /// from the master where there is one.
  void save(Kind kind, const std::function<void(const Parameter&, const float*)>& write);

  /// A hash of every parameter's bits on this rank (of the master where there is one), in layout order.
  std::vector<std::uint64_t> fingerprints();

 private:
  /// Which of the edge buffers: embedding and head have one each, or share one when tied.
  int edge(int unit) const { return unit == layout_.embedding_unit() ? 0 : 1; }
  int piece() const { return sharded() ? comm_.rank() : 0; }
  Tensor local(const Tensor& flat, int unit) const;

  Device& device_;
  Comm& comm_;
  Arena& arena_;
  ModelConfig config_;
  ParameterOptions options_;
  Layout layout_;
  Tensor weights_, master_, m_, v_, gradient_;     // flat, one shard of every unit
  Tensor block_buffers_[2], edge_buffers_[2];      // FSDP: whole units' weights
  Tensor block_gradients_[2], edge_gradients_[2];  // FSDP: whole units' gradients
  Tensor hash_;         // i32 [2]: of fingerprints; here so that a run needs no more memory than its dry run
  Tensor reduced_;      // FSDP with accumulation: a reduced shard before it is added
  bool lends_ = false;  // the gradient buffer is lent to the arena's stack
  int micro_step_ = 0;
};

}  // namespace precbench
