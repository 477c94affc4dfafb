// Activation of the gate in SwiGLU and its relatives: s = activation(gate) * up.
#pragma once

#include <cstdint>

namespace precbench {

enum class Activation : std::uint8_t {
  silu,       ///< x sigma(x)
  gelu_tanh,  ///< GELU with tanh's approximation of erf (Hendrycks & Gimpel 2016)
  gelu,       ///< x Phi(x), with erf
};

}  // namespace precbench
