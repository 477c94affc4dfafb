// Attention on the CUDA device: which implementation runs an op, and what the record says about it.
//
// "auto" asks cuDNN first, per shape and direction, and takes our own kernels (flash.h) where cuDNN
// is not there or refuses. The two write the same `lse`, so the forward pass of one may be followed by the
// backward of the other. cuDNN's deterministic backward may keep a [B, heads, T, T] matrix: "auto" lets it
// have kDeterministicWorkspace and takes ours, which is always deterministic and needs none, beyond that.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/flash.h"
#include "kernels/cuda/cuda_device.h"

namespace precbench {

struct AttentionState {
  enum class Choice { automatic, cudnn, own };
  Choice choice = Choice::automatic;
  std::unique_ptr<CudnnAttention> cudnn;  // null: not there, for the reason below
  std::string no_cudnn;
  std::string forward_name, backward_name;  // what ran last; empty: nothing yet

  std::string cudnn_name() const { return "cudnn " + cudnn->version(); }
};

namespace {

constexpr std::int64_t kDeterministicWorkspace = std::int64_t{1} << 30;

// cuDNN's plan where cuDNN is to run the op, null where our kernels are; throws Unsupported where neither
// can.
template <class MakePlan>
const CudnnAttention::Plan* choose(AttentionState& state, const AttentionShape& shape,
                                   std::int64_t workspace_limit, MakePlan&& make_plan) {
  if (!shape.square())
    throw Unsupported(fmt::format(
        "attention of {} queries to {} keys at an offset of {}: the cuda device takes as many keys as "
        "queries, and no offset",
        shape.T, shape.keys(), shape.offset));
  std::string no_cudnn = state.no_cudnn;
  if (state.cudnn && state.choice != AttentionState::Choice::own) {
    const CudnnAttention::Plan& plan = make_plan();
    no_cudnn = plan.refusal;
    const bool fits =
        state.choice == AttentionState::Choice::cudnn || plan.workspace_bytes <= workspace_limit;
    if (no_cudnn.empty() && fits) return &plan;
    if (no_cudnn.empty()) no_cudnn = fmt::format("its workspace would be {} MiB", plan.workspace_bytes >> 20);
  }
  if (state.choice == AttentionState::Choice::cudnn)
    throw Unsupported(fmt::format("attention with cuDNN: {}; use auto or own", no_cudnn));
  const std::string no_own = flash_attention_refusal(shape);
  if (!no_own.empty()) throw Unsupported(fmt::format("attention: {} (cuDNN: {})", no_own, no_cudnn));
  return nullptr;
}

constexpr std::int64_t kNoLimit = INT64_MAX;

const CudnnAttention::Plan* choose_forward(AttentionState& state, const AttentionShape& shape) {
  return choose(
      state, shape, kNoLimit, [&]() -> const auto& { return state.cudnn->forward_plan(shape); });
}

const CudnnAttention::Plan* choose_backward(AttentionState& state, const AttentionShape& shape,
                                            bool deterministic) {
  return choose(
      state, shape, deterministic ? kDeterministicWorkspace : kNoLimit, [&]() -> const auto& {
        return state.cudnn->backward_plan(shape, deterministic);
      });
}

/// Throws Unsupported for keys and values in rows of their own.
void check_fused(const Tensor& kv) {
  if (!kv.empty())
    throw Unsupported("attention: the cuda device takes keys and values from the fused rows only");
}

}  // namespace

AttentionState& CudaDevice::attention_state() {
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
    choose_forward(attention_state(), shape);
    choose_backward(attention_state(), shape, deterministic());
  } catch (const Unsupported& refusal) {
    return refusal.what();
  }
  return {};
}

void CudaDevice::do_attention(const ops::Attention& op) {
  check_fused(op.kv);
  AttentionState& state = attention_state();
  const auto* plan = choose_forward(state, op.shape);
  if (plan) {
    state.cudnn->forward(op.out.value, op.lse, op.qkv, op.shape, scratch(plan->workspace_bytes));
    state.forward_name = state.cudnn_name();
  } else {
    flash_attention(op.out.value, op.lse, op.qkv, op.shape, stream());
    state.forward_name = "own";
  }
  launched("attention");
  do_quantize({op.out});
}

void CudaDevice::do_attention_backward(const ops::AttentionBackward& op) {
  check_fused(op.kv);
  AttentionState& state = attention_state();
  const auto* plan = choose_backward(state, op.shape, deterministic());
  if (plan) {
    state.cudnn->backward(op.dqkv, op.dout, op.out, op.lse, op.qkv, op.shape, deterministic(),
                          scratch(plan->workspace_bytes));
    state.backward_name = state.cudnn_name();
  } else {
    flash_attention_backward(op.dqkv, op.dout, op.out, op.lse, op.qkv, op.shape,
                             scratch(flash_attention_workspace(op.shape)), stream());
    state.backward_name = "own";
  }
  launched("attention_backward");
}

}  // namespace precbench
