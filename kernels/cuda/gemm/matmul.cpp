// matmul on CUDA: D[M,N] = A[M,k] B[N,k]^T through cuBLASLt, one scale mode per operand; on Hopper,
// block-scaled GEMMs also by our own kernels (blockwise.h), wherever they are timed faster.
//
//   formats of A x B                          cuBLASLt               native on
//   bf16 x bf16, either side transposed                              8.0 and newer
//   tensor x tensor                           SCALAR_32F             8.9 and newer
//   row x row; row x tensor, tensor x row     OUTER_VEC_32F          9.0
//   1x128 x 128x128, 1x128 x 1x128            VEC128_32F, BLK128x128 9.0
//   1x32 or 32x32 on either side, ue8m0       VEC32_UE8M0            10.0 and newer
//   e2m1 1x16 or 16x16 on either side, e4m3   VEC16_UE4M3            10.0 and newer
//   f32_pow2 rows, tensors, blocks of 128     VEC32_UE8M0            10.x, if they have no mode of their own:
//                                                                    scales become exponents (mx_expansion.h)
//
// The last column is documentation only: a GEMM is native if cuBLASLt's heuristic accepts it (probe()), first
// for one large shape, then for each actual one. A rejected shape is emulated, and emulated_shapes() lists
// it. Everything else is emulated: both operands are dequantized to BF16, then multiplied. With power-of-two
// scales and with FP4 the result is exact up to the order of additions; FP32 scales round each operand to
// BF16 once. Blocks of 128 that are partial at the end of a dimension are native with our own kernels only.
//
// cuBLASLt is column-major: a row-major D[M,N] is its D^T[N,M] = B A^T. So its "A" is our B, stored [N,k]
// row-major, which is k x N to it, taken transposed; its "B" is our A, k x M, not transposed: the TN layout
// that FP8 needs on 9.0.
//
// Scales are dequantization factors in cuBLASLt's own layouts (scale_layout.h) and are passed on unchanged.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gemm/matmul_kernels.h"
#include "kernels/cuda/gemm/matmul_plans.h"
#include "kernels/numerics/mx_expansion.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench {
namespace {

/// Size of the probed GEMM: every scaling block divides it.
constexpr std::int64_t kProbeSize = 2048;

constexpr ScaleModes kMxModes{ScaleMode::block_1x32_ue8m0, ScaleMode::block_1x32_ue8m0};

/// Returns the bytes of an operand's scales after expansion to MXFP8.
std::int64_t expanded_bytes(const GemmOperand& operand) {
  return detail::padded(scale_count(Granularity::block_1x32, operand.rows(), operand.k()),
                        MatmulPlans::kAlignment);
}

std::uint8_t bit_of(GemmRole role) { return static_cast<std::uint8_t>(1u << static_cast<unsigned>(role)); }

/// Returns the mode for a format; nullopt if cuBLASLt has none.
std::optional<ScaleMode> scale_mode(const QuantFormat& format) {
  if (!format.quantized()) return ScaleMode::none;
  if (always_emulated(format)) return std::nullopt;
  if (format.dtype == DType::e2m1)
    return format.scale == ScaleType::e4m3 ? std::optional(ScaleMode::block_1x16_ue4m3) : std::nullopt;
  const bool exponent = format.scale == ScaleType::ue8m0;
  switch (format.granularity) {
    case Granularity::tensor:
      return exponent ? std::nullopt : std::optional(ScaleMode::tensor);
    case Granularity::row:
      return exponent ? std::nullopt : std::optional(ScaleMode::row);
    case Granularity::block_1x128:
      return exponent ? std::nullopt : std::optional(ScaleMode::block_1x128);
    case Granularity::block_128x128:
      return exponent ? std::nullopt : std::optional(ScaleMode::block_128x128);
    case Granularity::block_1x32:
    case Granularity::block_32x32:
      return exponent ? std::optional(ScaleMode::block_1x32_ue8m0) : std::nullopt;
    default:
      return std::nullopt;
  }
}

/// Returns the requirements of a pair of formats, for a user whose GPU or library does not support it.
std::string needs_of(const QuantFormat& a, const QuantFormat& b) {
  const auto modes = scale_modes(a, b);
  if (!modes || (a.dtype == DType::e5m2 && b.dtype == DType::e5m2)) return "is no mode of cuBLASLt";
  switch (modes->a) {
    case ScaleMode::tensor:
      return "needs compute capability 8.9 or newer and cuBLASLt 11.8";
    case ScaleMode::row:
    case ScaleMode::block_1x128:
    case ScaleMode::block_128x128:
      return expands_to_mx(a) && expands_to_mx(b)
                 ? "needs compute capability 9.0 and cuBLASLt 12.9, or 10.x and cuBLASLt 12.8"
                 : "needs compute capability 9.0 and cuBLASLt 12.9";
    case ScaleMode::block_1x16_ue4m3:
    case ScaleMode::block_1x32_ue8m0:
      return "needs compute capability 10.0 or newer and cuBLASLt 12.8";
    default:
      return "needs compute capability 8.0";
  }
}

std::int32_t alignment_of(const void* a, const void* b, const void* d) {
  const auto bits = reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b) |
                    reinterpret_cast<std::uintptr_t>(d) | 256u;
  return 1 << std::countr_zero(bits);
}

