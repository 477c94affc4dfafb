// matmul on CUDA: D[M,N] = A[M,k] B[N,k]^T through cuBLASLt, one scale mode per operand; on Hopper, products with
// scales of blocks by our own kernels too (blockwise.h), wherever they are timed faster.
//
//   formats of A x B                          cuBLASLt               native on
//   bf16 x bf16, either side transposed                              8.0 and newer
//   tensor x tensor                           SCALAR_32F             8.9 and newer
//   row x row; row x tensor, tensor x row     OUTER_VEC_32F          9.0
//   1x128 x 128x128, 1x128 x 1x128            VEC128_32F, BLK128x128 9.0
//   1x32 or 32x32 on either side, ue8m0       VEC32_UE8M0            10.0 and newer
//   e2m1 1x16 or 16x16 on either side, e4m3   VEC16_UE4M3            10.0 and newer
//
// The last column is documentation only: what runs natively is what cuBLASLt's heuristic accepts (probe()).
// Anything else is emulated: both operands are dequantized to BF16, then multiplied. With power-of-two scales
// and with FP4 that is the exact product up to the order of additions; FP32 scales round each operand to BF16 once.
//
// cuBLASLt is column-major: a row-major D[M,N] is its D^T[N,M] = B A^T. So its "A" is our B, stored [N,k]
// row-major, which is k x N to it, taken transposed; its "B" is our A, k x M, taken as it is: the TN layout
// that FP8 needs on 9.0.
//
// Scales are dequantization factors in cuBLASLt's own layouts (scale_layout.h) and are passed on untouched.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <stdexcept>

#include "kernels/base/errors.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gemm/matmul_kernels.h"
#include "kernels/cuda/gemm/matmul_plans.h"

