// SwiGLU of all rows, and its backward.
#include "kernels/cuda/layers/swiglu.cuh"

namespace precbench {

void CudaDevice::do_swiglu(const ops::Swiglu& op) {
  using namespace cuda;
  with_activation<CudaMath>(op.activation, [&](auto act) {
    produce_operand(*this, SwigluSource<AllRows, decltype(act)>(op.gate_up, {}), op.s);
  });
  launched("swiglu");
}

void CudaDevice::do_swiglu_backward(const ops::SwigluBackward& op) {
  using namespace cuda;
  auto* amaxes = static_cast<std::byte*>(
      scratch(amax_scratch_bytes(*this, op.dgate_up) + amax_scratch_bytes(*this, op.s)));
  with_activation<CudaMath>(op.activation, [&](auto act) {
    const SwigluBackwardSource<AllRows, decltype(act)> source(op.gate_up, op.ds, {});
    produce_swiglu_backward(*this, source, op.dgate_up, op.s, amaxes);
  });
  launched("swiglu_backward");
}

}  // namespace precbench
