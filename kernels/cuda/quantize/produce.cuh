// From a QuantizedTensor to the launches that make it: the necessary passes and their order.
//
//   block scales, or a per-tensor scale with an amax known before
//                               cast_tiles
//   only a rowwise copy with scales per row
//                               one row kernel, which reads its input once
//   scales per tensor, row or column
//                               amax_tiles, then cast_tiles in the reverse order, whose first tiles are still
//                               in L2
#pragma once

#include "kernels/cuda/hopper/early_start.cuh"
#include "kernels/cuda/quantize/from_value.h"
#include "kernels/cuda/quantize/row.cuh"
#include "kernels/cuda/quantize/tile_kernels.cuh"

namespace precbench::cuda {

/// Returns the scratch bytes for the amaxes of an operand's scales. Here and below, `groups`: x is a grouped
/// value.
std::size_t amax_scratch_bytes(const CudaDevice& device, const QuantizedTensor& x,
                               const Groups* groups = nullptr);

/// Returns the output that makes an operand's requested copies except those of from_value.h, and amax_out;
/// with its value if `write_value`. `scratch`: amax_scratch_bytes. Clears scale buffers that have padding.
/// Throws Unsupported for groups that do not begin at tiles if columns have separate scales per group.
TileOutput tile_output(CudaDevice& device, const QuantizedTensor& x, bool write_value, void* scratch,
                       const Groups* groups = nullptr);

/// Zeroes the amaxes that an amax pass raises.
void zero_amaxes(const TileOutput& output, cudaStream_t stream);

/// Runs the passes over a value in memory.
void cast_value(CudaDevice& device, const Tensor& value, const TileOutput& output);

/// Processes one row of the source at a time: makes the value and the rowwise copy.
template <class Source, int kVectors>
__global__ void __launch_bounds__(kRowThreads, 2) produce_rows(const Source source, const TileOutput out) {
  wait_for_work_before();
  constexpr int kBatch = std::min(kVectors, Source::kBatch / 2);
  __shared__ std::uint32_t maxima[2][kWarp];
  RowWriter<kVectors> writer(out, source.cols);
  typename Source::Column columns[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    if (writer.col(v) < source.cols) columns[v] = source.template column<true>(writer.col(v));
  int buffer = 0;
  for (std::int64_t row = blockIdx.x; row < source.rows && !behind_groups(source, row);
       row += gridDim.x, buffer ^= 1) {
    Bf16x8 x[kVectors] = {};
#pragma unroll
    for (int first = 0; first < kVectors; first += kBatch) {
      typename Source::Raw raw[kBatch];
#pragma unroll
      for (int v = 0; v < kBatch; ++v)
        if (writer.col(first + v) < source.cols)
          raw[v] = source.template fetch<true>(row, writer.col(first + v));
#pragma unroll
      for (int v = 0; v < kBatch; ++v) {
        if (writer.col(first + v) >= source.cols) continue;
        Bf16x8 made[1];
        source.make(made, raw[v], columns[first + v], row, writer.col(first + v));
        x[first + v] = made[0];
        stay_packed(x[first + v]);
      }
    }
    writer.write(row, x, maxima[buffer]);
  }
}

/// Runs the passes that the outputs require. `then`: the same source for the second of two passes, if the first leaves
/// something cheaper to read; it then has no row kernel.
template <class Source, class Then>
void produce(CudaDevice& device, const Source& source, TileOutputs<Source::kOutputs> outputs,
             const Then& then) {
  constexpr int kOutputs = Source::kOutputs;
  constexpr int kStash = kStashBytes<kOutputs>;
  const int col_tiles = static_cast<int>((source.cols + kTile - 1) / kTile);
  const int tiles = static_cast<int>((source.rows + kTile - 1) / kTile) * col_tiles;
  if (tiles == 0) return;
  bool amax = false, cast = false, result = false;
  bool full = source.vectors() && source.rows % kTile == 0 && source.cols % kTile == 0;
  for (const TileOutput& out : outputs.of) {
    amax = amax || out.wants_amax();
    cast = cast || out.wants_cast();
    result = result || out.tensor.result;
    full = full && (!out.value.data || out.value.vectors);
  }
  if constexpr (kOutputs == 1 && std::is_same_v<Source, Then>) {
    const TileOutput& out = outputs.of[0];
    if (out.rowwise.granularity == Granularity::row && !out.columnwise.data && !out.tensor.result &&
        source.vectors() && fits_row(source.cols)) {
      const RowShape shape = row_shape(source.cols);
      with_vectors(shape, [&](auto vectors) {
        const auto kernel = produce_rows<Source, vectors>;
        const int grid = row_grid(device, kernel, shape.threads, 0, source.rows);
        kernel<<<grid, shape.threads, 0, device.stream()>>>(source, split(out).now);
      });
      return;
    }
  }
  if (amax) {
    const auto kernel = full ? amax_tiles<Source, true> : amax_tiles<Source, false>;
    const int grid = row_grid(device, kernel, kTileThreads, 0, tiles);
    for (int o = 0; o < kOutputs; ++o) {
      // Outputs of one operand share its amaxes.
      TileOutput& out = outputs.of[o];
      const bool shared = o > 0 && out.row_amax == outputs.of[o - 1].row_amax &&
                          out.col_amax == outputs.of[o - 1].col_amax &&
                          out.tensor.parts == outputs.of[o - 1].tensor.parts;
      if (!shared) zero_amaxes(out, device.stream());
      if (!out.tensor.result) continue;
      // After the parts written by a row kernel.
      out.tensor.first = shared ? outputs.of[o - 1].tensor.first + grid : out.tensor.count;
      for (int same = o; same >= 0 && outputs.of[same].tensor.parts == out.tensor.parts; --same)
        outputs.of[same].tensor.count = out.tensor.first + grid;
    }
    kernel<<<grid, kTileThreads, 0, device.stream()>>>(source, outputs, col_tiles, tiles);
  }
  if (cast || result) {
    with_tile_case(tile_case(outputs.of, full), [&](auto tile_case) {
      const auto run = [&](const auto& from) {
        const auto kernel = cast_tiles<std::decay_t<decltype(from)>, tile_case>;
        if (kStash > 0)
          PRECBENCH_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kStash));
        // The first tile's block stores the tensor's amax; if nothing else is requested, it runs alone.
        kernel<<<cast ? tiles : 1, kTileThreads, kStash, device.stream()>>>(from, outputs, col_tiles, amax);
      };
      amax ? run(then) : run(source);
    });
  }
}

template <class Source>
void produce(CudaDevice& device, const Source& source, const TileOutputs<Source::kOutputs>& outputs) {
  produce(device, source, outputs, source);
}

/// Makes an operand from a source. `groups`: of a grouped value; `then`: as for produce().
template <class Source, class Then>
void produce_operand(CudaDevice& device, const Source& source, const QuantizedTensor& x, const Groups* groups,
                     const Then& then) {
  void* amaxes = device.scratch(amax_scratch_bytes(device, x, groups));
  produce(device, source, TileOutputs<1>{{tile_output(device, x, writes_value(x), amaxes, groups)}}, then);
  quantize_from_value(device, x);
}

template <class Source>
void produce_operand(CudaDevice& device, const Source& source, const QuantizedTensor& x,
                     const Groups* groups = nullptr) {
  produce_operand(device, source, x, groups, source);
}

}  // namespace precbench::cuda