PlanKey plan_key(const Tensor& d, const GemmOperand& a, const GemmOperand& b, ScaleModes modes,
                 const MatmulOptions& options) {
  return {.M = a.rows(),
          .N = b.rows(),
          .K = a.k(),
          .a = {a.data.dtype, modes.a, a.transposed},
          .b = {b.data.dtype, modes.b, b.transposed},
          .d = d.dtype,
          .accumulate = options.accumulate,
          .fast_accum = options.fast_accum && modes.a != ScaleMode::none && modes.a != kMxModes.a,
          .factors_on_device = modes.a == ScaleMode::block_1x16_ue4m3,
          .alignment = alignment_of(a.data.data, b.data.data, d.data)};
}

std::string describe(const PlanKey& key) {
  return fmt::format("M={} N={} K={}, {} x {} into {}{}", key.M, key.N, key.K, name_of(key.a.dtype),
                     name_of(key.b.dtype), name_of(key.d), key.accumulate ? ", accumulated" : "");
}

}  // namespace

std::optional<ScaleModes> scale_modes(const QuantFormat& a, const QuantFormat& b) {
  const auto mode_a = scale_mode(a), mode_b = scale_mode(b);
  if (!mode_a || !mode_b || a.quantized() != b.quantized()) return std::nullopt;
  ScaleModes modes{*mode_a, *mode_b};
  // A per-tensor scale next to per-row scales is passed as a vector of equal entries.
  if (modes.a == ScaleMode::row && modes.b == ScaleMode::tensor) modes.b = ScaleMode::row;
  if (modes.b == ScaleMode::row && modes.a == ScaleMode::tensor) modes.a = ScaleMode::row;
  return modes;
}

MatmulPlans::MatmulPlans(CudaDevice& device) : device_(device) { PRECBENCH_CHECK(cublasLtCreate(&handle_)); }

MatmulPlans::~MatmulPlans() { cublasLtDestroy(handle_); }

// ---- support

GemmSupport MatmulPlans::support(const GemmRecipe& gemm, GemmRole role) { return answer(gemm, role).support; }

const MatmulPlans::Answer& MatmulPlans::answer(const GemmRecipe& gemm, GemmRole role) {
  for (const Answer& answer : answers_)
    if (answer.gemm == gemm && answer.role == role) return answer;
  answers_.push_back(probe(gemm, role));
  return answers_.back();
}

bool MatmulPlans::has_candidates(const PlanKey& key) const {
  void* some = device_.scratch(kAlignment);
  try {
    MatmulPlan plan(key);
    // The heuristic reads no scales, but requires non-null pointers.
    plan.set_scales(some, some);
    return !plan.cublaslt_candidates(handle_, kWorkspaceBytes).empty();
  } catch (const std::runtime_error&) {
    return false;  // a library that does not know the scale modes refuses to set them
  }
}