namespace precbench {
namespace {

/// Side of the product that the probe asks about: every scaling block divides it.
constexpr std::int64_t kProbeSize = 2048;

/// The mode for a format; nullopt where cuBLASLt has none for it.
std::optional<ScaleMode> scale_mode(const QuantFormat& format) {
  if (!format.quantized()) return ScaleMode::none;
  if (held_in_bf16(format.dtype)) return std::nullopt;
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

/// What a pair of formats needs, for a user whose GPU or library refuses it.
std::string needs_of(const QuantFormat& a, const QuantFormat& b) {
  const auto modes = scale_modes(a, b);
  if (!modes || (a.dtype == DType::e5m2 && b.dtype == DType::e5m2)) return "is no mode of cuBLASLt";
  switch (modes->a) {
    case ScaleMode::tensor:
      return "needs compute capability 8.9 or newer and cuBLASLt 11.8";
    case ScaleMode::row:
    case ScaleMode::block_1x128:
    case ScaleMode::block_128x128:
      return "needs compute capability 9.0 and cuBLASLt 12.9";
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
                 const MatmulOptions& options, bool factors_on_device) {
  return {.M = a.rows(),
          .N = b.rows(),
          .K = a.k(),
          .a = {a.data.dtype, modes.a, a.transposed},
          .b = {b.data.dtype, modes.b, b.transposed},
          .d = d.dtype,
          .accumulate = options.accumulate,
          .fast_accum = options.fast_accum && modes.a != ScaleMode::none,
          .factors_on_device = factors_on_device,
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
  // A scalar beside a vector goes in as a vector of equal entries.
  if (modes.a == ScaleMode::row && modes.b == ScaleMode::tensor) modes.b = ScaleMode::row;
  if (modes.b == ScaleMode::row && modes.a == ScaleMode::tensor) modes.a = ScaleMode::row;
  return modes;
}

MatmulPlans::MatmulPlans(CudaDevice& device) : device_(device) { PRECBENCH_CHECK(cublasLtCreate(&handle_)); }

MatmulPlans::~MatmulPlans() { cublasLtDestroy(handle_); }

// ---- what runs how ----

GemmSupport MatmulPlans::support(const GemmRecipe& gemm, GemmRole role) {
  for (const Answer& answer : answers_)
    if (answer.gemm == gemm && answer.role == role) return answer.support;
  answers_.push_back({gemm, role, probe(gemm, role)});
  return answers_.back().support;
}

bool MatmulPlans::has_candidates(const PlanKey& key) const {
  void* some = device_.scratch(kAlignment);
  try {
    MatmulPlan plan(key);
    // The heuristic reads no scales, but wants to see that there are some.
    plan.set_scales(some, some);
    return !plan.cublaslt_candidates(handle_, kWorkspaceBytes).empty();
  } catch (const std::runtime_error&) {
    return false;  // a library that does not know the scale modes refuses to set them
  }
}

GemmSupport MatmulPlans::probe(const GemmRecipe& gemm, GemmRole role) {
  if (const auto modes = scale_modes(gemm.a, gemm.b)) {
    PlanKey key{.M = kProbeSize,
                .N = kProbeSize,
                .K = kProbeSize,
                .a = {gemm.a.dtype, modes->a, false},
                .b = {gemm.b.dtype, modes->b, false},
                .fast_accum = gemm.fast_accum && modes->a != ScaleMode::none,
                .factors_on_device = modes->a == ScaleMode::block_1x16_ue4m3};
    bool native = has_candidates(key);
    if (role == GemmRole::wgrad && native) {  // the gradient buffer is FP32 or BF16, and may be added to
      key.d = DType::f32;
      key.accumulate = true;
      native = has_candidates(key);
    }
    if (native) return {};
  }
  const int cc = device_.compute_capability();
  return {Execution::emulated,
          fmt::format("{} x {} {} (here: {}.{}, cuBLASLt {})", precbench::describe(gemm.a),
                      precbench::describe(gemm.b), needs_of(gemm.a, gemm.b), cc / 10, cc % 10,
                      device_.properties().cublaslt)};
}

// ---- running ----

void MatmulPlans::matmul(const Tensor& d, const GemmOperand& a, const GemmOperand& b,
                         const MatmulOptions& options) {
  const bool plain = !a.format.quantized() && !b.format.quantized();
  if (plain) return run_native(d, a, b, options);
  const GemmSupport how = support({a.format, b.format, options.fast_accum}, options.role);
  if (how.execution == Execution::native)
    return run_native(d, a, b, options, make_factors(a, b, options.accumulate, 0));
  if (how.execution == Execution::emulated) return run_emulated(d, a, b, options);
  throw Unsupported(how.reason);
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

void MatmulPlans::run_native(const Tensor& d, const GemmOperand& a, const GemmOperand& b,
                             const MatmulOptions& options, const float* factors) {
  const ScaleModes modes = *scale_modes(a.format, b.format);
  const void* a_scale = a.scale.data;
  const void* b_scale = b.scale.data;
  const bool widen_a = modes.a == ScaleMode::row && a.format.granularity == Granularity::tensor;
  const bool widen_b = modes.b == ScaleMode::row && b.format.granularity == Granularity::tensor;
  if (widen_a || widen_b) {
    const GemmOperand& scalar = widen_a ? a : b;
    auto* vector = reinterpret_cast<float*>(behind_workspace(scalar.rows() * std::int64_t{sizeof(float)}));
    launch_broadcast(vector, scalar.scale.as<float>(), scalar.rows(), device_.stream());
    (widen_a ? a_scale : b_scale) = vector;
  }
  const LtRun with{handle_, device_.scratch(kWorkspaceBytes), kWorkspaceBytes, device_.stream(), factors};
  const PlanKey key = plan_key(d, a, b, modes, options, factors != nullptr);
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
  if (!plan.found) throw Unsupported(fmt::format("cuBLASLt has no kernel for matmul {}", describe(key)));
  plan.roles |= static_cast<std::uint8_t>(1u << static_cast<unsigned>(options.role));
  plan.set_scales(a_scale, b_scale);
  PRECBENCH_CHECK(plan.run(with, d.data, a.data.data, b.data.data));
  device_.launched("matmul");
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
  std::map<std::string, int> problems;  // by name, so that equal runs give equal words
  for (const auto& [key, plan] : plans_)
    if (ran(plan) && quantized(plan) == some_quantized)
      ++problems[plan.chosen.own ? plan.chosen.own->name : "cuBLASLt"];
  std::string names;
  for (const auto& [name, count] : problems)
    names += fmt::format("{}{}{}", names.empty() ? "" : ", ", name,
                         problems.size() > 1 ? fmt::format(" ({})", count) : "");
  return names;
}

std::int64_t MatmulPlans::dequantized_bytes(const GemmOperand& form) {
  if (!form.format.quantized()) return 0;
  return (bytes_of(DType::bf16, form.data.size()) + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t MatmulPlans::scratch_bytes(const ops::Matmul& op) {
  const GemmRecipe gemm{op.a.format, op.b.format, op.options.fast_accum};
  const bool plain = !op.a.format.quantized() && !op.b.format.quantized();
  std::int64_t bytes = kWorkspaceBytes;
  if (!plain && support(gemm, op.options.role).execution == Execution::emulated)
    bytes += dequantized_bytes(op.a) + dequantized_bytes(op.b);
  const bool fp4 = op.a.format.dtype == DType::e2m1 || op.b.format.dtype == DType::e2m1;
  return fp4 ? bytes + kAlignment : bytes;  // its factors
}

void MatmulPlans::run_emulated(const Tensor& d, const GemmOperand& a, const GemmOperand& b,
                               const MatmulOptions& options) {
  const std::int64_t bytes = dequantized_bytes(a) + dequantized_bytes(b);
  const float* factors = make_factors(a, b, options.accumulate, bytes);
  std::byte* copies = behind_workspace(bytes);
  const auto plain = [&](const GemmOperand& form, std::byte* to) {
    if (!form.format.quantized()) return form;
    launch_dequantize(to, form, device_.stream());
    return GemmOperand{
        .format = {}, .data = {to, DType::bf16, form.rows(), form.k()}, .scale = {}, .transposed = false};
  };
  run_native(d, plain(a, copies), plain(b, copies + dequantized_bytes(a)), options, factors);
}

void CudaDevice::do_dequantize(const ops::Dequantize& op) {
  launch_dequantize(op.dst.data, op.form, stream(), true);
  launched("dequantize");
}

void CudaDevice::set_gemm(const std::string& which) {
  static constexpr std::array<std::string_view, 3> kWords = {"auto", "cublaslt", "own"};  // as GemmChoice
  const auto word = std::find(kWords.begin(), kWords.end(), which);
  if (word == kWords.end())
    throw InvalidInput(fmt::format("gemm is one of auto, cublaslt and own, not \"{}\"", which));
  plans_->set_choice(static_cast<GemmChoice>(word - kWords.begin()));
}

std::string CudaDevice::gemm_names(GemmRole role) const { return plans_->names(role); }

ScratchSizes CudaDevice::scratch_of(const ops::Matmul& op) const {
  return {plans_->scratch_bytes(op) / std::int64_t{sizeof(float)}};
}

void CudaDevice::do_matmul(const ops::Matmul& op) { plans_->matmul(op.d, op.a, op.b, op.options); }

}  // namespace precbench
