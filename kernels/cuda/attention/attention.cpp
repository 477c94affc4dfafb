// Attention on the CUDA device: selects the implementation of an op, and names it for the record.
//
// There are cuDNN, our Hopper kernels (hopper.h) and, if neither is available or supports the shape, our
// kernels for any GPU (flash.h). "auto" takes the faster of the first two by a fixed rule, not by timing:
// kernels round differently, and a case must compute the same bits in every run. All write the same `lse`, so
// the forward pass of one may be followed by the backward of another. cuDNN's deterministic backward may need
// a [B, heads, T, T] matrix: "auto" allows kDeterministicWorkspace for it and uses ours beyond that.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/flash.h"
#include "kernels/cuda/attention/hopper.h"
#include "kernels/cuda/cuda_device.h"

namespace precbench {

namespace {

/// Key of a problem: the shape, whether keys are in separate rows, and whether a fixed order is requested.
using AttentionKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                std::int64_t, std::int64_t, std::int64_t, std::int64_t, float, bool, bool>;

AttentionKey key_of(const AttentionShape& s, bool own_rows, bool deterministic) {
  return {s.B,      s.T,      s.heads,  s.kv_heads, s.head_dim, s.v_dim(),
          s.keys(), s.offset, s.window, s.softcap,  own_rows,   deterministic};
}

/// Implementation of one direction; neither: our kernels for any GPU.
template <class Kernel>
struct AttentionRunner {
  const CudnnAttention::Plan* cudnn = nullptr;
  const Kernel* hopper = nullptr;
};

}  // namespace

struct AttentionState {
  enum class Choice { automatic, cudnn, own };
  Choice choice = Choice::automatic;
  std::unique_ptr<CudnnAttention> cudnn;  // null: unavailable, for the reason below
  std::string no_cudnn;
  // implementation of the last run; empty: not run yet
  std::string forward_name, backward_name;
  std::map<AttentionKey, AttentionRunner<HopperForward>> forward;  // selected so far
  std::map<AttentionKey, AttentionRunner<HopperBackward>> backward;

