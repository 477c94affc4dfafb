// Helpers shared by GPU attention tests: a problem's tensors as the kernels take them, and the error bound.
#pragma once

#include "kernels/checks/check_attention.h"
#include "kernels/cuda/attention/flash.h"
#include "kernels/cuda/attention/hopper.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/gpu/attention_choice.h"
#include "kernels/gpu/gpu_testing.h"
#include "kernels/gpu/graph.h"
#include "kernels/testing/catch.h"

namespace precbench {

using Problem = checks::AttentionProblem;
using Part = checks::AttentionPart;
using checks::attention_reference, checks::AttentionResult, checks::rms_difference;
using checks::parts_of;

inline AttentionTensors tensors_of(const Problem& p) { return {p.out(), p.lse(), p.qkv(), p.kv()}; }
inline AttentionGradients gradients_of(const Problem& p, void* workspace) {
  return {p.dqkv(), p.dkv(), p.dout(), tensors_of(p), workspace};
}

/// Runs our kernels for any GPU, which the device selects only if others do not support a shape.
inline void run_flash(CudaDevice& device, const Problem& problem, const AttentionShape& shape,
                      const DocumentMask& documents = {}) {
  const DeviceBlock workspace(device, flash_attention_workspace(shape));
  const AttentionGradients gradients = gradients_of(problem, workspace.data());
  flash_attention(gradients.forward, shape, device.stream(), documents);
  flash_attention_backward(gradients, shape, device.stream(), documents);
  device.synchronize();
}

/// Requires the bits of an eager step, forward and backward, from every replay of its graph.
inline void check_replays(CudaDevice& device, Problem& problem) {
  const auto step = [&] {
    problem.forward();
    problem.backward();
  };
  problem.clear();
  step();
  const auto eager = problem.bits();
  const auto graph = capture_step(device, step);
  for (int i = 0; i < 2; ++i) {
    problem.clear();
    graph->replay();
    INFO("replay " << i);
    CHECK((problem.bits() == eager));
  }
}

inline void check_close(const AttentionShape& s, const AttentionResult& got, const AttentionResult& truth,
                        const AttentionResult& naive) {
  for (const checks::Finding& finding : checks::judge_attention(s, got, truth, naive, "", "")) {
    INFO(finding.what << " of B " << s.B << " T " << s.T << " keys " << s.keys() << " offset " << s.offset
                      << " heads " << s.heads << ":" << s.kv_heads << " head_dim " << s.head_dim << ": "
                      << finding.measured);
    CHECK(finding.agrees);
  }
}

}  // namespace precbench
