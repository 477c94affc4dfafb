// One plan: cuBLASLt's descriptor and layouts, the candidates, and the choice among them by timing. See
// matmul_plans.h.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gemm/matmul_plans.h"
#include "kernels/cuda/stopwatch.h"

namespace precbench {
namespace {

// Attributes of cuBLAS 12.8 by their documented numbers: an older library rejects them when they are set.
constexpr auto kAScaleMode = static_cast<cublasLtMatmulDescAttributes_t>(31);
constexpr auto kBScaleMode = static_cast<cublasLtMatmulDescAttributes_t>(32);

// CUDA_R_4F_E2M1, which older headers lack too.
constexpr auto kFp4 = static_cast<cudaDataType>(33);

constexpr int kCandidates = 16;
constexpr int kFinalists = 4;
constexpr int kRunsEach = 3;
/// A later candidate must be this much faster to replace an earlier one, so that noise does not decide.
constexpr float kMargin = 0.99f;
/// Left free when a scratch output for timing is allocated.
constexpr std::size_t kSpareBytes = std::size_t{512} << 20;

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  PRECBENCH_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value));
}

/// Returns the column-major layout of a row-major [rows, cols] matrix: cols x rows, leading dimension cols.
LtLayout make_layout(DType dtype, std::int64_t rows, std::int64_t cols) {
  cublasLtMatrixLayout_t layout = nullptr;
  PRECBENCH_CHECK(cublasLtMatrixLayoutCreate(&layout, cuda_type(dtype), cols, rows, cols));
  return LtLayout(layout);
}

LtLayout make_layout(const PlanOperand& operand, std::int64_t rows, std::int64_t k) {
  return operand.transposed ? make_layout(operand.dtype, k, rows) : make_layout(operand.dtype, rows, k);
}

/// Device memory for the duration of a scope; empty if it does not fit with kSpareBytes to spare.
class TemporaryBlock {
 public:
  explicit TemporaryBlock(std::size_t bytes) {
    std::size_t free = 0, total = 0;
    PRECBENCH_CHECK(cudaMemGetInfo(&free, &total));
    if (free >= bytes + kSpareBytes && cudaMalloc(&block_, bytes) != cudaSuccess) block_ = nullptr;
    cudaGetLastError();
  }
  ~TemporaryBlock() { cudaFree(block_); }
  TemporaryBlock(const TemporaryBlock&) = delete;
  TemporaryBlock& operator=(const TemporaryBlock&) = delete;
  void* get() const { return block_; }

 private:
  void* block_ = nullptr;
};

/// Returns true if an operand's last block of scales, along k or of rows, is partial. cuBLASLt's documentation does not
/// say whether its kernels accept that, so they are not used then.
bool ends_in_partial_block(const PlanOperand& operand, std::int64_t rows, std::int64_t k) {
  switch (operand.mode) {
    case ScaleMode::block_1x128:
      return k % 128 != 0;
    case ScaleMode::block_128x128:
      return k % 128 != 0 || rows % 128 != 0;
    case ScaleMode::block_1x32_ue8m0:
      return k % 32 != 0;
    default:
      return false;
  }
}

}  // namespace

cudaDataType cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    case DType::e2m1:
      return kFp4;
    default:
      throw std::logic_error(fmt::format("no GEMM takes {}", name_of(dtype)));
  }
}

std::size_t PlanKeyHash::operator()(const PlanKey& key) const {
  std::uint64_t hash = 0;
  const auto mix = [&hash](std::uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  };
  const auto pack = [](const PlanOperand& o) {
    return static_cast<std::uint64_t>(o.dtype) << 9 |
           static_cast<std::uint64_t>(static_cast<std::uint8_t>(o.mode)) << 1 |
           static_cast<std::uint64_t>(o.transposed);
  };
  mix(static_cast<std::uint64_t>(key.M));
  mix(static_cast<std::uint64_t>(key.N));
  mix(static_cast<std::uint64_t>(key.K));
  mix(pack(key.a) << 32 | pack(key.b));
  mix(static_cast<std::uint64_t>(key.alignment) << 16 | static_cast<std::uint64_t>(key.d) << 8 |
      static_cast<std::uint64_t>(key.factors_on_device) << 2 |
      static_cast<std::uint64_t>(key.accumulate) << 1 | static_cast<std::uint64_t>(key.fast_accum));
  return hash;
}

