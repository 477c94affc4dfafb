// Plans of the CUDA device's GEMMs: for one problem (shape, formats, output) everything cuBLASLt needs to run
// it, and the fastest candidate, one of its algorithms or one of our kernels (blockwise.h). Also the
// capability probe, which asks cuBLASLt instead of relying on a table. Only matmul.cpp and cuda_device.cpp
// include this.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/gemm/blockwise.h"
#include "kernels/device/device.h"

namespace precbench {

class CudaDevice;

struct LtDelete {
  void operator()(cublasLtMatmulDesc_t operation) const { cublasLtMatmulDescDestroy(operation); }
  void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
  void operator()(cublasLtMatmulPreference_t preference) const {
    cublasLtMatmulPreferenceDestroy(preference);
  }
};
using LtOperation = std::unique_ptr<cublasLtMatmulDescOpaque_t, LtDelete>;
using LtLayout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, LtDelete>;
using LtPreference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, LtDelete>;

/// How cuBLASLt reads one operand's scale: values of cublasLtMatmulMatrixScale_t, which older headers lack.
enum class ScaleMode : std::int8_t {
  none = -1,  ///< BF16: no scale
  tensor = 0,
  block_1x16_ue4m3 = 1,
  block_1x32_ue8m0 = 2,
  row = 3,
  block_1x128 = 4,
  block_128x128 = 5,
  tensor_of_group = 6,  ///< grouped call: one per group's matrix
};

struct ScaleModes {
  ScaleMode a, b;
};
/// Returns the modes of a pair of formats; nullopt if no pair of modes expresses it.
std::optional<ScaleModes> scale_modes(const QuantFormat& a, const QuantFormat& b);

/// Returns true if this version of cuBLASLt shares heuristic cache entries between MXFP8 and FP8 with tensor
/// scales, and so may return an algorithm chosen for the other mode. Source: TransformerEngine's
/// cublaslt_gemm.cu.
constexpr bool confuses_cached_scales(std::size_t version) { return version <= 120803; }

/// Returns true if operands with power-of-two scales run as MXFP8 on a GPU of this compute capability without
/// a mode for them: 10.x, whose MXFP8 is full rate. 12.x has it in some versions of cuBLASLt only, and older
/// GPUs not at all.
constexpr bool takes_scales_as_mx(int compute_capability) { return compute_capability / 10 == 10; }

/// Returns cuBLASLt's name of a dtype. Throws std::logic_error for one that no GEMM supports.
cudaDataType cuda_type(DType dtype);

/// Properties of one operand that a plan depends on.
struct PlanOperand {
  DType dtype = DType::bf16;
  ScaleMode mode = ScaleMode::none;
  bool transposed = false;
  bool operator==(const PlanOperand&) const = default;
};

struct PlanKey {
  std::int64_t M = 0, N = 0, K = 0;
  PlanOperand a, b;
  DType d = DType::bf16;
  bool accumulate = false;
  bool fast_accum = false;
  bool factors_on_device = false;  ///< alpha and beta come from LtRun::factors
  std::int32_t alignment = 256;    ///< bytes, of the least aligned of the three matrices; at most 256
  bool operator==(const PlanKey&) const = default;
};

struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const;
};

/// Run-time arguments of a plan.
struct LtRun {
  cublasLtHandle_t handle;
  void* workspace;
  std::size_t workspace_bytes;
  cudaStream_t stream;
  const float* factors = nullptr;  ///< alpha, beta in device memory, for a plan with factors_on_device
};

/// Kernels that may run a GEMM: the fastest; cuBLASLt's; ours where available.
enum class GemmChoice : std::uint8_t { automatic, cublaslt, own };

/// One way to run a problem.
struct GemmCandidate {
  cublasLtMatmulAlgo_t algorithm{};      ///< cuBLASLt's, if `own` is null
  const BlockwiseKernel* own = nullptr;  ///< ours
};

/// Returns a descriptor of a GEMM that accumulates in FP32; it has the scale modes, but not yet the scale
/// pointers.
LtOperation make_operation(const PlanKey& key);
/// Sets the scale pointers of our A and our B; does nothing for BF16.
void set_scale_pointers(cublasLtMatmulDesc_t operation, const PlanKey& key, const void* a_scale,
                        const void* b_scale);
/// Returns the preference that tells the heuristic a problem's alignment and the workspace.
LtPreference make_preference(const PlanKey& key, std::size_t workspace_bytes);

/// cuBLASLt's matmul descriptor and layouts, and the chosen candidate. cuBLASLt is column-major, so it
/// computes D^T = B A^T: its "A" is our B and its "B" is our A.
class MatmulPlan {
 public:
  explicit MatmulPlan(const PlanKey& key);

  void set_scales(const void* a_scale, const void* b_scale);
  /// Returns the heuristic's candidates, best guess first; empty if cuBLASLt cannot run the problem.
  std::vector<GemmCandidate> cublaslt_candidates(cublasLtHandle_t handle, std::size_t workspace_bytes) const;
  /// Returns our kernels for the problem on a GPU of this compute capability.
  std::vector<GemmCandidate> own_candidates(int compute_capability) const;
  /// Sets `chosen` and `found`: the first of `all`, or by_timing the fastest on these buffers. D's contents
  /// are lost unless the plan accumulates, in which case they are preserved. Waits for the device.
  void choose(const std::vector<GemmCandidate>& all, const LtRun& with, void* d, const void* a, const void* b,
              bool by_timing);
  cublasStatus_t run(const LtRun& with, void* d, const void* a, const void* b) const;

