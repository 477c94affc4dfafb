// The CUDA device: every op of device.h on one NVIDIA GPU, compute capability 8.0 or newer.
//
// All work goes into one stream, so ops run in call order and may share one scratch buffer. Nothing here
// allocates once a step has run: plans and scratch are made in the first (warm-up) step, which is what lets the
// second be captured as a CUDA graph (graph.h).
//
// Each op is defined in the file with its name (do_swiglu in swiglu.cu, ...), beside the CPU file of that
// name. CUDA's headers are not needed to include this one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/gpu/device_info.h"

struct CUgraphExec_st;  // cudaGraphExec_t points to it
struct CUstream_st;     // cudaStream_t points to it

namespace precbench {

class MatmulPlans;      // matmul.cpp: plans by problem, the capability probe
struct RopeTables;      // rope.cu: cos and sin by sequence length and head size
struct AttentionState;  // attention.cpp: handles and plans, made by the first attention op

class CudaDevice final : public Device {
 public:
  /// Throws Unsupported where the GPU cannot be used (find_gpus() says why), InvalidInput for a bad ordinal.
  explicit CudaDevice(int ordinal);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::string name() const override { return "cuda"; }
  GemmSupport support(const GemmRecipe& gemm, GemmRole role) const override;
  std::string attention_name() const override;

  void* allocate(std::int64_t bytes) override;
  void deallocate(void* block) override;
  void upload(const Tensor& dst, const void* src) override;
  void download(void* dst, const Tensor& src) override;
  /// Throws what went wrong in any op before it. The message names the last op that was started; under
  /// CUDA_LAUNCH_BLOCKING=1 that is the op that failed.
  void synchronize() override;
  std::int64_t workspace_bytes() const override;

  // ---- for the ops and the step graph
  const GpuProperties& properties() const { return properties_; }
  int sm_count() const { return properties_.sm_count; }
  int compute_capability() const { return properties_.compute_capability; }  ///< 90 is 9.0
  CUstream_st* stream() const { return stream_; }

  /// A buffer for partial results of the op that asks, at least `bytes` long, 256-byte aligned, contents
  /// undefined; every op shares it, so one op asks once and divides it. It grows outside capture only:
  /// inside, a larger request than any before throws std::logic_error. Growing waits for the device.
  void* scratch(std::size_t bytes);

  /// Called by every op after its last launch: notes the name for later errors and throws a launch error now.
  void launched(const char* op);

  /// Everything run on stream() between the two becomes one executable graph, which the caller owns; graph.h
  /// wraps the three. abandon_capture() is for an exception in between.
  void begin_capture();
  CUgraphExec_st* end_capture();
  void abandon_capture();
  bool capturing() const { return capturing_; }

  /// Timing of GEMM candidates at first use; off: the heuristic's first answer. On by default.
  void set_autotune(bool on);
  /// A backward pass of attention whose additions are in a fixed order. Off by default.
  void set_deterministic(bool on) { deterministic_ = on; }
  bool deterministic() const { return deterministic_; }
  /// Who runs attention: "auto" (cuDNN where this build has it and it takes the shape, else our own kernels;
  /// the default), "cudnn" (Unsupported where it cannot) or "own". Throws InvalidInput for another word.
  void set_attention(const std::string& which);

