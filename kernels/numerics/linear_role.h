// The linear layers of a model by what they do.
#pragma once

#include <cstdint>

namespace precbench {

/// Recipes are chosen by it, and records and messages name layers by it. head: lm_head; the others are a block's. q, k and v
/// are the parts of qkv where they are three products instead of one.
enum class LinearRole : std::uint8_t { qkv, o, gate_up, down, head, q, k, v };
inline constexpr int kLinearRoles = 5;  ///< without qkv's parts
inline constexpr LinearRole kQkvParts[] = {LinearRole::q, LinearRole::k, LinearRole::v};
inline constexpr int kRolesAndParts = kLinearRoles + 3;

constexpr bool is_qkv_part(LinearRole role) { return static_cast<int>(role) >= kLinearRoles; }
/// 0, 1 and 2
constexpr int place_in_qkv(LinearRole part) { return static_cast<int>(part) - kLinearRoles; }
/// "qkv", "o", "gate_up", "down", "lm_head", "q", "k", "v"
const char* name_of(LinearRole role);

}  // namespace precbench
