// cuBLASLt's grouped call. See grouped_plans.h; as in matmul_plan.cpp its "A" is our B and its "B" our A.
#include "kernels/cuda/gemm/grouped_plans.h"

#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gemm/grouped.h"
#include "kernels/numerics/scale_layout.h"

namespace precbench {
namespace {

// Declarations of newer headers.
using CreateGroupedLayout = cublasStatus_t (*)(cublasLtMatrixLayout_t* layout, cudaDataType type, int groups,
                                               const void* rows, const void* columns, const void* pitches);
constexpr auto kMeanDepth = static_cast<cublasLtMatmulPreferenceAttributes_t>(13);
constexpr auto kMeanRowsOfD = static_cast<cublasLtMatmulPreferenceAttributes_t>(14);
constexpr auto kMeanColumnsOfD = static_cast<cublasLtMatmulPreferenceAttributes_t>(15);
/// Alignment in bytes of matrices and their rows.
constexpr std::int64_t kLeastAlignment = 16;

CreateGroupedLayout create_grouped_layout() {
  static const auto found =
      reinterpret_cast<CreateGroupedLayout>(dlsym(RTLD_DEFAULT, "cublasLtGroupedMatrixLayoutCreate"));
  return found;
}

bool is_new_enough(int compute_capability) {
  const std::size_t least = least_grouped_version(compute_capability);
  return least > 0 && create_grouped_layout() && cublasLtGetVersion() >= least;
}

/// Returns true if a group's scales must be gathered: the library needs them contiguous, and here they are in
/// rows of the whole matrix along the tokens.
bool is_gathered(const GemmOperand& operand, bool is_a, bool over_k) {
  const Granularity g = operand.format.granularity;
  return operand.format.quantized() &&
         (over_k ? g == Granularity::block_1x32 : is_a && g == Granularity::block_1x128);
}

/// Returns the scale tiles per kGroupedPad tokens.
std::int64_t scale_tiles(const GemmOperand& operand, bool over_k) {
  return over_k ? detail::blocks_of(operand.data.rows, 128)
                : scale_blocks(operand.format.granularity, operand.data.cols);
}

std::int64_t gathered_bytes(const GemmOperand& operand, bool is_a, bool over_k) {
  return is_gathered(operand, is_a, over_k) ? detail::padded(operand.scale.bytes(), MatmulPlans::kAlignment)
                                            : 0;
}

/// Returns the start of a group's part of an operand. The groups divide its columns (over_k), its rows (A),
/// or its stack (B).
GroupAddress data_of(const GemmOperand& operand, bool is_a, bool over_k, std::int64_t experts) {
  const Tensor& data = operand.data;
  const std::int64_t tile = bytes_of(data.dtype, kGroupedPad);
  if (!over_k && !is_a) return {.base = data.data, .of_expert = data.bytes() / experts};
  return {.base = data.data, .of_tile = over_k && !operand.transposed ? tile : tile * data.cols};
}

GroupAddress scales_of(const GemmOperand& operand, bool is_a, bool over_k, std::int64_t experts,
                       void* gathered) {
  if (!operand.format.quantized()) return {};
  const Granularity g = operand.format.granularity;
  const std::int64_t rows = operand.data.rows, k = operand.data.cols;
  const bool stacked = !over_k && !is_a;
  if (is_gathered(operand, is_a, over_k))
    return {.base = gathered, .of_tile = kScaleTileBytes * scale_tiles(operand, over_k)};
  switch (g) {
    case Granularity::tensor:
      return {.base = operand.scale.data, .of_expert = stacked ? std::int64_t{sizeof(float)} : 0};
    case Granularity::block_1x128:  // groups of k; those of A's rows are gathered
      return {.base = operand.scale.data, .of_tile = detail::padded(rows, 4) * std::int64_t{sizeof(float)}};
    default:  // blocks of whole rows: 128 of a stack, in 128x128 or 1x32, and A's in 1x32
      const std::int64_t blocks = detail::padded(scale_blocks(g, k), 4);
      const std::int64_t tile =
          g == Granularity::block_1x32 ? blocks * 128 : blocks * std::int64_t{sizeof(float)};
      return stacked ? GroupAddress{.base = operand.scale.data, .of_expert = rows / experts / 128 * tile}
                     : GroupAddress{.base = operand.scale.data, .of_tile = tile};
  }
}

/// Returns the alignment in bytes of all of a matrix's parts if the matrix itself has it.
std::int64_t alignment_within(const GroupAddress& matrix) {
  const auto bits = static_cast<std::uint64_t>(MatmulPlans::kAlignment | matrix.of_expert | matrix.of_tile);
  return std::int64_t{1} << std::countr_zero(bits);
}

GroupAddress d_of(const ops::GroupedMatmul& op, bool over_k) {
  return over_k ? GroupAddress{.base = op.d.data, .of_expert = op.d.bytes() / op.groups.experts()}
                : GroupAddress{.base = op.d.data, .of_tile = bytes_of(op.d.dtype, kGroupedPad * op.d.cols)};
}

bool is_over_k(const ops::GroupedMatmul& op) { return op.options.role == GemmRole::wgrad; }

/// Returns the scale modes that scales_of() supports, as the library reads them; nullopt for others.
std::optional<ScaleModes> grouped_modes(const QuantFormat& a, const QuantFormat& b, bool over_k) {
  const std::optional<ScaleModes> modes = scale_modes(a, b);
  if (!modes || !a.quantized()) return modes;
  const auto are = [&](Granularity of_a, Granularity of_b) {
    return a.granularity == of_a && b.granularity == of_b;
  };
  if (are(Granularity::tensor, Granularity::tensor))
    return ScaleModes{ScaleMode::tensor_of_group, ScaleMode::tensor_of_group};
  const bool taken =
      are(Granularity::block_1x32, Granularity::block_1x32) ||
      are(Granularity::block_1x128, over_k ? Granularity::block_1x128 : Granularity::block_128x128);
  return taken ? modes : std::nullopt;
}

}  // namespace

std::optional<GroupedPlans::Key> GroupedPlans::key_of(const ops::GroupedMatmul& op) {
  if (op.groups.pad % kGroupedPad != 0) return std::nullopt;
  const bool over_k = is_over_k(op), quantized = op.a.format.quantized();
  const std::optional<ScaleModes> modes = grouped_modes(op.a.format, op.b.format, over_k);
  if (!modes) return std::nullopt;
  const std::int64_t E = op.groups.experts();
  // Blocks of a stack's rows divide it only if its matrices do, and the library only knows the mean of k.
  if (quantized && !over_k && modes->b != ScaleMode::tensor_of_group &&
      (op.d.cols % 128 != 0 || op.a.k() % 128 != 0))
    return std::nullopt;
  std::int64_t alignment = MatmulPlans::kAlignment;
  const GroupAddress matrices[] = {data_of(op.a, true, over_k, E), data_of(op.b, false, over_k, E),
                                   d_of(op, over_k)};
  for (const GroupAddress& matrix : matrices) alignment = std::min(alignment, alignment_within(matrix));
  for (const GroupAddress& matrix : matrices)
    if (reinterpret_cast<std::uintptr_t>(matrix.base) % static_cast<std::uintptr_t>(alignment) != 0)
      return std::nullopt;
  for (const Tensor* matrix : {&op.a.data, &op.b.data, &op.d})
    if (bytes_of(matrix->dtype, matrix->cols) % kLeastAlignment != 0) return std::nullopt;
  if (alignment < kLeastAlignment) return std::nullopt;
  const std::int64_t mean = std::max<std::int64_t>(op.groups.rows_expected / E, 1);
  return Key{.mean = {.M = over_k ? op.d.rows / E : mean,
                      .N = op.d.cols,
                      .K = over_k ? mean : op.a.k(),
                      .a = {op.a.data.dtype, modes->a, op.a.transposed},
                      .b = {op.b.data.dtype, modes->b, op.b.transposed},
                      .d = op.d.dtype,
                      .accumulate = op.options.accumulate,
                      .fast_accum = op.options.fast_accum && quantized,
                      .alignment = static_cast<std::int32_t>(alignment)},
             .experts = E,
             .over_k = over_k};
}

GroupedPlans::Layouts GroupedPlans::layouts_of(const Key& key, const GroupTable& table) {
  const auto layout = [&](DType dtype, const std::int32_t* rows, const std::int32_t* columns,
                          const std::int32_t* pitches) {
    cublasLtMatrixLayout_t made = nullptr;
    PRECBENCH_CHECK(create_grouped_layout()(&made, cuda_type(dtype), static_cast<int>(key.experts), rows,
                                            columns, pitches));
    return LtLayout(made);
  };
  const auto operand = [&](const PlanOperand& o, const std::int32_t* vectors, const std::int32_t* pitches) {
    return o.transposed ? layout(o.dtype, vectors, table.k, pitches)
                        : layout(o.dtype, table.k, vectors, pitches);
  };
  return {.a = operand(key.mean.a, table.m, table.pitch_a),
          .b = operand(key.mean.b, table.n, table.pitch_b),
          .d = layout(key.mean.d, table.n, table.m, table.n)};
}

std::optional<cublasLtMatmulAlgo_t> GroupedPlans::ask(const Key& key, void* some) const {
  const GroupTable table = GroupTable::at(some, key.experts);
  const LtOperation operation = make_operation(key.mean);
  set_scale_pointers(operation.get(), key.mean, table.a_scales, table.b_scales);
  const Layouts layouts = layouts_of(key, table);
  LtPreference preference = make_preference(key.mean, MatmulPlans::kWorkspaceBytes);
  // Must be 8 bytes: libraries reject the 4 that their headers document.
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, std::int64_t mean) {
    PRECBENCH_CHECK(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &mean, sizeof mean));
  };
  prefer(kMeanRowsOfD, key.mean.N);
  prefer(kMeanColumnsOfD, key.mean.M);
  prefer(kMeanDepth, key.mean.K);
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, operation.get(), layouts.b.get(), layouts.a.get(),
                                     layouts.d.get(), layouts.d.get(), preference.get(), 1, &result, &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0 || result.state != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > MatmulPlans::kWorkspaceBytes)
    return std::nullopt;
  return result.algo;
}