 private:
  // elementwise.cu
  void do_zero(const Tensor& x) override;
  void do_convert(const Tensor& dst, const Tensor& src) override;
  void do_add(const Tensor& dst, const Tensor& src) override;
  void do_init_normal(const Tensor& x, float std, std::uint64_t seed, std::int64_t first_index) override;
  void do_fill(const Tensor& x, float value) override;
  void do_sum(const Tensor& out, const Tensor& x, bool accumulate) override;
  void do_fingerprint(const Tensor& out, const Tensor& x) override;
  // quantize.cu
  void do_quantize(QuantizedTensor& x, bool make_amax) override;
  void do_quantization_error(const Tensor& out, const Tensor& value, const GemmOperand& form,
                             bool columns) override;
  // fp8_weights.cu
  void do_amax(const Tensor& out, const Tensor& x) override;
  void do_quantize_with_amax(const GemmOperand& form, const Tensor& value, const Tensor& amax) override;
  void do_transpose(const GemmOperand& dst, const GemmOperand& src) override;
  void do_copy_columns(const Tensor& dst, std::int64_t first, const Tensor& src) override;
  // matmul.cpp
  void do_matmul(const Tensor& d, const GemmOperand& a, const GemmOperand& b,
                 const MatmulOptions& options) override;
  // embedding.cu
  void do_embedding(const Tensor& x, const Tensor& tokens, const Tensor& table) override;
  void do_embedding_backward(const Tensor& dtable, const Tensor& dx, const Tensor& tokens) override;
  // rmsnorm.cu
  void do_add_rmsnorm(QuantizedTensor& h, const Tensor& sum, const Tensor& rstd, const Tensor& x,
                      const Tensor& branch, const Tensor& weight, float eps) override;
  void do_recompute_rmsnorm(QuantizedTensor& h, const Tensor& sum, const Tensor& rstd,
                            const Tensor& weight) override;
  void do_rmsnorm_backward(QuantizedTensor& dx, const Tensor& dweight, bool accumulate,
                           const Tensor& dresidual, const Tensor& dh, const Tensor& x, const Tensor& rstd,
                           const Tensor& weight) override;
  // rope.cu
  void do_rope(const Tensor& out, const Tensor& qkv, const RopeOptions& options) override;
  void do_rope_backward(QuantizedTensor& dqkv, const Tensor& dq_norm, const Tensor& dk_norm, bool accumulate,
                        const Tensor& dout, const Tensor& qkv, const RopeOptions& options) override;
  // bias.cu
  void do_bias_backward(const Tensor& dbias, bool accumulate, const Tensor& dy) override;
  // attention.cpp; attention_name() and set_attention() too
  AttentionState& attention_state();
  void do_attention(QuantizedTensor& out, const Tensor& lse, const Tensor& qkv,
                    const AttentionShape& shape) override;
  void do_attention_backward(const Tensor& dqkv, const Tensor& dout, const Tensor& out, const Tensor& lse,
                             const Tensor& qkv, const AttentionShape& shape) override;
  // swiglu.cu
  void do_swiglu(QuantizedTensor& s, const Tensor& gate_up) override;
  void do_swiglu_backward(QuantizedTensor& dgate_up, QuantizedTensor& s, const Tensor& ds,
                          const Tensor& gate_up) override;
  // cross_entropy.cu
  void do_cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& targets,
                        float scale) override;
  // adamw.cu
  void do_sum_of_squares(const Tensor& out, const Tensor& x, bool accumulate) override;
  void do_adamw(const Tensor& weights, const Tensor& master, const Tensor& m, const Tensor& v,
                const Tensor& gradient, const Tensor& scalars, const Tensor& norm_squared,
                const AdamwOptions& options) override;

  /// cos and sin of every position, made at the first use of a shape; the device keeps it.
  const float* rope_table(const RopeOptions& options);

  GpuProperties properties_;
  int cuda_ordinal_ = 0;  // CUDA's number of it, which counts GPUs that are too old as well
  CUstream_st* stream_ = nullptr;
  std::unique_ptr<MatmulPlans> plans_;
  std::shared_ptr<AttentionState> attention_;  // shared_ptr: its deleter is made where the type is known
  std::shared_ptr<RopeTables> rope_tables_;
  std::int64_t rope_table_bytes_ = 0;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  std::vector<void*> retired_;  // outgrown scratch that a captured graph may still use
  std::size_t retired_bytes_ = 0;
  bool capturing_ = false;
  bool captured_ = false;  // a graph was made: its addresses must live as long as the device
  bool deterministic_ = false;
  const char* last_op_ = "start";
};

}  // namespace precbench
