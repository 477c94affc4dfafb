// Flash attention, forward, with plain scores: instantiates flash_forward.cuh.
#include "kernels/cuda/attention/flash_forward.cuh"

namespace precbench {

using namespace flash;

void flash_attention(const Tensor& out, const Tensor& lse, const Tensor& qkv, const AttentionShape& s,
                     CUstream_st* stream, const DocumentMask& documents) {
  const ForwardData data = {out.as<__nv_bfloat16>(), lse.as<float>(), qkv.as<const __nv_bfloat16>()};
  if (s.softcap != 0)
    launch_softcap_forward(data, s, documents, stream);
  else if (documents.empty())
    launch_forward(data, s, flash_shape(s), stream);
  else
    launch_forward(data, s, packed_shape(s, documents.first_key.as<const int>()), stream);
}

}  // namespace precbench
