// The linear layers of a model by what they do.
#pragma once

#include <cstdint>

namespace precbench {

/// Recipes are chosen by it, and records and messages name layers by it. head: lm_head; the others are a block's. q, k and v
/// are the parts of qkv where they are three products instead of one. In a mixture of experts gate_up and down are the
/// experts', and those of the expert that every token takes (shared_*) go by their recipes; the router goes by none and stays
/// in BF16.
enum class LinearRole : std::uint8_t {
  qkv,
  o,
  gate_up,
  down,
  head,
  q,
  k,
  v,
  shared_gate_up,
  shared_down,
  router
};
inline constexpr int kLinearRoles = 5;  ///< without qkv's parts and what only a mixture has
inline constexpr LinearRole kQkvParts[] = {LinearRole::q, LinearRole::k, LinearRole::v};
inline constexpr int kRolesAndParts = kLinearRoles + 3;  ///< those that recipes are chosen by
inline constexpr int kAllLinearRoles = kRolesAndParts + 3;

/// The linear layers of a block.
inline constexpr LinearRole kLinearsOfBlock[] = {LinearRole::qkv, LinearRole::o, LinearRole::gate_up,
                                                 LinearRole::down};

constexpr bool is_qkv_part(LinearRole role) {
  return static_cast<int>(role) >= kLinearRoles && static_cast<int>(role) < kRolesAndParts;
}
/// 0, 1 and 2
constexpr int place_in_qkv(LinearRole part) { return static_cast<int>(part) - kLinearRoles; }
/// "qkv", "o", "gate_up", "down", "lm_head", "q", "k", "v", "shared_gate_up", "shared_down", "router"
const char* name_of(LinearRole role);

/// The role by whose recipe a linear layer runs.
constexpr LinearRole recipe_role(LinearRole role) {
  return role == LinearRole::shared_gate_up ? LinearRole::gate_up
         : role == LinearRole::shared_down  ? LinearRole::down
                                            : role;
}

}  // namespace precbench
