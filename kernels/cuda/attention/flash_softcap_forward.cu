// Flash attention, forward, with soft-capped scores (Gemma 2), also in a window and within documents: instantiates
// flash_forward.cuh in a file of its own, so that both compile at once.
#include "kernels/cuda/attention/flash_forward.cuh"

namespace precbench::flash {

void launch_softcap_forward(const ForwardData& data, const AttentionShape& s, const DocumentMask& documents,
                            cudaStream_t stream) {
  with_capped_shape(s, documents, [&](const auto& shape) { launch_forward(data, s, shape, stream); });
}

}  // namespace precbench::flash
