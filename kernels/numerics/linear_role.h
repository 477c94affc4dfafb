// Roles of a model's linear layers.
#pragma once

#include <cstdint>

namespace precbench {

/// Role of a linear layer, by which recipes are chosen and records and messages name layers. head is lm_head;
/// the others belong to a block. q, k and v are the parts of qkv if they are three GEMMs instead of one. In
/// an MoE model gate_up and down are the experts'; those of the shared expert (shared_*) use the same
/// recipes; the router always stays in BF16. With latent attention qkv has the GEMMs that read a block's input, and
/// q_up and kv_up those that make heads of latents, which use qkv's recipe.
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
  router,
  q_up,
  kv_up
};
inline constexpr int kLinearRoles = 5;  ///< without qkv's parts and the roles of MoE and latent attention
inline constexpr LinearRole kQkvParts[] = {LinearRole::q, LinearRole::k, LinearRole::v};
inline constexpr int kRolesAndParts = kLinearRoles + 3;  ///< roles by which recipes are chosen
inline constexpr int kAllLinearRoles = kRolesAndParts + 5;

/// Linear layers of a block.
inline constexpr LinearRole kLinearsOfBlock[] = {LinearRole::qkv, LinearRole::o, LinearRole::gate_up,
                                                 LinearRole::down};

constexpr bool is_qkv_part(LinearRole role) {
  return static_cast<int>(role) >= kLinearRoles && static_cast<int>(role) < kRolesAndParts;
}
/// Returns 0, 1 or 2 for q, k or v.
constexpr int place_in_qkv(LinearRole part) { return static_cast<int>(part) - kLinearRoles; }
/// "qkv", "o", "gate_up", "down", "lm_head", "q", "k", "v", "shared_gate_up", "shared_down", "router", "q_up",
/// "kv_up"
const char* name_of(LinearRole role);

/// Returns true for the GEMMs that make heads of latents.
constexpr bool is_latent_up(LinearRole role) { return role == LinearRole::q_up || role == LinearRole::kv_up; }

/// Returns the role whose recipe a linear layer uses.
constexpr LinearRole recipe_role(LinearRole role) {
  return role == LinearRole::shared_gate_up ? LinearRole::gate_up
         : role == LinearRole::shared_down  ? LinearRole::down
         : is_latent_up(role)               ? LinearRole::qkv
                                            : role;
}

}  // namespace precbench