bool MatmulPlans::has_own_kernel(const PlanKey& key) const {
  return choice_ != GemmChoice::cublaslt &&
         !MatmulPlan(key).own_candidates(device_.compute_capability()).empty();
}

bool MatmulPlans::is_native(const GemmRecipe& gemm, GemmRole role, ScaleModes modes) const {
  PlanKey key{.M = kProbeSize,
              .N = kProbeSize,
              .K = kProbeSize,
              .a = {gemm.a.dtype, modes.a, false},
              .b = {gemm.b.dtype, modes.b, false},
              .fast_accum = gemm.fast_accum && modes.a != ScaleMode::none && modes.a != kMxModes.a,
              .factors_on_device = modes.a == ScaleMode::block_1x16_ue4m3};
  bool native = has_candidates(key);
  if (role == GemmRole::wgrad && native) {  // the gradient buffer is FP32 or BF16, and may be added to
    key.d = DType::f32;
    key.accumulate = true;
    native = has_candidates(key);
  }
  return native;
}

MatmulPlans::Answer MatmulPlans::probe(const GemmRecipe& gemm, GemmRole role) const {
  const int cc = device_.compute_capability();
  if (std::string reason = demoted_reason(device_.demoted(), gemm, role); !reason.empty())
    return {gemm, role, {Execution::emulated, std::move(reason)}};
  if (const auto modes = scale_modes(gemm.a, gemm.b); modes && is_native(gemm, role, *modes))
    return {gemm, role, {}};
  if (takes_scales_as_mx(cc) && expands_to_mx(gemm.a) && expands_to_mx(gemm.b) &&
      is_native(gemm, role, kMxModes))
    return {gemm, role, {}, true};
  return {
      gemm,
      role,
      {Execution::emulated, fmt::format("{} x {} {} (here: {}.{}, cuBLASLt {})", precbench::describe(gemm.a),
                                        precbench::describe(gemm.b), needs_of(gemm.a, gemm.b), cc / 10,
                                        cc % 10, device_.properties().cublaslt)}};
}

bool MatmulPlans::takes(const PlanKey& key) {
  const auto [shape, added] = shapes_.try_emplace(key);
  if (added) shape->second.native = has_own_kernel(key) || has_candidates(key);
  return shape->second.native;
}

// ---- execution

void MatmulPlans::matmul(const Tensor& d, const GemmOperand& a, const GemmOperand& b,
                         const MatmulOptions& options) {
  const bool plain = !a.format.quantized() && !b.format.quantized();
  if (plain) return run_plain(d, a, b, options);
  const Answer how = answer({a.format, b.format, options.fast_accum}, options.role);
  if (how.support.execution == Execution::unsupported) throw Unsupported(how.support.reason);
  if (how.support.execution == Execution::emulated) return run_emulated(d, a, b, options);
  const PlanKey key = plan_key(d, a, b, how.as_mx ? kMxModes : *scale_modes(a.format, b.format), options);
  if (takes(key) && run_native(d, a, b, options, make_factors(a, b, options.accumulate, 0), how.as_mx))
    return;
  Shape& shape = shapes_.at(key);
  shape.native = false;
  shape.emulated_for |= bit_of(options.role);
  run_emulated(d, a, b, options);
}

std::byte* MatmulPlans::behind_workspace(std::int64_t bytes) {
  return static_cast<std::byte*>(device_.scratch(kWorkspaceBytes + static_cast<std::size_t>(bytes))) +
         kWorkspaceBytes;
}

const float* MatmulPlans::make_factors(const GemmOperand& a, const GemmOperand& b, bool accumulate,
                                       std::int64_t offset) {
  if (a.format.dtype != DType::e2m1 && b.format.dtype != DType::e2m1) return nullptr;
  auto* factors = reinterpret_cast<float*>(behind_workspace(offset + kAlignment) + offset);
  launch_factors(factors, a, b, accumulate ? 1.0f : 0.0f, device_.stream());
  return factors;
}

