// Quantization of a BF16 matrix into its row and column forms, and the measure of what that loses.
//
// The work is tile.cuh's: bytes per element are 2 read and 1 written per form where scales belong to blocks,
// and 2 more read where they belong to rows or the tensor, whose amaxes need a pass of their own.
#include "kernels/base/errors.h"
#include "kernels/cuda/quantize/produce.cuh"

namespace precbench {
namespace cuda {

namespace {

/// Throws Unsupported for a format that no kernel here makes.
FormArgs read_form(const GemmOperand& form) {
  const QuantFormat& f = form.format;
  if (f.dtype != DType::e4m3 && f.dtype != DType::e5m2)
    throw Unsupported(std::string("the CUDA device does not quantize to ") + name_of(f.dtype));
  if (f.granularity == Granularity::block_1x16)
    throw Unsupported("the CUDA device has no scales for blocks of 16");
  FormArgs args;
  args.data = form.data.as<std::uint8_t>();
  args.scale = form.scale.data;
  args.rows = form.data.rows;
  args.k = form.data.cols;
  args.dtype = f.dtype;
  args.granularity = f.granularity;
  args.scale_type = f.scale;
  args.rounding = f.scale_rounding;
  args.dropped_bits = f.dropped_bits;
  args.delayed = f.delayed();
  args.margin = f.history.margin;
  return args;
}

}  // namespace

FormArgs form_args(const GemmOperand& form, cudaStream_t stream) {
  if (!wanted(form)) return {};
  const FormArgs args = read_form(form);
  const Granularity g = args.granularity;
  const std::int64_t scope_rows = g == Granularity::tensor          ? args.rows
                                  : g == Granularity::block_128x128 ? kTile
                                                                    : 1;
  const std::int64_t scales = detail::blocks_of(args.rows, scope_rows) * scale_blocks(g, args.k);
  if (form.scale.size() != scales)
    PRECBENCH_CHECK(cudaMemsetAsync(form.scale.data, 0, form.scale.bytes(), stream));
  return args;
}

namespace {

/// The value as it stands in memory.
struct ValueSource {
  static constexpr int kOutputs = 1, kBatch = 8;
  struct Column {};
  using Raw = Bf16x8;
  Matrix x;
  std::int64_t rows = x.rows, cols = x.cols;

