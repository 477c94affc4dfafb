// The CUDA device: every op of ops.h on one NVIDIA GPU, compute capability 8.0 or newer.
//
// All work goes into one stream, so ops run in call order and may share one scratch buffer. Nothing allocates
// after the first (warm-up) step, which creates plans and scratch; the second step can therefore be captured
// as a CUDA graph (graph.h).
//
// Each op is defined in the file with its name (do_swiglu in swiglu.cu, ...), like the CPU file of that name.
// Including this header does not require CUDA's headers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/gpu/device_info.h"
#include "kernels/gpu/graph.h"

struct CUgraphExec_st;  // cudaGraphExec_t points to it
struct CUstream_st;     // cudaStream_t points to it

namespace precbench {

class MatmulPlans;      // matmul.cpp: plans by problem, the capability probe
class GroupedPlans;     // grouped_plans.cpp: cuBLASLt's grouped GEMMs
struct RopeTables;      // rope.cu: cos and sin by sequence length and head size
struct AttentionState;  // attention.cpp: handles and plans, made by the first attention op

class CudaDevice final : public Device {
 public:
  /// Throws Unsupported if the GPU cannot be used (find_gpus() says why), InvalidInput for a bad ordinal.
  explicit CudaDevice(int ordinal);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::string name() const override { return "cuda"; }
  GemmSupport support(const GemmRecipe& gemm, GemmRole role) const override;
  std::string attention_refusal(const AttentionShape& shape) override;
  std::string attention_name() const override;
  std::string gemm_names(GemmRole role) const override;
  std::string emulated_shapes(GemmRole role) const override;
  std::string grouped_name() const override;
  std::optional<std::string> fallback_reason() const override;
  bool capturable() const override { return !waited_for_host_; }

  void* allocate(std::int64_t bytes) override;
  void deallocate(void* block) override;
  void upload(const Tensor& dst, const void* src) override;
  void download(void* dst, const Tensor& src) override;
  /// Throws the error of any earlier op. The message names the last op started; under CUDA_LAUNCH_BLOCKING=1
  /// that is the op that failed.
  void synchronize() override;
  std::int64_t workspace_bytes() const override;

  /// Slot 0: scratch() requests; slot 1: RoPE's table. Known in advance are those of ops that may need more than
  /// the workspace of a GEMM, 32 MiB.
  using Device::scratch_of;
  ScratchSizes scratch_of(const ops::Matmul& op) const override;
  ScratchSizes scratch_of(const ops::GroupedMatmul& op) const override;
  ScratchSizes scratch_of(const ops::RouteBackward& op) const override;
  ScratchSizes scratch_of(const ops::Attention& op) const override;
  ScratchSizes scratch_of(const ops::AttentionBackward& op) const override;
  ScratchSizes scratch_of(const ops::Rope& op) const override;
  ScratchSizes scratch_of(const ops::LatentHeads& op) const override;

  // ---- for the ops and the step graph
  const GpuProperties& properties() const { return properties_; }
  int sm_count() const { return properties_.sm_count; }
  int compute_capability() const { return properties_.compute_capability; }  ///< 90 is 9.0
  CUstream_st* stream() const { return stream_; }

  /// Returns a buffer for partial results of the calling op: at least `bytes` long, 256-byte aligned,
  /// contents undefined. All ops share it, so an op calls once and divides the buffer. It grows outside
  /// capture only: a larger request than before during capture throws std::logic_error. Growing waits for the
  /// device.
  void* scratch(std::size_t bytes);

  /// Called by every op after its last launch: records the name for later errors and throws a launch error
  /// now.
  void launched(const char* op);

  /// Captures everything run on stream() between begin and end as an executable graph, which the caller owns;
  /// graph.h wraps these functions. abandon_capture() is for an exception in between.
  struct Captured {
    CUgraphExec_st* graph;
    int early_kernels;  ///< StepGraph::early_kernels
  };
  void begin_capture();
  Captured end_capture(KernelStart start = KernelStart::in_turn);
  void abandon_capture();
  bool capturing() const { return capturing_; }

  /// Enables timing of GEMM and attention candidates at first use; off: the first that supports the problem.
  /// On by default.
  void set_autotune(bool on);
  /// Makes attention backward add in a fixed order. Off by default.
  void set_deterministic(bool on) { deterministic_ = on; }
  bool deterministic() const { return deterministic_; }
  /// Selects the attention implementation: "auto" (the fastest of cuDNN and our Hopper kernels, where
  /// available and supported, else our kernels for any GPU; the default), "cudnn" (Unsupported if it does not
  /// support a shape) or "own". Throws InvalidInput for other words.
  void set_attention(const std::string& which);