  const PlanKey key;
  GemmCandidate chosen;
  bool found = false;      ///< there is a candidate
  bool as_mx = false;      ///< scales are rewritten as MXFP8
  std::uint8_t roles = 0;  ///< bit by GemmRole: roles that it has run for

 private:
  BlockwiseGemm blockwise() const;

  const void *a_scale_ = nullptr, *b_scale_ = nullptr;
  LtOperation operation_;
  LtLayout a_, b_, d_;  // our names: a_ describes our A
};

class MatmulPlans {
 public:
  /// cuBLASLt's part of the device's scratch: NVIDIA's recommendation for compute capability 9.0.
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
  static constexpr std::int64_t kAlignment = 256;  ///< of buffers in scratch
  /// Returns the scratch bytes of an operand dequantized to BF16; 0 for a BF16 operand.
  static std::int64_t dequantized_bytes(const GemmOperand& operand);
  /// Returns the total scratch bytes of a GEMM.
  std::int64_t scratch_bytes(const ops::Matmul& op);

  explicit MatmulPlans(CudaDevice& device);
  ~MatmulPlans();
  MatmulPlans(const MatmulPlans&) = delete;
  MatmulPlans& operator=(const MatmulPlans&) = delete;

  void set_autotune(bool on) { autotune_ = on; }
  void set_choice(GemmChoice choice) { choice_ = choice; }  ///< call before the first matmul

  /// Returns the kernels that have run a role's GEMMs so far, "cuBLASLt" or "own 256x128", several with the
  /// number of their problems; only of quantized GEMMs if there were any. Empty before the first.
  std::string names(GemmRole role) const;
  /// Returns shapes "M x N x K" of a role's quantized GEMMs that were emulated although support() calls their
  /// formats native, because cuBLASLt has no kernel for them. Empty if there were none.
  std::string emulated_shapes(GemmRole role) const;

  GemmSupport support(const GemmRecipe& gemm, GemmRole role);
  void matmul(const Tensor& d, const GemmOperand& a, const GemmOperand& b, const MatmulOptions& options);
  /// Runs expert GEMMs one by one: waits for the groups' offsets (grouped_loop.cpp). A group's padding is
  /// multiplied too, so that few shapes need plans; these take the heuristic's first choice, as timing each
  /// would take longer than it saves.
  void matmul_of_experts(const ops::GroupedMatmul& op);
  /// Returns scratch after the library's part, valid until the next op.
  std::byte* behind_workspace(std::int64_t bytes);
  cublasLtHandle_t handle() const { return handle_; }

 private:
  struct Answer {
    GemmRecipe gemm;
    GemmRole role;
    GemmSupport support;
    bool as_mx = false;  ///< native as MXFP8, with rewritten scales
  };

  /// `factors`: of FP4 operands; null: alpha is 1. Returns false, with D unchanged, if no kernel supports the
  /// shape.
  [[nodiscard]] bool run_native(const Tensor& d, const GemmOperand& a, const GemmOperand& b,
                                const MatmulOptions& options, const float* factors = nullptr,
                                bool as_mx = false);
  /// The same for BF16 operands, for which every shape should have a kernel. Throws Unsupported if not.
  void run_plain(const Tensor& d, const GemmOperand& a, const GemmOperand& b, const MatmulOptions& options,
                 const float* factors = nullptr);
  /// Returns true if cuBLASLt or our kernels can run the problem, whose formats are native. Cached for each
  /// key.
  bool takes(const PlanKey& key);
  const Answer& answer(const GemmRecipe& gemm, GemmRole role);
  /// Chooses for a plan that has not run yet.
  void choose(MatmulPlan& plan, const LtRun& with, void* d, const void* a, const void* b);
  void run_emulated(const Tensor& d, const GemmOperand& a, const GemmOperand& b,
                    const MatmulOptions& options);
  /// Writes alpha and beta of FP4 operands to scratch `offset` bytes after the workspace; returns null if
  /// alpha is 1.
  const float* make_factors(const GemmOperand& a, const GemmOperand& b, bool accumulate, std::int64_t offset);
  bool has_candidates(const PlanKey& key) const;
  bool has_own_kernel(const PlanKey& key) const;
  bool is_native(const GemmRecipe& gemm, GemmRole role, ScaleModes modes) const;
  Answer probe(const GemmRecipe& gemm, GemmRole role) const;

  /// Cached knowledge about one problem shape.
  struct Shape {
    bool native = false;
    std::uint8_t emulated_for = 0;  ///< bit by GemmRole: roles that it was emulated for
  };

  CudaDevice& device_;
  cublasLtHandle_t handle_ = nullptr;
  bool autotune_ = true;
  GemmChoice choice_ = GemmChoice::automatic;
  std::unordered_map<PlanKey, MatmulPlan, PlanKeyHash> plans_;
  std::unordered_map<PlanKey, Shape, PlanKeyHash> shapes_;  // of quantized problems
  std::vector<Answer> answers_;  // of the probe; a recipe has few formats, so a search is a few compares
};

}  // namespace precbench
