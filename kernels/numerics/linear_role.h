// The linear layers of a model by what they do.
#pragma once

#include <cstdint>

namespace precbench {

/// Recipes are chosen by it, and records and messages name layers by it. head: lm_head; the others are a block's.
enum class LinearRole : std::uint8_t { qkv, o, gate_up, down, head };
inline constexpr int kLinearRoles = 5;
/// "qkv", "o", "gate_up", "down", "lm_head"
const char* name_of(LinearRole role);

}  // namespace precbench
