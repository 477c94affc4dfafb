// Grouped expert GEMMs, ops::GroupedMatmul, by our own kernels: one launch for all experts, whose tiles read
// the groups' offsets on the device. Nothing waits for the host, so a captured step replays with another
// routing. grouped_matmul.cpp handles unsupported problems.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/moe_ops.h"

namespace precbench {

/// Alignment of groups in rows: that of a tile. No kernel supports groups with other padding.
inline constexpr std::int64_t kGroupedPad = 128;

/// Returns true if launch_grouped would run the op.
bool takes_grouped(const ops::GroupedMatmul& op, int compute_capability);

/// Launches the GEMM on a GPU of this compute capability (90 is 9.0). Returns false, with nothing started, if
/// no kernel of this build supports it there; that depends only on shapes, formats and options, never on the
/// routing. Operands have their layouts for the whole rows_capacity; D's padding rows may be written with
/// zeros. Throws std::runtime_error if CUDA rejects the launch.
bool launch_grouped(const ops::GroupedMatmul& op, int compute_capability, cudaStream_t stream);

}  // namespace precbench
