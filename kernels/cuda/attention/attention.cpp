// Attention on the CUDA device: which implementation runs an op, and what the record says about it.
//
// Candidates of a shape and direction are our kernels for Hopper (hopper.h), cuDNN and, where neither is there or takes
// the shape, our kernels for any GPU (flash.h). "auto" times them at first use. All write the same `lse`, so the forward
// pass of one may be followed by the backward of another. cuDNN's deterministic backward may keep a [B, heads, T, T]
// matrix: "auto" lets it have kDeterministicWorkspace and takes ours, which are always deterministic, beyond that.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/flash.h"
#include "kernels/cuda/attention/hopper.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/stopwatch.h"

namespace precbench {

namespace {

/// What tells problems apart: the shape, whether keys are in rows of their own, and whether a fixed order is asked for.
using AttentionKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                std::int64_t, std::int64_t, bool, bool>;

AttentionKey key_of(const AttentionShape& s, bool own_rows, bool deterministic) {
  return {s.B, s.T, s.heads, s.kv_heads, s.head_dim, s.keys(), s.offset, own_rows, deterministic};
}

/// One who can run a direction; neither: our kernels for any GPU.
template <class Kernel>
struct AttentionCandidate {
  const CudnnAttention::Plan* cudnn = nullptr;
  const Kernel* hopper = nullptr;
};

}  // namespace

struct AttentionState {
  enum class Choice { automatic, cudnn, own };
  Choice choice = Choice::automatic;
  std::unique_ptr<CudnnAttention> cudnn;  // null: not there, for the reason below
  std::string no_cudnn;
  std::string forward_name, backward_name;                            // what ran last; empty: nothing yet
  std::map<AttentionKey, AttentionCandidate<HopperForward>> forward;  // chosen so far
  std::map<AttentionKey, AttentionCandidate<HopperBackward>> backward;