  template <class Kernel>
  std::string name(const AttentionRunner<Kernel>& runner) const {
    if (runner.cudnn) return "cudnn " + cudnn->version();
    return runner.hopper ? runner.hopper->name : "own";
  }
};

namespace {

constexpr std::int64_t kDeterministicWorkspace = std::int64_t{1} << 30;
constexpr std::int64_t kNoLimit = INT64_MAX;

/// Returns why cuDNN alone does not take a shape.
std::string no_mask(const AttentionShape& s) {
  const std::string what = s.softcap != 0
                               ? "soft-capped scores"
                               : fmt::format("mask of {} queries to {} keys at an offset of {}{}", s.T,
                                             s.keys(), s.offset, s.window > 0 ? ", in a window" : "");
  return fmt::format("attention with cuDNN: has no {}; use auto or own", what);
}

/// Selects the implementation of an op; throws Unsupported if there is none. `hopper` may be null.
/// make_plan() returns cuDNN's plan.
template <class Kernel, class MakePlan>
AttentionRunner<Kernel> runner_of(const AttentionState& state, const AttentionShape& shape, bool own_rows,
                                  const Kernel* hopper, bool hopper_is_faster, std::int64_t workspace_limit,
                                  MakePlan&& make_plan) {
  using Choice = AttentionState::Choice;
  const bool masked = cuda::cudnn_mask(shape).has_value();
  if (state.choice == Choice::cudnn && !masked) throw Unsupported(no_mask(shape));
  // Ours have been measured with the keys of other ranks.
  const bool whole = !own_rows && shape.square();
  const bool ours_first =
      state.choice == Choice::own || (state.choice == Choice::automatic && (hopper_is_faster || !whole));
  if (hopper && (ours_first || !masked)) return {.hopper = hopper};
  std::string no_cudnn = state.no_cudnn;
  if (masked && state.cudnn && state.choice != Choice::own) {
    const CudnnAttention::Plan& plan = make_plan();
    no_cudnn = plan.refusal;
    const bool fits = state.choice == Choice::cudnn || plan.workspace_bytes <= workspace_limit;
    if (no_cudnn.empty() && fits) return {.cudnn = &plan};
    if (no_cudnn.empty()) no_cudnn = fmt::format("its workspace would be {} MiB", plan.workspace_bytes >> 20);
  }
  if (state.choice == Choice::cudnn)
    throw Unsupported(fmt::format("attention with cuDNN: {}; use auto or own", no_cudnn));
  if (hopper) return {.hopper = hopper};
  if (const std::string no_own = flash_attention_refusal(shape); !no_own.empty())
    throw Unsupported(
        fmt::format("attention: {}{}", no_own, masked ? fmt::format(" (cuDNN: {})", no_cudnn) : ""));
  return {};
}

AttentionRunner<HopperForward> forward_runner(const AttentionState& state, const AttentionShape& shape,
                                              bool own_rows, int compute_capability) {
  return runner_of(
      state, shape, own_rows, hopper_forward(shape, compute_capability), true,
      kNoLimit, [&]() -> const auto& { return state.cudnn->forward_plan(shape, own_rows); });
}

AttentionRunner<HopperBackward> backward_runner(const AttentionState& state, const AttentionShape& shape,
                                                bool own_rows, bool deterministic, int compute_capability) {
  return runner_of(
      state, shape, own_rows, hopper_backward(shape, compute_capability, deterministic),
      hopper_backward_is_faster(shape, deterministic),
      deterministic ? kDeterministicWorkspace : kNoLimit, [&]() -> const auto& {
        return state.cudnn->backward_plan(shape, own_rows, deterministic);
      });
}

/// Returns the cached selection of an op, or selects now.
template <class Runner, class MakeRunner>
const Runner& known_runner(const CudaDevice& device, std::map<AttentionKey, Runner>& known,
                           const AttentionKey& key, MakeRunner&& make_runner) {
  auto found = known.find(key);
  if (found == known.end()) {
    if (device.capturing()) throw std::logic_error("attention: a new shape inside a captured step");
    found = known.emplace(key, make_runner()).first;
  }
  return found->second;
}

/// Return the implementation of an op, selected at its first call. Throw Unsupported if there is none.
const AttentionRunner<HopperForward>& runner_for(const CudaDevice& device, AttentionState& state,
                                                 const ops::Attention& op) {
  const bool own_rows = !op.kv.empty();
  return known_runner(device, state.forward, key_of(op.shape, own_rows, false),
                      [&] { return forward_runner(state, op.shape, own_rows, device.compute_capability()); });
}

const AttentionRunner<HopperBackward>& runner_for(const CudaDevice& device, AttentionState& state,
                                                  const ops::AttentionBackward& op) {
  const bool own_rows = !op.kv.empty(), deterministic = device.deterministic();
  return known_runner(device, state.backward, key_of(op.shape, own_rows, deterministic), [&] {
    return backward_runner(state, op.shape, own_rows, deterministic, device.compute_capability());
  });
}

/// Return the bytes of scratch of one call.
std::int64_t scratch_bytes(const AttentionRunner<HopperForward>& runner, const AttentionShape&) {
  return runner.cudnn ? runner.cudnn->workspace_bytes : 0;
}

std::int64_t scratch_bytes(const AttentionRunner<HopperBackward>& runner, const AttentionShape& shape) {
  if (runner.cudnn) return runner.cudnn->workspace_bytes;
  return runner.hopper ? runner.hopper->workspace_bytes(shape) : flash_attention_workspace(shape);
}

/// Returns why no implementation supports packed documents, which only our kernels for any GPU do; empty: they do.
template <class Op>
std::string refusal_of_documents(const AttentionState& state, const Op& op) {
  if (state.choice == AttentionState::Choice::cudnn)
    return "attention with cuDNN: has no documents that share sequences; use auto or own";
  return flash_attention_refusal(op.shape);
}

template <class Op>
void check_documents(const AttentionState& state, const Op& op) {
  if (const std::string why = refusal_of_documents(state, op); !why.empty()) throw Unsupported(why);
}

/// Return an op's operands as our kernels take them.
AttentionTensors tensors_of(const ops::Attention& op) { return {op.out.value, op.lse, op.qkv, op.kv}; }
AttentionGradients gradients_of(const ops::AttentionBackward& op, void* workspace) {
  return {op.dqkv, op.dkv, op.dout, {op.out, op.lse, op.qkv, op.kv}, workspace};
}

/// Returns an op's scratch; none if the op has no implementation, which running it says.
template <class Op>
ScratchSizes scratch_sizes_of(const CudaDevice& device, AttentionState& state, const Op& op) {
  try {
    const std::int64_t bytes = scratch_bytes(runner_for(device, state, op), op.shape);
    return {(bytes + 3) / std::int64_t{sizeof(float)}};
  } catch (const Unsupported&) {
    return {};
  }
}

}  // namespace

AttentionState& CudaDevice::attention_state() const {
  if (!attention_) {
    attention_ = std::make_shared<AttentionState>();
    attention_->cudnn = CudnnAttention::open(stream(), attention_->no_cudnn);
  }
  return *attention_;
}

void CudaDevice::set_attention(const std::string& which) {
  using Choice = AttentionState::Choice;
  const std::vector<std::string> words = {"auto", "cudnn", "own"};  // in Choice's order
  const auto word = std::find(words.begin(), words.end(), which);
  if (word == words.end())
    throw InvalidInput(fmt::format("attention is one of auto, cudnn and own, not \"{}\"", which));
  const auto choice = static_cast<Choice>(word - words.begin());
  AttentionState& state = attention_state();
  if (choice == Choice::cudnn && !state.cudnn)
    throw Unsupported(fmt::format("attention with cuDNN: {}; use auto or own", state.no_cudnn));
  state.choice = choice;
  state.forward.clear();
  state.backward.clear();
}

std::string CudaDevice::attention_name() const {
  if (!attention_) return "none yet";
  const std::string& forward = attention_->forward_name;
  const std::string& backward = attention_->backward_name;
  if (forward.empty() || backward.empty() || forward == backward) {
    const std::string& name = forward.empty() ? backward : forward;
    return name.empty() ? "none yet" : name;
  }
  return fmt::format("{} forward, {} backward", forward, backward);
}

std::string CudaDevice::attention_refusal(const AttentionShape& shape) {
  try {
    const AttentionState& state = attention_state();
    forward_runner(state, shape, false, compute_capability());
    backward_runner(state, shape, false, deterministic(), compute_capability());
  } catch (const Unsupported& refusal) {
    return refusal.what();
  }
  return {};
}

ScratchSizes CudaDevice::scratch_of(const ops::Attention& op) const {
  if (!op.documents.empty()) return {};
  return scratch_sizes_of(*this, attention_state(), op);
}

ScratchSizes CudaDevice::scratch_of(const ops::AttentionBackward& op) const {
  if (!op.documents.empty()) return {(flash_attention_workspace(op.shape) + 3) / std::int64_t{sizeof(float)}};
  return scratch_sizes_of(*this, attention_state(), op);
}

void CudaDevice::do_attention(const ops::Attention& op) {
  AttentionState& state = attention_state();
  if (!op.documents.empty()) {
    check_documents(state, op);
    flash_attention(tensors_of(op), op.shape, stream(), op.documents);
    state.forward_name = "own";
    launched("attention");
    return do_quantize({op.out});
  }
  const AttentionRunner<HopperForward>& runner = runner_for(*this, state, op);
  void* workspace = scratch(scratch_bytes(runner, op.shape));
  if (runner.cudnn)
    state.cudnn->forward(op, workspace);
  else if (runner.hopper)
    runner.hopper->launch(tensors_of(op), op.shape, stream());
  else
    flash_attention(tensors_of(op), op.shape, stream());
  state.forward_name = state.name(runner);
  launched("attention");
  do_quantize({op.out});
}

void CudaDevice::do_attention_backward(const ops::AttentionBackward& op) {
  AttentionState& state = attention_state();
  if (!op.documents.empty()) {
    check_documents(state, op);
    flash_attention_backward(gradients_of(op, scratch(flash_attention_workspace(op.shape))), op.shape,
                             stream(), op.documents);
    state.backward_name = "own";
    return launched("attention_backward");
  }
  const AttentionRunner<HopperBackward>& runner = runner_for(*this, state, op);
  void* workspace = scratch(scratch_bytes(runner, op.shape));
  if (runner.cudnn)
    state.cudnn->backward(op, deterministic(), workspace);
  else if (runner.hopper)
    runner.hopper->launch(gradients_of(op, workspace), op.shape, stream());
  else
    flash_attention_backward(gradients_of(op, workspace), op.shape, stream());
  state.backward_name = state.name(runner);
  launched("attention_backward");
}

}  // namespace precbench