void MatmulPlans::run_plain(const Tensor& d, const GemmOperand& a, const GemmOperand& b,
                            const MatmulOptions& options, const float* factors) {
  if (!run_native(d, a, b, options, factors))
    throw Unsupported(fmt::format("cuBLASLt has no kernel for matmul {}",
                                  describe(plan_key(d, a, b, {ScaleMode::none, ScaleMode::none}, options))));
}

bool MatmulPlans::run_native(const Tensor& d, const GemmOperand& a, const GemmOperand& b,
                             const MatmulOptions& options, const float* factors, bool as_mx) {
  const ScaleModes modes = as_mx ? kMxModes : *scale_modes(a.format, b.format);
  const void* a_scale = a.scale.data;
  const void* b_scale = b.scale.data;
  const bool widen_a = modes.a == ScaleMode::row && a.format.granularity == Granularity::tensor;
  const bool widen_b = modes.b == ScaleMode::row && b.format.granularity == Granularity::tensor;
  if (as_mx) {
    auto* exponents =
        reinterpret_cast<std::uint8_t*>(behind_workspace(expanded_bytes(a) + expanded_bytes(b)));
    launch_expand_scales(exponents, a, device_.stream());
    launch_expand_scales(exponents + expanded_bytes(a), b, device_.stream());
    a_scale = exponents;
    b_scale = exponents + expanded_bytes(a);
  } else if (widen_a || widen_b) {
    const GemmOperand& scalar = widen_a ? a : b;
    auto* vector = reinterpret_cast<float*>(behind_workspace(scalar.rows() * std::int64_t{sizeof(float)}));
    launch_broadcast(vector, scalar.scale.as<float>(), scalar.rows(), device_.stream());
    (widen_a ? a_scale : b_scale) = vector;
  }
  const LtRun with{handle_, device_.scratch(kWorkspaceBytes), kWorkspaceBytes, device_.stream(), factors};
  PlanKey key = plan_key(d, a, b, modes, options);
  key.factors_on_device = factors != nullptr;
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    if (device_.capturing())
      throw std::logic_error(
          fmt::format("matmul {} was not run before the step was captured", describe(key)));
    found = plans_.try_emplace(key, key).first;
    found->second.set_scales(a_scale, b_scale);
    choose(found->second, with, d.data, a.data.data, b.data.data);
  }
  MatmulPlan& plan = found->second;
  if (!plan.found) return false;
  plan.as_mx = as_mx;
  plan.set_scales(a_scale, b_scale);
  const cublasStatus_t status = plan.run(with, d.data, a.data.data, b.data.data);
  // An untested answer of the heuristic may turn out to be unsupported.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED && modes.a != ScaleMode::none) {
    plan.found = false;
    return false;
  }
  PRECBENCH_CHECK(status);
  plan.roles |= bit_of(options.role);
  device_.launched("matmul");
  return true;
}

void MatmulPlans::choose(MatmulPlan& plan, const LtRun& with, void* d, const void* a, const void* b) {
  std::vector<GemmCandidate> all, own;
  if (choice_ != GemmChoice::cublaslt) own = plan.own_candidates(device_.compute_capability());
  if (choice_ != GemmChoice::own || own.empty()) all = plan.cublaslt_candidates(handle_, kWorkspaceBytes);
  all.insert(all.end(), own.begin(), own.end());
  plan.choose(all, with, d, a, b, autotune_);
}

std::string MatmulPlans::names(GemmRole role) const {
  const auto ran = [&](const MatmulPlan& plan) {
    return plan.found && (plan.roles >> static_cast<unsigned>(role) & 1u) != 0;
  };
  const auto quantized = [](const MatmulPlan& plan) { return plan.key.a.mode != ScaleMode::none; };
  const bool some_quantized = std::any_of(plans_.begin(), plans_.end(), [&](const auto& entry) {
    return ran(entry.second) && quantized(entry.second);
  });
  std::map<std::string, int> problems;  // sorted by name, so that equal runs give equal text
  for (const auto& [key, plan] : plans_)
    if (ran(plan) && quantized(plan) == some_quantized)
      ++problems[plan.chosen.own ? plan.chosen.own->name : plan.as_mx ? "cuBLASLt as MXFP8" : "cuBLASLt"];
  std::string names;
  for (const auto& [name, count] : problems)
    names += fmt::format("{}{}{}", names.empty() ? "" : ", ", name,
                         problems.size() > 1 ? fmt::format(" ({})", count) : "");
  return names;
}