GroupedPlans::Plan* GroupedPlans::plan_for(const ops::GroupedMatmul& op) {
  if (!is_new_enough(device_.compute_capability())) return nullptr;
  const std::optional<Key> key = key_of(op);
  if (!key) return nullptr;
  auto found = std::find_if(plans_.begin(), plans_.end(), [&](const Plan& plan) { return plan.key == *key; });
  if (found == plans_.end()) {
    Plan plan{.key = *key, .algorithm = {}};
    void* some = device_.scratch(MatmulPlans::kAlignment);
    try {
      plan.algorithm = ask(*key, some);
    } catch (const std::runtime_error&) {
      // A library that does not know a mode refuses to set it.
    }
    found = plans_.insert(plans_.end(), plan);
  }
  return found->algorithm ? &*found : nullptr;
}

bool GroupedPlans::takes(const ops::GroupedMatmul& op) { return plan_for(op) != nullptr; }

std::int64_t GroupedPlans::scratch_bytes(const ops::GroupedMatmul& op) const {
  return std::int64_t{MatmulPlans::kWorkspaceBytes} + GroupTable::bytes(op.groups.experts()) +
         gathered_bytes(op.a, true, is_over_k(op)) + gathered_bytes(op.b, false, is_over_k(op));
}

bool GroupedPlans::run(const ops::GroupedMatmul& op) {
  Plan* plan = plan_for(op);
  if (!plan) throw std::logic_error("cuBLASLt does not multiply these experts");
  const Key& key = plan->key;
  const bool over_k = key.over_k;
  const std::int64_t E = key.experts;
  auto* workspace = static_cast<std::byte*>(device_.scratch(static_cast<std::size_t>(scratch_bytes(op))));
  std::byte* next = workspace + MatmulPlans::kWorkspaceBytes;
  const GroupTable table = GroupTable::at(next, E);
  next += GroupTable::bytes(E);
  const auto* offsets = op.groups.offsets.as<std::int32_t>();

  const auto scales = [&](const GemmOperand& operand, bool is_a) {
    void* gathered = next;
    next += gathered_bytes(operand, is_a, over_k);
    if (is_gathered(operand, is_a, over_k))
      launch_gather_scales(gathered, operand.scale.data, scale_tiles(operand, over_k),
                           op.groups.rows_capacity() / kGroupedPad, offsets, E, device_.stream());
    return scales_of(operand, is_a, over_k, E, gathered);
  };
  const auto pitch = [](const GemmOperand& operand) { return static_cast<std::int32_t>(operand.data.cols); };
  launch_group_table(table,
                     {.a = data_of(op.a, true, over_k, E),
                      .b = data_of(op.b, false, over_k, E),
                      .d = d_of(op, over_k),
                      .a_scales = scales(op.a, true),
                      .b_scales = scales(op.b, false),
                      .rows = static_cast<std::int32_t>(over_k ? key.mean.M : 0),
                      .columns = static_cast<std::int32_t>(key.mean.N),
                      .depth = static_cast<std::int32_t>(over_k ? 0 : key.mean.K),
                      .pitch_a = pitch(op.a),
                      .pitch_b = pitch(op.b),
                      .over_k = over_k},
                     offsets, E, device_.stream());

  const LtOperation operation = make_operation(key.mean);
  set_scale_pointers(operation.get(), key.mean, table.a_scales, table.b_scales);
  const Layouts layouts = layouts_of(key, table);
  const float one = 1.0f, kept = key.mean.accumulate ? 1.0f : 0.0f;
  const cublasStatus_t status =
      cublasLtMatmul(handle_, operation.get(), &one, table.b, layouts.b.get(), table.a, layouts.a.get(),
                     &kept, table.d, layouts.d.get(), table.d, layouts.d.get(), &*plan->algorithm, workspace,
                     MatmulPlans::kWorkspaceBytes, device_.stream());
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
    plan->algorithm.reset();
    return false;
  }
  PRECBENCH_CHECK(status);
  return true;
}

}  // namespace precbench