  /// Selects GEMM kernels: "auto" (the fastest; the default), "cublaslt", or "own": ours where available,
  /// which is FP8 with block scales on Hopper. Call before the first matmul. Throws InvalidInput for other
  /// words.
  void set_gemm(const std::string& which);

  /// Selects the grouped expert GEMM: "own" (our grouped kernels where available, else like "cublaslt"; the
  /// default), "cublaslt" (its grouped call if the version and GPU support it, else like "loop") or "loop",
  /// expert by expert with the matmul plans. Throws InvalidInput for other words.
  void set_grouped(const std::string& which);

  /// Emulates these GEMMs although the GPU has them. Call before support() and the first matmul.
  void set_demoted(const DemotedPaths& demoted) { demoted_ = demoted; }
  const DemotedPaths& demoted() const { return demoted_; }

  OpSet supported_ops() const override { return bodies_of<CudaDevice>(); }
  // elementwise.cu
  void do_zero(const ops::Zero& op) override;
  void do_convert(const ops::Convert& op) override;
  void do_add(const ops::Add& op) override;
  void do_init_normal(const ops::InitNormal& op) override;
  void do_fill(const ops::Fill& op) override;
  void do_sum(const ops::Sum& op) override;
  void do_fingerprint(const ops::Fingerprint& op) override;
  void do_correlate(const ops::Correlate& op) override;
  // quantize.cu, with fp4.cu
  void do_quantize(const ops::Quantize& op) override;
  // quantization_error.cu
  void do_quantization_error(const ops::QuantizationError& op) override;
  // inverse_hadamard.cu
  void do_inverse_hadamard(const ops::InverseHadamard& op) override;
  // fp8_weights.cu
  void do_amax(const ops::Amax& op) override;
  void do_quantize_with_amax(const ops::QuantizeWithAmax& op) override;
  void do_update_history(const ops::UpdateHistory& op) override;
  void do_transpose(const ops::Transpose& op) override;
  void do_copy_columns(const ops::CopyColumns& op) override;
  void do_place_rows(const ops::PlaceRows& op) override;
  // transpose_codes.cu
  void do_transpose_codes(const ops::TransposeCodes& op) override;
  // matmul.cpp
  void do_dequantize(const ops::Dequantize& op) override;
  void do_matmul(const ops::Matmul& op) override;
  // embedding.cu
  void do_embedding(const ops::Embedding& op) override;
  void do_embedding_backward(const ops::EmbeddingBackward& op) override;
  // rmsnorm.cu
  void do_add_rmsnorm(const ops::AddRmsnorm& op) override;
  void do_recompute_rmsnorm(const ops::RecomputeRmsnorm& op) override;
  void do_rmsnorm_backward(const ops::RmsnormBackward& op) override;
  void do_add_layernorm(const ops::AddLayernorm& op) override;
  void do_recompute_layernorm(const ops::RecomputeLayernorm& op) override;
  void do_layernorm_backward(const ops::LayernormBackward& op) override;
  void do_activate(const ops::Activate& op) override;
  void do_activate_backward(const ops::ActivateBackward& op) override;
  // rope.cu
  void do_rope(const ops::Rope& op) override;
  void do_rope_backward(const ops::RopeBackward& op) override;
  // latent_heads.cu
  void do_latent_heads(const ops::LatentHeads& op) override;
  void do_latent_heads_backward(const ops::LatentHeadsBackward& op) override;
  // bias.cu
  void do_add_bias(const ops::AddBias& op) override;
  void do_bias_backward(const ops::BiasBackward& op) override;
  // gate_rows.cu
  void do_gate_rows(const ops::GateRows& op) override;
  void do_gate_rows_backward(const ops::GateRowsBackward& op) override;
  // attention.cpp; attention_name(), attention_refusal() and set_attention() too
  void do_attention(const ops::Attention& op) override;
  void do_attention_backward(const ops::AttentionBackward& op) override;
  // attention_sink.cu
  void do_attention_sink(const ops::AttentionSink& op) override;
  void do_attention_sink_backward(const ops::AttentionSinkBackward& op) override;
  void do_merge_attention(const ops::MergeAttention& op) override;
  // swiglu.cu
  void do_swiglu(const ops::Swiglu& op) override;
  void do_swiglu_backward(const ops::SwigluBackward& op) override;
  // cross_entropy.cu
  void do_cross_entropy(const ops::CrossEntropy& op) override;
  void do_logit_stats(const ops::LogitStats& op) override;
  void do_logit_gradient(const ops::LogitGradient& op) override;
  // compare_logits.cu
  void do_compare_logits(const ops::CompareLogits& op) override;
  // adamw.cu
  void do_sum_of_squares(const ops::SumOfSquares& op) override;
  void do_adamw(const ops::Adamw& op) override;
  // scaled_values.cu
  void do_commit_scale(const ops::CommitScale& op) override;
  void do_encode(const ops::Encode& op) override;
  void do_decode(const ops::Decode& op) override;
  void do_sum_codes(const ops::SumCodes& op) override;
  // lion.cu
  void do_lion(const ops::Lion& op) override;
  // muon.cu
  void do_descend(const ops::Descend& op) override;
  void do_momentum(const ops::Momentum& op) override;
  void do_to_unit_norm(const ops::ToUnitNorm& op) override;
  void do_combine(const ops::Combine& op) override;
  // adafactor.cu
  void do_factored_sums(const ops::FactoredSums& op) override;
  void do_factored_average(const ops::FactoredAverage& op) override;
  void do_factored_norm(const ops::FactoredNorm& op) override;
  void do_factored_update(const ops::FactoredUpdate& op) override;
  // experts/: route.cu, route_backward.cu, group.cu, permute.cu, unpermute.cu, quantize_experts.cu,
  // grouped_swiglu.cu
  void do_route(const ops::Route& op) override;
  void do_route_backward(const ops::RouteBackward& op) override;
  void do_update_routing_bias(const ops::UpdateRoutingBias& op) override;
  void do_group(const ops::Group& op) override;
  // group_peers.cu
  void do_group_peers(const ops::GroupPeers& op) override;
  void do_permute(const ops::Permute& op) override;
  void do_unpermute(const ops::Unpermute& op) override;
  void do_quantize_experts(const ops::QuantizeExperts& op) override;
  void do_grouped_swiglu(const ops::GroupedSwiglu& op) override;
  void do_grouped_swiglu_backward(const ops::GroupedSwigluBackward& op) override;
  // expert_bias.cu
  void do_add_expert_bias(const ops::AddExpertBias& op) override;
  void do_expert_bias_backward(const ops::ExpertBiasBackward& op) override;
  void do_add_routed_bias(const ops::AddRoutedBias& op) override;
  void do_routed_bias_backward(const ops::RoutedBiasBackward& op) override;
  // grouped_matmul.cpp, with set_grouped() and grouped_name()
  void do_grouped_matmul(const ops::GroupedMatmul& op) override;

