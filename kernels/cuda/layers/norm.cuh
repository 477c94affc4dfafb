// Launches of RMSNorm and LayerNorm: a row kernel, and passes for the copies that need more than one row.
#pragma once

#include "kernels/cuda/quantize/produce.cuh"

namespace precbench::cuda {

/// Runs a norm's forward. `kernel_of(vectors)` returns its row kernel, which takes `args` and `kept`. `source` makes h again
/// from the sum, for copies that the kernel cannot make where h itself is not written.
template <class Op, class Args, class Source, class KernelOf, class... Kept>
void run_norm(CudaDevice& device, const Op& op, const Args& args, const Source& source,
              const KernelOf& kernel_of, const Kept&... kept) {
  void* amaxes = device.scratch(amax_scratch_bytes(device, op.h));
  SplitOutput output = split(tile_output(device, op.h, writes_value(op.h), amaxes));
  const RowShape shape = row_shape(op.x.cols);
  with_vectors(shape, [&](auto vectors) {
    const auto kernel = kernel_of(vectors);
    const int grid = row_grid(device, kernel, shape.threads, 0, op.x.rows);
    if (output.later.tensor.result) output.later.tensor.count = grid;
    kernel<<<grid, shape.threads, 0, device.stream()>>>(args, output.now, kept...);
  });
  if (writes_value(op.h))
    cast_value(device, op.h.value, output.later);
  else
    produce(device, source, TileOutputs<1>{{output.later}});
  quantize_from_value(device, op.h);
}

/// Runs a norm's backward. `args.partial` becomes [blocks, kSums, cols] partial sums: of dweight, and of `dbias` if
/// kSums is 2.
template <int kVectors, int kSums, class Op, class Args, class Kernel, class... Kept>
void run_norm_backward(CudaDevice& device, const Op& op, Args args, const Tensor& dbias,
                       const RowShape& shape, Kernel kernel, const Kept&... kept) {
  const std::size_t shared_bytes = kSums * 2 * kVectors * shape.threads * sizeof(float4);
  const int grid =
      row_grid(device, kernel, shape.threads, shared_bytes, most_blocks_that_sum(device, op.dh.rows));
  const std::int64_t C = op.dh.cols, sums = grid * kSums * C;
  args.partial = static_cast<float*>(
      device.scratch(static_cast<std::size_t>(sums) * sizeof(float) + amax_scratch_bytes(device, op.dx)));
  SplitOutput output = split(tile_output(device, op.dx, writes_value(op.dx), args.partial + sums));
  if (output.later.tensor.result) output.later.tensor.count = grid;
  if (output.later.wants_cast()) output.now.value = matrix(op.dx.value);
  kernel<<<grid, shape.threads, shared_bytes, device.stream()>>>(args, output.now, kept...);
  sum_rows(op.dweight, args.partial, grid, kSums * C, op.accumulate, device.stream());
  if (kSums == 2) sum_rows(dbias, args.partial + C, grid, kSums * C, op.accumulate, device.stream());
  cast_value(device, op.dx.value, output.later);
}

}  // namespace precbench::cuda