LtOperation make_operation(const PlanKey& key) {
  cublasLtMatmulDesc_t operation = nullptr;
  PRECBENCH_CHECK(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  LtOperation owned(operation);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, key.b.transposed ? CUBLAS_OP_N : CUBLAS_OP_T);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, key.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (key.factors_on_device)
    set(operation, CUBLASLT_MATMUL_DESC_POINTER_MODE,
        static_cast<std::int32_t>(CUBLASLT_POINTER_MODE_DEVICE));
  if (key.a.mode != ScaleMode::none) {
    set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(key.fast_accum));
    // Tensor scales are the default, even for libraries without the attribute.
    if (key.a.mode != ScaleMode::tensor || key.b.mode != ScaleMode::tensor) {
      set(operation, kAScaleMode, static_cast<std::int32_t>(key.b.mode));
      set(operation, kBScaleMode, static_cast<std::int32_t>(key.a.mode));
    }
    // No GEMM of one matrix reads it, but it is part of the library's heuristic cache key.
    if (key.a.mode == ScaleMode::block_1x32_ue8m0 && confuses_cached_scales(cublasLtGetVersion()))
      set(operation, CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE, std::int64_t{1});
  }
  return owned;
}

MatmulPlan::MatmulPlan(const PlanKey& k) : key(k), operation_(make_operation(k)) {
  a_ = make_layout(key.a, key.M, key.K);
  b_ = make_layout(key.b, key.N, key.K);
  d_ = make_layout(key.d, key.M, key.N);
}

void set_scale_pointers(cublasLtMatmulDesc_t operation, const PlanKey& key, const void* a_scale,
                        const void* b_scale) {
  if (key.a.mode == ScaleMode::none) return;
  set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b_scale);
  set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a_scale);
}

LtPreference make_preference(const PlanKey& key, std::size_t workspace_bytes) {
  cublasLtMatmulPreference_t made = nullptr;
  PRECBENCH_CHECK(cublasLtMatmulPreferenceCreate(&made));
  LtPreference preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof value);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  const auto alignment = static_cast<std::uint32_t>(key.alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
  return preference;
}

void MatmulPlan::set_scales(const void* a_scale, const void* b_scale) {
  a_scale_ = a_scale;
  b_scale_ = b_scale;
  set_scale_pointers(operation_.get(), key, a_scale, b_scale);
}

std::vector<GemmCandidate> MatmulPlan::cublaslt_candidates(cublasLtHandle_t handle,
                                                           std::size_t workspace_bytes) const {
  if (ends_in_partial_block(key.a, key.M, key.K) || ends_in_partial_block(key.b, key.N, key.K)) return {};
  const LtPreference preference = make_preference(key, workspace_bytes);
  cublasLtMatmulHeuristicResult_t results[kCandidates];
  int count = 0;
  // An unsupported problem gives "not supported" or an empty list; either means no candidates.
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, operation_.get(), b_.get(), a_.get(), d_.get(), d_.get(),
                                     preference.get(), kCandidates, results, &count);
  std::vector<GemmCandidate> candidates;
  if (status != CUBLAS_STATUS_SUCCESS) return candidates;
  for (int i = 0; i < count; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= workspace_bytes)
      candidates.push_back({.algorithm = results[i].algo});
  return candidates;
}

BlockwiseGemm MatmulPlan::blockwise() const {
  return {.M = key.M,
          .N = key.N,
          .K = key.K,
          .a = key.a.dtype,
          .b = key.b.dtype,
          .d = key.d,
          .square_b = key.b.mode == ScaleMode::block_128x128,
          .accumulate = key.accumulate,
          .alignment = key.alignment};
}