 private:
  void scaled_adamw(const ops::Adamw& op);  // scaled_adamw.cu
  AttentionState& attention_state() const;
  /// Implementation that would run one grouped GEMM for all experts.
  enum class AtOnce : std::uint8_t { none, own, cublaslt };
  AtOnce at_once(const ops::GroupedMatmul& op) const;
  /// Returns the scratch bytes of that implementation.
  std::int64_t scratch_at_once(const ops::GroupedMatmul& op) const;
  /// Runs the grouped GEMM; returns false, with nothing started, if there is no implementation.
  bool multiply_at_once(const ops::GroupedMatmul& op);
  /// Like multiply_at_once, in BF16 on the dequantized values of emulated formats.
  bool multiply_dequantized(const ops::GroupedMatmul& op);

  /// Returns cos and sin of every position; made at first use of a shape and cached by the device.
  const float* rope_table(const RopeOptions& options);

  GpuProperties properties_;
  int cuda_ordinal_ = 0;  // CUDA's ordinal, which also counts GPUs that are too old
  CUstream_st* stream_ = nullptr;
  std::unique_ptr<MatmulPlans> plans_;
  std::unique_ptr<GroupedPlans> grouped_plans_;
  mutable std::shared_ptr<AttentionState>
      attention_;  // made at first use; shared_ptr: its deleter is made where the type is complete
  std::shared_ptr<RopeTables> rope_tables_;
  std::int64_t rope_table_bytes_ = 0;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  std::vector<void*> retired_;  // outgrown scratch that a captured graph may still use
  std::size_t retired_bytes_ = 0;
  bool capturing_ = false;
  bool captured_ = false;  // a graph exists: its addresses must live as long as the device
  bool autotune_ = true;
  bool deterministic_ = false;
  DemotedPaths demoted_;
  bool grouped_own_ = true;       // our grouped GEMM kernels may run
  bool grouped_cublaslt_ = true;  // cuBLASLt's grouped call may run
  bool ran_own_ = false;          // our kernels have run
  bool ran_cublaslt_ = false;     // cuBLASLt's grouped call has run
  bool waited_for_host_ = false;  // rows per expert were counted on the host
  const char* last_op_ = "start";
};

}  // namespace precbench