std::string MatmulPlans::emulated_shapes(GemmRole role) const {
  std::set<std::string> shapes;  // sorted by name, so that equal runs give equal text
  for (const auto& [key, shape] : shapes_)
    if ((shape.emulated_for & bit_of(role)) != 0)
      shapes.insert(fmt::format("{} x {} x {}", key.M, key.N, key.K));
  return fmt::format("{}", fmt::join(shapes, ", "));
}

std::int64_t MatmulPlans::dequantized_bytes(const GemmOperand& operand) {
  if (!operand.format.quantized()) return 0;
  return (bytes_of(DType::bf16, operand.data.size()) + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t MatmulPlans::scratch_bytes(const ops::Matmul& op) {
  const bool plain = !op.a.format.quantized() && !op.b.format.quantized();
  std::int64_t bytes = kWorkspaceBytes;
  if (!plain) {
    const Answer how = answer({op.a.format, op.b.format, op.options.fast_accum}, op.options.role);
    bool native = how.support.execution == Execution::native;
    if (native)
      native = takes(plan_key(op.d, op.a, op.b, how.as_mx ? kMxModes : *scale_modes(op.a.format, op.b.format),
                              op.options));
    if (!native) bytes += dequantized_bytes(op.a) + dequantized_bytes(op.b);
    if (native && how.as_mx) bytes += expanded_bytes(op.a) + expanded_bytes(op.b);
  }
  const bool fp4 = op.a.format.dtype == DType::e2m1 || op.b.format.dtype == DType::e2m1;
  return fp4 ? bytes + kAlignment : bytes;  // alpha and beta
}

void MatmulPlans::run_emulated(const Tensor& d, const GemmOperand& a, const GemmOperand& b,
                               const MatmulOptions& options) {
  const std::int64_t bytes = dequantized_bytes(a) + dequantized_bytes(b);
  const float* factors = make_factors(a, b, options.accumulate, bytes);
  std::byte* copies = behind_workspace(bytes);
  const auto plain = [&](const GemmOperand& operand, std::byte* to) {
    if (!operand.format.quantized()) return operand;
    launch_dequantize(to, operand, device_.stream());
    return GemmOperand{.format = {},
                       .data = {to, DType::bf16, operand.rows(), operand.k()},
                       .scale = {},
                       .transposed = false};
  };
  run_plain(d, plain(a, copies), plain(b, copies + dequantized_bytes(a)), options, factors);
}

void CudaDevice::do_dequantize(const ops::Dequantize& op) {
  launch_dequantize(op.dst.data, op.operand, stream(), true);
  launched("dequantize");
}

void CudaDevice::set_gemm(const std::string& which) {
  // in GemmChoice's order
  static constexpr std::array<std::string_view, 3> kWords = {"auto", "cublaslt", "own"};
  const auto word = std::find(kWords.begin(), kWords.end(), which);
  if (word == kWords.end())
    throw InvalidInput(fmt::format("gemm is one of auto, cublaslt and own, not \"{}\"", which));
  plans_->set_choice(static_cast<GemmChoice>(word - kWords.begin()));
}

std::string CudaDevice::gemm_names(GemmRole role) const { return plans_->names(role); }
std::string CudaDevice::emulated_shapes(GemmRole role) const { return plans_->emulated_shapes(role); }

ScratchSizes CudaDevice::scratch_of(const ops::Matmul& op) const {
  return {plans_->scratch_bytes(op) / std::int64_t{sizeof(float)}};
}

void CudaDevice::do_matmul(const ops::Matmul& op) { plans_->matmul(op.d, op.a, op.b, op.options); }

}  // namespace precbench
