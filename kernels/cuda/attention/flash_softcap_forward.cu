// Flash attention, forward, with soft-capped scores (Gemma 2), also in a window and within documents: instantiates
// flash_forward.cuh in a file of its own, so that both compile at once.
#include "kernels/cuda/attention/flash_forward.cuh"

namespace precbench::flash {

void launch_softcap_forward(const ForwardData& data, const AttentionShape& s, const DocumentMask& documents,
                            cudaStream_t stream) {
  if (documents.empty())
    launch_forward(data, s, capped_shape(window_shape(s), s), stream);
  else
    launch_forward(data, s, capped_shape(packed_shape(s, documents.first_key.as<const int>()), s), stream);
}

}  // namespace precbench::flash