  bool vectors() const { return x.vectors; }
  template <bool kFull>
  __device__ Column column(std::int64_t) const {
    return {};
  }
  template <bool kFull>
  __device__ Raw fetch(std::int64_t row, std::int64_t col) const {
    return load<kFull>(x, row, col);
  }
  __device__ void make(Bf16x8 (&out)[1], const Raw& raw, const Column&, std::int64_t, std::int64_t) const {
    out[0] = raw;
  }
};

/// Blocks of an amax pass, of all outputs of an operand: 32 blocks fit a multiprocessor at most, and two
/// outputs of one source share an operand at most.
std::size_t parts_bytes(const CudaDevice& device) { return device.sm_count() * 64 * sizeof(std::uint32_t); }

}  // namespace

std::size_t amax_scratch_bytes(const CudaDevice& device, const QuantizedTensor& x) {
  const std::int64_t rows = scaled_by_row(x.rowwise) ? x.rowwise.data.rows : 0;
  const std::int64_t cols = scaled_by_row(x.columnwise) ? x.columnwise.data.rows : 0;
  return (x.amax_out.empty() || !x.amax_in.empty() ? 0 : parts_bytes(device)) +
         static_cast<std::size_t>(rows + cols) * sizeof(float);
}

TileOutput tile_output(CudaDevice& device, const QuantizedTensor& x, bool write_value, void* scratch) {
  TileOutput out;
  if (write_value) out.value = matrix(x.value);
  out.rowwise = form_args(x.rowwise, device.stream());
  out.columnwise = form_args(x.columnwise, device.stream());
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
  }
  return out;
}

void zero_amaxes(const TileOutput& output, cudaStream_t stream) {
  std::int32_t* first = output.row_amax ? output.row_amax : output.col_amax;
  const std::int64_t count =
      (output.row_amax ? output.rowwise.rows : 0) + (output.col_amax ? output.columnwise.rows : 0);
  if (count > 0) PRECBENCH_CHECK(cudaMemsetAsync(first, 0, count * sizeof(std::int32_t), stream));
}

void cast_value(CudaDevice& device, const Tensor& value, const TileOutput& output) {
  produce(device, ValueSource{matrix(value)}, TileOutputs<1>{{output}});
}

namespace {

constexpr int kErrorTerms = 5;
constexpr int kErrorTile = 32;
constexpr int kErrorThreads = 256;

/// partial: [blocks, kErrorTerms]. Tiles of 32 x 32, the value through shared memory, so that both the value
/// and a form in either order are read by rows.
__global__ void __launch_bounds__(kErrorThreads)
    quantization_error_kernel(double* partial, const Matrix value, const FormArgs form, bool columns) {
  __shared__ std::uint16_t tile[kErrorTile][kErrorTile + 2];
  __shared__ double buffers[kErrorTerms][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const float max = format_max(form.dtype, form.dropped_bits);
  const std::uint8_t max_code = form.dtype == DType::e4m3 ? e4m3_encode(max) : e5m2_encode(max);
  const float half_steps = half_steps_of_max(form.dtype, form.dropped_bits);
  const std::int64_t col_tiles = (value.cols + kErrorTile - 1) / kErrorTile;
  const std::int64_t tiles = (value.rows + kErrorTile - 1) / kErrorTile * col_tiles;
  double sums[kErrorTerms] = {};
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const std::int64_t row0 = t / col_tiles * kErrorTile, col0 = t % col_tiles * kErrorTile;
    __syncthreads();
    for (int r = warp; r < kErrorTile; r += kErrorThreads / kWarp)
      if (row0 + r < value.rows && col0 + lane < value.cols)
        tile[r][lane] = value.data[(row0 + r) * value.pitch + col0 + lane];
    __syncthreads();
    for (int r = warp; r < kErrorTile; r += kErrorThreads / kWarp) {
      const std::int64_t row = (columns ? col0 : row0) + r, k = (columns ? row0 : col0) + lane;
      if (row >= form.rows || k >= form.k) continue;
      const float v = bf16_decode(columns ? tile[lane][r] : tile[r][lane]);
      const std::uint8_t code = form.data[row * form.k + k];
      const float q =
          fp8_decode(code, form.dtype) * dequantizing(form.format(), form.scale, form.rows, form.k, row, k);
      const double difference = static_cast<double>(v) - q;
      sums[0] += static_cast<double>(v) * v;
      sums[1] += difference * difference;
      sums[2] += v != 0;
      sums[3] += v != 0 && q == 0;
      // Saturated: the cast hit the format's end and lost more than rounding would. Exact under a
      // power-of-two scale, where q divides.
      const float magnitude = fabsf(q);
      sums[4] += (code & 0x7F) == max_code && fabsf(v) > magnitude + magnitude / half_steps;
    }
  }
#pragma unroll
  for (int i = 0; i < kErrorTerms; ++i) {
    const double sum = block_sum(sums[i], buffers[i]);
    if (threadIdx.x == 0) partial[blockIdx.x * kErrorTerms + i] = sum;
  }
}

/// Warp i sums term i over the blocks.
__global__ void __launch_bounds__(kErrorTerms* kWarp)
    quantization_error_total(float* out, const double* partial, int blocks) {
  const int term = threadIdx.x / kWarp;
  double sum = 0;
  for (int b = threadIdx.x % kWarp; b < blocks; b += kWarp) sum += partial[b * kErrorTerms + term];
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) out[term] = static_cast<float>(sum);
}

}  // namespace

}  // namespace cuda

void CudaDevice::do_quantize(const ops::Quantize& op) {
  void* amaxes = scratch(cuda::amax_scratch_bytes(*this, op.x));
  const cuda::TileOutput output = cuda::tile_output(*this, op.x, false, amaxes);
  cuda::cast_value(*this, op.x.value, output);
  launched("quantize");
}

void CudaDevice::do_quantization_error(const ops::QuantizationError& op) {
  using namespace cuda;
  const int blocks = 4 * sm_count();
  auto* partial = static_cast<double*>(scratch(blocks * kErrorTerms * sizeof(double)));
  quantization_error_kernel<<<blocks, kErrorThreads, 0, stream()>>>(partial, matrix(op.value), read_form(op.form),
                                                                    op.columns);
  quantization_error_total<<<1, kErrorTerms * kWarp, 0, stream()>>>(op.out.as<float>(), partial, blocks);
  launched("quantization_error");
}

}  // namespace precbench
