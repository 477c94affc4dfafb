// Activation of the gate in SwiGLU and its relatives: s = activation(gate) * up.
#pragma once

#include <cstdint>

namespace precbench {

enum class Activation : std::uint8_t {
  silu,       ///< x sigma(x)
  gelu_tanh,  ///< GELU with tanh's approximation of erf (Hendrycks & Gimpel 2016)
  gelu,       ///< x Phi(x), with erf
};

/// gelu_tanh(x) = x sigma(2 u(x)), u(x) = kGeluSlope (x + kGeluCube x^3).
inline constexpr float kGeluSlope = 0.7978845608028654f;  // sqrt(2 / pi)
inline constexpr float kGeluCube = 0.044715f;

}  // namespace precbench
