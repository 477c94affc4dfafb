// Quantization of a BF16 matrix into its rowwise and columnwise copies; from_value.h lists formats made
// elsewhere.
//
// The work is done by tile.cuh. Bytes per element: 2 read and 1 written per copy for block scales, and 2 more
// read for scales per row or tensor, whose amaxes need a separate pass.
#include <algorithm>
#include <string>

#include "kernels/base/errors.h"
#include "kernels/cuda/quantize/produce.cuh"

namespace precbench {
namespace cuda {

CopyArgs copy_args(const GemmOperand& operand) {
  const QuantFormat& f = operand.format;
  if (f.dtype != DType::e4m3 && f.dtype != DType::e5m2 && !held_in_bf16(f.dtype))
    throw Unsupported(std::string("the CUDA device does not quantize to ") + name_of(f.dtype));
  CopyArgs args;
  args.data = operand.data.as<std::uint8_t>();
  args.scale = operand.scale.data;
  args.rows = operand.data.rows;
  args.k = operand.data.cols;
  args.dtype = f.dtype;
  args.granularity = f.granularity;
  args.scale_type = f.scale;
  args.rounding = f.scale_rounding;
  args.dropped_bits = f.dropped_bits;
  args.delayed = f.delayed();
  args.margin = f.history.margin;
  return args;
}

CopyArgs requested_copy(const GemmOperand& operand, cudaStream_t stream) {
  if (!wanted(operand) || made_from_value(operand)) return {};
  const CopyArgs args = copy_args(operand);
  const Granularity g = args.granularity;
  const std::int64_t scope_rows = g == Granularity::tensor          ? args.rows
                                  : g == Granularity::block_128x128 ? kTile
                                                                    : 1;
  const std::int64_t scales = detail::blocks_of(args.rows, scope_rows) * scale_blocks(g, args.k);
  if (operand.scale.size() != scales)
    PRECBENCH_CHECK(cudaMemsetAsync(operand.scale.data, 0, operand.scale.bytes(), stream));
  return args;
}

namespace {

/// The value in memory.
struct ValueSource : PlainSource {
  Matrix x;
  std::int64_t rows = x.rows, cols = x.cols;

  bool vectors() const { return x.vectors; }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    return load<kFull>(x, row, col);
  }
};

/// Blocks of an amax pass, over all outputs of an operand: at most 32 blocks fit a multiprocessor, and at
/// most two outputs of one source share an operand.
std::size_t parts_bytes(const CudaDevice& device) { return device.sm_count() * 64 * sizeof(std::uint32_t); }

}  // namespace

std::size_t amax_scratch_bytes(const CudaDevice& device, const QuantizedTensor& x, const Groups* groups) {
  const std::int64_t rows = scaled_by_row(x.rowwise) ? x.rowwise.data.rows : 0;
  const std::int64_t cols =
      scaled_by_row(x.columnwise) ? x.columnwise.data.rows * (groups ? groups->experts() : 1) : 0;
  return (x.amax_out.empty() || !x.amax_in.empty() ? 0 : parts_bytes(device)) +
         static_cast<std::size_t>(rows + cols) * sizeof(float);
}

TileOutput tile_output(CudaDevice& device, const QuantizedTensor& x, bool write_value, void* scratch,
                       const Groups* groups) {
  TileOutput out;
  if (write_value) out.value = matrix(x.value);
  out.rowwise = requested_copy(x.rowwise, device.stream());
  out.columnwise = requested_copy(x.columnwise, device.stream());
  auto* free = static_cast<std::byte*>(scratch);
  if (!x.amax_out.empty() && x.amax_in.empty()) {
    out.tensor.parts = reinterpret_cast<std::uint32_t*>(free);
    out.tensor.result = x.amax_out.as<std::uint32_t>();
    free += parts_bytes(device);
  } else if (!x.amax_in.empty()) {
    out.tensor.parts = x.amax_in.as<std::uint32_t>();
    out.tensor.count = 1;
    if (!x.amax_out.empty()) out.tensor.raised = x.amax_out.as<std::uint32_t>();
  }
  auto* amaxes = reinterpret_cast<std::int32_t*>(free);
  if (scaled_by_row(x.rowwise)) {
    out.row_amax = amaxes;
    out.rowwise.amax = reinterpret_cast<float*>(amaxes);
    amaxes += out.rowwise.rows;
  }
  if (scaled_by_row(x.columnwise)) {
    out.col_amax = amaxes;
    out.columnwise.amax = reinterpret_cast<float*>(amaxes);
    if (groups && groups->pad % kTile != 0)
      throw Unsupported(
          "the CUDA device scales columns of groups that begin at multiples of 128 rows, not of " +
          std::to_string(groups->pad));
    if (groups) {
      out.columnwise.group_offsets = groups->offsets.as<std::int32_t>();
      out.columnwise.groups = static_cast<int>(groups->experts());
    }
  }
  return out;
}

void zero_amaxes(const TileOutput& output, cudaStream_t stream) {
  std::int32_t* first = output.row_amax ? output.row_amax : output.col_amax;
  const std::int64_t count =
      (output.row_amax ? output.rowwise.rows : 0) +
      (output.col_amax ? output.columnwise.rows * std::max(1, output.columnwise.groups) : 0);
  if (count > 0) PRECBENCH_CHECK(cudaMemsetAsync(first, 0, count * sizeof(std::int32_t), stream));
}

void cast_value(CudaDevice& device, const Tensor& value, const TileOutput& output) {
  produce(device, ValueSource{{}, matrix(value)}, TileOutputs<1>{{output}});
}

}  // namespace cuda

void CudaDevice::do_quantize(const ops::Quantize& op) {
  void* amaxes = scratch(cuda::amax_scratch_bytes(*this, op.x));
  const cuda::TileOutput output = cuda::tile_output(*this, op.x, false, amaxes);
  cuda::cast_value(*this, op.x.value, output);
  cuda::quantize_from_value(*this, op.x);
  launched("quantize");
}

}  // namespace precbench
