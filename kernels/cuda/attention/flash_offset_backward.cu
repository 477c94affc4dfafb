// Flash attention, backward, with any number of keys at an offset, in a window or within documents, with plain and soft-capped
// scores: instantiates flash_backward.cuh in a file of its own, so that all compile at once.
#include "kernels/cuda/attention/flash_backward.cuh"

namespace precbench::flash {

void launch_offset_backward(const BackwardData& data, const AttentionShape& s, const OffsetShape& shape,
                            cudaStream_t stream) {
  if (s.softcap == 0) return launch_backward(data, s, shape, stream);
  launch_backward(data, s, capped_shape(shape, s), stream);
}

}  // namespace precbench::flash
