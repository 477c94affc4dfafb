// Flash attention, forward, with plain scores: instantiates flash_forward.cuh.
#include "kernels/cuda/attention/flash_forward.cuh"

namespace precbench {

using namespace flash;

void flash_attention(const AttentionTensors& tensors, const AttentionShape& s, CUstream_st* stream,
                     const DocumentMask& documents) {
  const ForwardData data = {tensors.out.as<__nv_bfloat16>(), tensors.lse.as<float>(),
                            tensors.qkv.as<const __nv_bfloat16>()};
  if (needs_offset_shape(s, tensors.kv, documents))
    launch_offset_forward(data, s, offset_shape_of(s, documents, tensors.qkv, tensors.kv), stream);
  else if (s.softcap != 0)
    launch_softcap_forward(data, s, documents, stream);
  else if (documents.empty())
    launch_forward(data, s, flash_shape(s), stream);
  else
    launch_forward(data, s, packed_shape(s, documents.first_key.as<const int>()), stream);
}

}  // namespace precbench
