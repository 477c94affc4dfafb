// SwiGLU of all rows, and its backward.
#include "kernels/cuda/layers/swiglu.cuh"

namespace precbench {

void CudaDevice::do_swiglu(const ops::Swiglu& op) {
  using namespace cuda;
  with_activation<CudaMath>(op.activation, [&](auto act) {
    using Act = decltype(act);
    if (op.kept.empty()) return produce_operand(*this, SwigluSource<AllRows, Act>(op.gate_up, {}), op.s);
    clear_padding(op.kept, stream());
    const KeptInput gate = gate_part(op.kept), up = up_part(op.kept);
    const SwigluSource<AllRows, Act, KeepingInput> source({gate_part(op.gate_up), gate},
                                                          {up_part(op.gate_up), up}, {});
    produce_operand(*this, source, op.s, nullptr, SwigluSource<AllRows, Act, KeptInput>(gate, up, {}));
  });
  launched("swiglu");
}

void CudaDevice::do_swiglu_backward(const ops::SwigluBackward& op) {
  using namespace cuda;
  auto* amaxes = static_cast<std::byte*>(
      scratch(amax_scratch_bytes(*this, op.dgate_up) + amax_scratch_bytes(*this, op.s)));
  with_activation<CudaMath>(op.activation, [&](auto act) {
    using Act = decltype(act);
    if (op.kept.empty())
      return produce_swiglu_backward(*this, SwigluBackwardSource<AllRows, Act>(op.gate_up, op.ds, {}),
                                     op.dgate_up, op.s, amaxes);
    const SwigluBackwardSource<AllRows, Act, KeptInput> source(gate_part(op.kept), up_part(op.kept), op.ds,
                                                               {});
    produce_swiglu_backward(*this, source, op.dgate_up, op.s, amaxes);
  });
  launched("swiglu_backward");
}

}  // namespace precbench