  template <class Kernel>
  std::string name(const AttentionCandidate<Kernel>& candidate) const {
    if (candidate.cudnn) return "cudnn " + cudnn->version();
    return candidate.hopper ? candidate.hopper->name : "own";
  }
};

namespace {

constexpr std::int64_t kDeterministicWorkspace = std::int64_t{1} << 30;
constexpr std::int64_t kNoLimit = INT64_MAX;

/// Why those that take fused rows and as many keys as queries do not run an op; empty: they may.
std::string refusal_of_others(const AttentionShape& shape, bool own_rows) {
  if (!shape.square())
    return fmt::format(
        "attention of {} queries to {} keys at an offset of {}: the cuda device takes as many keys as queries, and no "
        "offset",
        shape.T, shape.keys(), shape.offset);
  return own_rows ? "attention: the cuda device takes keys and values from the fused rows only" : "";
}

/// Those that can run an op, in the order of preference where none is timed; throws Unsupported where there are none.
/// make_plan() is cuDNN's plan.
template <class Kernel, class MakePlan>
std::vector<AttentionCandidate<Kernel>> candidates_of(const AttentionState& state,
                                                      const AttentionShape& shape, bool own_rows,
                                                      const std::vector<const Kernel*>& hopper,
                                                      std::int64_t workspace_limit, MakePlan&& make_plan) {
  using Choice = AttentionState::Choice;
  std::vector<AttentionCandidate<Kernel>> candidates;
  if (state.choice != Choice::cudnn)
    for (const Kernel* kernel : hopper) candidates.push_back({.hopper = kernel});
  const std::string others = refusal_of_others(shape, own_rows);
  if (!others.empty()) {
    if (candidates.empty())
      throw Unsupported(others + ", but on Hopper at head widths 64 and 128 (attention own)");
    return candidates;
  }
  std::string no_cudnn = state.no_cudnn;
  if (state.cudnn && state.choice != Choice::own) {
    const CudnnAttention::Plan& plan = make_plan();
    no_cudnn = plan.refusal;
    const bool fits = state.choice == Choice::cudnn || plan.workspace_bytes <= workspace_limit;
    if (no_cudnn.empty() && fits) candidates.push_back({.cudnn = &plan});
    if (no_cudnn.empty()) no_cudnn = fmt::format("its workspace would be {} MiB", plan.workspace_bytes >> 20);
  }
  if (!candidates.empty()) return candidates;
  if (state.choice == Choice::cudnn)
    throw Unsupported(fmt::format("attention with cuDNN: {}; use auto or own", no_cudnn));
  const std::string no_own = flash_attention_refusal(shape);
  if (!no_own.empty()) throw Unsupported(fmt::format("attention: {} (cuDNN: {})", no_own, no_cudnn));
  return {{}};
}

std::vector<AttentionCandidate<HopperForward>> forward_candidates(const AttentionState& state,
                                                                  const AttentionShape& shape, bool own_rows,
                                                                  int compute_capability) {
  return candidates_of(
      state, shape, own_rows, hopper_forward_kernels(shape, compute_capability),
      kNoLimit, [&]() -> const auto& { return state.cudnn->forward_plan(shape); });
}

std::vector<AttentionCandidate<HopperBackward>> backward_candidates(const AttentionState& state,
                                                                    const AttentionShape& shape,
                                                                    bool own_rows, bool deterministic,
                                                                    int compute_capability) {
  return candidates_of(
      state, shape, own_rows, hopper_backward_kernels(shape, compute_capability),
      deterministic ? kDeterministicWorkspace : kNoLimit, [&]() -> const auto& {
        return state.cudnn->backward_plan(shape, deterministic);
      });
}

/// The fastest at running an op, which may be run again and again. A later one must be better by more than noise.
template <class Candidate>
Candidate fastest(const std::vector<Candidate>& all, CUstream_st* stream,
                  const std::function<void(const Candidate&)>& run) {
  constexpr int kRuns = 5;
  constexpr float kMargin = 0.99f;
  std::vector<float> best(all.size(), INFINITY);
  Stopwatch watch(stream);
  for (int i = -1; i < kRuns; ++i)  // the first loads the kernels
    for (std::size_t c = 0; c < all.size(); ++c) {
      watch.begin();
      run(all[c]);
      const float ms = watch.end();
      if (i >= 0) best[c] = std::min(best[c], ms);
    }
  std::size_t chosen = 0;
  for (std::size_t c = 1; c < all.size(); ++c)
    if (best[c] < kMargin * best[chosen]) chosen = c;
  return all[chosen];
}

/// Runs an op by the one chosen for it, who is chosen now if this is the first of its kind.
template <class Candidate, class MakeCandidates>
const Candidate& run_by_choice(const CudaDevice& device, std::map<AttentionKey, Candidate>& chosen,
                               const AttentionKey& key, MakeCandidates&& make_candidates,
                               const std::function<void(const Candidate&)>& run) {
  auto found = chosen.find(key);
  if (found == chosen.end()) {
    if (device.capturing()) throw std::logic_error("attention: a new shape inside a captured step");
    const std::vector<Candidate> all = make_candidates();
    const bool by_timing = all.size() > 1 && device.autotunes();
    found = chosen.emplace(key, by_timing ? fastest(all, device.stream(), run) : all.front()).first;
  }
  run(found->second);
  return found->second;
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
    forward_candidates(state, shape, false, compute_capability());
    backward_candidates(state, shape, false, deterministic(), compute_capability());
  } catch (const Unsupported& refusal) {
    return refusal.what();
  }
  return {};
}

void CudaDevice::do_attention(const ops::Attention& op) {
  AttentionState& state = attention_state();
  using Candidate = AttentionCandidate<HopperForward>;
  const bool own_rows = !op.kv.empty();
  const auto run = [&](const Candidate& candidate) {
    if (candidate.cudnn)
      state.cudnn->forward(op.out.value, op.lse, op.qkv, op.shape, scratch(candidate.cudnn->workspace_bytes));
    else if (candidate.hopper)
      candidate.hopper->launch({op.out.value, op.lse, op.qkv, op.kv}, op.shape, stream());
    else
      flash_attention(op.out.value, op.lse, op.qkv, op.shape, stream());
  };
  const Candidate& ran = run_by_choice<Candidate>(
      *this, state.forward, key_of(op.shape, own_rows, false),
      [&] { return forward_candidates(state, op.shape, own_rows, compute_capability()); }, run);
  state.forward_name = state.name(ran);
  launched("attention");
  do_quantize({op.out});
}

void CudaDevice::do_attention_backward(const ops::AttentionBackward& op) {
  AttentionState& state = attention_state();
  using Candidate = AttentionCandidate<HopperBackward>;
  const bool own_rows = !op.kv.empty();
  const auto run = [&](const Candidate& candidate) {
    if (candidate.cudnn)
      state.cudnn->backward(op.dqkv, op.dout, op.out, op.lse, op.qkv, op.shape, deterministic(),
                            scratch(candidate.cudnn->workspace_bytes));
    else if (candidate.hopper)
      candidate.hopper->launch({.dqkv = op.dqkv,
                                .dkv = op.dkv,
                                .dout = op.dout,
                                .forward = {op.out, op.lse, op.qkv, op.kv},
                                .workspace = scratch(candidate.hopper->workspace_bytes(op.shape))},
                               op.shape, stream());
    else
      flash_attention_backward(op.dqkv, op.dout, op.out, op.lse, op.qkv, op.shape,
                               scratch(flash_attention_workspace(op.shape)), stream());
  };
  const Candidate& ran = run_by_choice<Candidate>(
      *this, state.backward, key_of(op.shape, own_rows, deterministic()),
      [&] { return backward_candidates(state, op.shape, own_rows, deterministic(), compute_capability()); },
      run);
  state.backward_name = state.name(ran);
  launched("attention_backward");
}

}  // namespace precbench