std::vector<GemmCandidate> MatmulPlan::own_candidates(int compute_capability) const {
  std::vector<GemmCandidate> candidates;
  const bool blocks = key.a.mode == ScaleMode::block_1x128 &&
                      (key.b.mode == ScaleMode::block_1x128 || key.b.mode == ScaleMode::block_128x128);
  if (!blocks) return candidates;
  for (const BlockwiseKernel* kernel : blockwise_kernels(blockwise(), compute_capability))
    candidates.push_back({.own = kernel});
  return candidates;
}

cublasStatus_t MatmulPlan::run(const LtRun& with, void* d, const void* a, const void* b) const {
  if (chosen.own) {
    chosen.own->launch(blockwise(),
                       {a, b, static_cast<const float*>(a_scale_), static_cast<const float*>(b_scale_), d},
                       with.stream);
    return CUBLAS_STATUS_SUCCESS;
  }
  const float one[] = {1.0f, key.accumulate ? 1.0f : 0.0f};
  const float* factors = key.factors_on_device ? with.factors : one;
  return cublasLtMatmul(with.handle, operation_.get(), factors, b, b_.get(), a, a_.get(), factors + 1, d,
                        d_.get(), d, d_.get(), &chosen.algorithm, with.workspace, with.workspace_bytes,
                        with.stream);
}

void MatmulPlan::choose(const std::vector<GemmCandidate>& all, const LtRun& with, void* d, const void* a,
                        const void* b, bool by_timing) {
  found = !all.empty();
  if (!found) return;
  chosen = all.front();
  if (!by_timing || all.size() == 1) return;

  // D of a GEMM without accumulation is about to be overwritten anyway. An accumulating D must not change:
  // its candidates write elsewhere or, if the GPU has no memory for that, D is saved in host memory
  // meanwhile.
  const auto sum_bytes = static_cast<std::size_t>(key.accumulate ? bytes_of(key.d, key.M * key.N) : 0);
  const TemporaryBlock elsewhere(sum_bytes);
  std::vector<std::byte> kept;
  void* const sum = d;
  if (key.accumulate) {
    if (elsewhere.get()) {
      d = elsewhere.get();
    } else {
      kept.resize(sum_bytes);
      PRECBENCH_CHECK(cudaMemcpyAsync(kept.data(), sum, sum_bytes, cudaMemcpyDeviceToHost, with.stream));
      PRECBENCH_CHECK(cudaStreamSynchronize(with.stream));
    }
    PRECBENCH_CHECK(cudaMemsetAsync(d, 0, sum_bytes, with.stream));
  }

  struct Entry {
    std::size_t index;
    float ms;
  };
  std::vector<Entry> entries;
  Stopwatch watch(with.stream);
  const auto time = [&](std::size_t index) {
    chosen = all[index];
    // In a step the weights come from memory. Overwriting the workspace evicts most of the previous run's
    // data from L2.
    PRECBENCH_CHECK(cudaMemsetAsync(with.workspace, 0, with.workspace_bytes, with.stream));
    watch.begin();
    const cublasStatus_t status = run(with, d, a, b);
    const float ms = watch.end();
    return status == CUBLAS_STATUS_SUCCESS ? ms : std::numeric_limits<float>::infinity();
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    time(i);  // loads the kernel
    entries.push_back({i, time(i)});
  }
  const auto faster = [](const Entry& x, const Entry& y) { return x.ms < y.ms; };
  std::stable_sort(entries.begin(), entries.end(), faster);
  if (entries.size() > kFinalists) entries.resize(kFinalists);
  for (int run_number = 1; run_number < kRunsEach; ++run_number)
    for (Entry& entry : entries) entry.ms = std::min(entry.ms, time(entry.index));
  std::sort(entries.begin(), entries.end(), [](const Entry& x, const Entry& y) { return x.index < y.index; });
  Entry best = entries.front();
  for (const Entry& entry : entries)
    if (entry.ms < kMargin * best.ms) best = entry;
  chosen = all[best.index];
  found = best.ms < std::numeric_limits<float>::infinity();
  if (kept.empty()) return;
  PRECBENCH_CHECK(cudaMemcpyAsync(sum, kept.data(), sum_bytes, cudaMemcpyHostToDevice, with.stream));
  PRECBENCH_CHECK(cudaStreamSynchronize(with.stream));
}

}  // namespace precbench
