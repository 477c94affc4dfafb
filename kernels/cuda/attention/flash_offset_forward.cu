// Flash attention, forward, with any number of keys at an offset, in a window or within documents, with plain and soft-capped
// scores: instantiates flash_forward.cuh in a file of its own, so that all compile at once.
#include "kernels/cuda/attention/flash_forward.cuh"

namespace precbench::flash {

void launch_offset_forward(const ForwardData& data, const AttentionShape& s, const OffsetShape& shape,
                           cudaStream_t stream) {
  if (s.softcap == 0) return launch_forward(data, s, shape, stream);
  launch_forward(data, s, capped_shape(shape, s), stream);
}

}  // namespace precbench::flash
