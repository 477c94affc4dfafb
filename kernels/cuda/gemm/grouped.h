// The products of experts, ops::GroupedMatmul, by kernels of our own: one launch for all experts, whose tiles read the
// groups' offsets on the device. Nothing waits for the host, so a captured step replays with another routing. What no kernel
// takes is others' (grouped_matmul.cpp).
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/moe_ops.h"

namespace precbench {

/// What groups begin at multiples of, rows: those of a tile. Groups with other padding are taken by no kernel.
inline constexpr std::int64_t kGroupedPad = 128;

/// Whether launch_grouped would start it.
bool takes_grouped(const ops::GroupedMatmul& op, int compute_capability);

/// Starts the product on a GPU of this compute capability (90 is 9.0); false, with nothing started, where no kernel of this
/// build takes it there. Whether one does depends on shapes, formats and options alone, never on the routing. Operands are in
/// their forms' layouts for the whole of rows_capacity; D's padding rows may be written with zeros. Throws std::runtime_error
/// where CUDA refuses the launch.
bool launch_grouped(const ops::GroupedMatmul& op, int compute_capability, cudaStream_t stream);

}  // namespace precbench
