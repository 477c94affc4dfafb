// Flash attention, backward, with plain scores, and the shapes that these kernels support: instantiates
// flash_backward.cuh.
#include "kernels/cuda/attention/flash_backward.cuh"

#include <string>

namespace precbench {
namespace {

using namespace flash;

constexpr int kDeltaThreads = 256;

__global__ void flash_delta_kernel(BackwardData data, FlashShape shape, std::int64_t rows) {
  wait_for_work_before();
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x) / 32;
  if (item >= rows) return;  // uniform per warp: rows counts all heads
  const std::int64_t token = item / shape.heads;
  const int head = static_cast<int>(item % shape.heads), lane = threadIdx.x % 32;
  const std::int64_t at = token * shape.out_stride + head * shape.head_dim;
  float sum = 0;
  for (int d = 2 * lane; d < shape.head_dim; d += 64) {
    const float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(data.dout + at + d));
    const float2 y = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(data.out + at + d));
    sum += x.x * y.x + x.y * y.y;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  const std::int64_t batch = token / shape.T, t = token % shape.T;
  if (lane == 0) data.delta[(batch * shape.heads + head) * shape.T + t] = sum;
}

}  // namespace

int flash::shared_bytes_per_block() {
  int device = 0, bytes = 0;
  PRECBENCH_CHECK(cudaGetDevice(&device));
  PRECBENCH_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes;
}

std::string flash_attention_refusal(const AttentionShape& s) {
  if (s.softcap != 0 && !(s.softcap >= kSmallestSoftcap && s.softcap <= kLargestSoftcap))
    return "our attention kernels soft-cap scores at 1/1024 to 1024, not at " + std::to_string(s.softcap);
  if (s.v_dim() != s.head_dim) return "our attention kernels take values as wide as keys";
  if (s.head_dim % 8 != 0 || s.head_dim > kMaxHeadDim)
    return "our attention kernels take a head_dim that is a multiple of 8 and at most 256, this one is " +
           std::to_string(s.head_dim);
  if (s.head_dim <= 128) return "";
  const int needed = s.head_dim > 192 ? WideDkvTiles<256, PackedShape>::kSharedBytes
                                      : WideDkvTiles<192, PackedShape>::kSharedBytes;
  const int allowed = shared_bytes_per_block();
  if (allowed >= needed) return "";
  return "our attention kernels need " + std::to_string((needed + 1023) / 1024) +
         " KiB of shared memory per block for a head_dim of " + std::to_string(s.head_dim) +
         ", this GPU has " + std::to_string(allowed / 1024);
}

std::int64_t flash_attention_workspace(const AttentionShape& s) { return s.tokens() * s.heads * 4; }

void flash_attention_backward(const AttentionGradients& g, const AttentionShape& s, CUstream_st* stream,
                              const DocumentMask& documents) {
  const AttentionTensors& forward = g.forward;
  const BackwardData data = {g.dqkv.as<__nv_bfloat16>(),
                             g.dout.as<const __nv_bfloat16>(),
                             forward.out.as<const __nv_bfloat16>(),
                             forward.qkv.as<const __nv_bfloat16>(),
                             forward.lse.as<const float>(),
                             static_cast<float*>(g.workspace)};
  const std::int64_t rows = s.tokens() * s.heads;
  flash_delta_kernel<<<(rows * 32 + kDeltaThreads - 1) / kDeltaThreads, kDeltaThreads, 0, stream>>>(
      data, flash_shape(s), rows);
  if (needs_offset_shape(s, forward.kv, documents))
    launch_offset_backward(data, s, offset_shape_of(s, documents, forward.qkv, forward.kv, g.dqkv, g.dkv),
                           stream);
  else if (s.softcap != 0)
    launch_softcap_backward(data, s, documents, stream);
  else if (documents.empty())
    launch_backward(data, s, flash_shape(s), stream);
  else
    launch_backward(data, s, packed_shape(s, documents.first_key.as<const int>()), stream);
}

}  // namespace precbench
