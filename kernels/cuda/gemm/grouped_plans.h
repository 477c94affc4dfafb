// The products of experts by cuBLASLt's grouped call: one call for all of them, which reads where each lies and how large it is
// from arrays on the device, so that the host waits for nothing. By its users (TransformerEngine) it can be had from cuBLASLt 13.3 on
// Blackwell, from 13.4 on Hopper, and there with one scale for a tensor from 13.5; here 13.5.1 has run, on an H200. The function is
// looked for in the library that is loaded, which is then asked whether it has a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cuda/gemm/group_table.h"
#include "kernels/cuda/gemm/matmul_plans.h"
#include "kernels/device/moe_ops.h"

namespace precbench {

/// Returns the version of cuBLASLt from which on its grouped call works on GPUs of this compute capability; 0 where none does:
/// 12.x has no grouped kernels. 13.2 has the function, and is wrong about empty groups. Source: TransformerEngine.
constexpr std::size_t least_grouped_version(int compute_capability) {
  return compute_capability < 100 ? 130400 : compute_capability <= 110 ? 130300 : 0;
}

class GroupedPlans {
 public:
  GroupedPlans(CudaDevice& device, cublasLtHandle_t handle) : device_(device), handle_(handle) {}

  /// Whether this machine's library multiplies it: asked once for each problem, which the routing is no part of. Groups begin
  /// at multiples of kGroupedPad rows.
  bool takes(const ops::GroupedMatmul& op);

  /// Starts the product; D's padding rows are written, too. False, with D as it was, where the library refuses what it had a
  /// kernel for: it takes that no more. Throws std::logic_error for one that it does not take, std::runtime_error where a launch fails.
  bool run(const ops::GroupedMatmul& op);

  /// What run() takes of the device's scratch: the library's workspace, the arrays, and scales of blocks whose group does not
  /// lie together.
  std::int64_t scratch_bytes(const ops::GroupedMatmul& op) const;

 private:
  /// A problem as the library knows it. M of groups of rows, and K of groups of k, are their mean, which guides its choice.
  struct Key {
    PlanKey mean;
    std::int64_t experts = 0;
    bool over_k = false;
    bool operator==(const Key&) const = default;
  };
  struct Plan {
    Key key;
    std::optional<cublasLtMatmulAlgo_t> algorithm;  ///< none: it has no kernel
  };
  struct Layouts {
    LtLayout a, b, d;
  };

  /// None where no mode expresses it. Memory that is null, as before it is allocated, counts as aligned.
  static std::optional<Key> key_of(const ops::GroupedMatmul& op);
  /// Null where the library is too old or has no kernel.
  Plan* plan_for(const ops::GroupedMatmul& op);
  /// `some`: device memory. The heuristic reads no array, but wants to see that there are some.
  std::optional<cublasLtMatmulAlgo_t> ask(const Key& key, void* some) const;
  /// Of matrices whose sizes are in a table of the device.
  static Layouts layouts_of(const Key& key, const GroupTable& table);

  CudaDevice& device_;
  cublasLtHandle_t handle_;
  std::vector<Plan> plans_;  // a model has few problems
};

}  // namespace precbench
