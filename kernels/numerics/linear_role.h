// The linear layers of a model by what they do.
#pragma once

#include <cstdint>

namespace precbench {

/// Recipes are chosen by it, and records and messages name layers by it. head: lm_head; the others are a block's. In a
/// mixture of experts gate_up and down are the experts', and those of the expert that every token takes (shared_*) go by
/// their recipes; the router goes by none and stays in BF16.
enum class LinearRole : std::uint8_t { qkv, o, gate_up, down, head, shared_gate_up, shared_down, router };
/// Those that recipes are chosen by, and all.
inline constexpr int kLinearRoles = 5, kAllLinearRoles = 8;
/// "qkv", "o", "gate_up", "down", "lm_head", "shared_gate_up", "shared_down", "router"
const char* name_of(LinearRole role);

/// The role by whose recipe a linear layer runs.
constexpr LinearRole recipe_role(LinearRole role) {
  return role == LinearRole::shared_gate_up ? LinearRole::gate_up
         : role == LinearRole::shared_down  ? LinearRole::down
                                            : role;
}

}  // namespace precbench
