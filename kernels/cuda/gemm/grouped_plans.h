// Grouped expert GEMMs by cuBLASLt's grouped call: one call reads the address and size of each GEMM from
// device arrays, so that the host does not wait. According to TransformerEngine it is available from cuBLASLt
// 13.3 on Blackwell, from 13.4 on Hopper, and there with per-tensor scales from 13.5; tested here with 13.5.1
// on an H200. The function is looked up in the loaded library, which is then asked for a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cuda/gemm/group_table.h"
#include "kernels/cuda/gemm/matmul_plans.h"
#include "kernels/device/moe_ops.h"

namespace precbench {

/// Returns the first version of cuBLASLt whose grouped call works on GPUs of this compute capability; 0 if
/// none: 12.x has no grouped kernels. 13.2 has the function, but is wrong for empty groups. Source:
/// TransformerEngine.
constexpr std::size_t least_grouped_version(int compute_capability) {
  return compute_capability < 100 ? 130400 : compute_capability <= 110 ? 130300 : 0;
}

class GroupedPlans {
 public:
  GroupedPlans(CudaDevice& device, cublasLtHandle_t handle) : device_(device), handle_(handle) {}

  /// Returns true if this machine's library supports the op: queried once per problem, independent of the
  /// routing. Groups begin at multiples of kGroupedPad rows.
  bool takes(const ops::GroupedMatmul& op);

  /// Launches the GEMM; D's padding rows are written too. Returns false, with D unchanged, if the library
  /// rejects a problem for which it had a kernel, and then no longer supports it. Throws std::logic_error for
  /// an unsupported op, std::runtime_error if a launch fails.
  bool run(const ops::GroupedMatmul& op);

  /// Returns the scratch bytes of run(): the library's workspace, the arrays, and block scales that must be
  /// gathered.
  std::int64_t scratch_bytes(const ops::GroupedMatmul& op) const;

 private:
  /// A problem as the library knows it. M for groups of rows, and K for groups of k, are means that guide its
  /// choice.
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

  /// Returns none if no mode expresses the op. Null pointers, before allocation, count as aligned.
  static std::optional<Key> key_of(const ops::GroupedMatmul& op);
  /// Returns null if the library is too old or has no kernel.
  Plan* plan_for(const ops::GroupedMatmul& op);
  /// `some`: device memory. The heuristic reads no array, but requires non-null pointers.
  std::optional<cublasLtMatmulAlgo_t> ask(const Key& key, void* some) const;
  /// Returns layouts of matrices whose sizes are in a device table.
  static Layouts layouts_of(const Key& key, const GroupTable& table);

  CudaDevice& device_;
  cublasLtHandle_t handle_;
  std::vector<Plan> plans_;  // a model has few problems
};

}  // namespace precbench
