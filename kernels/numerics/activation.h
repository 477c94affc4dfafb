// Activation of the gate in SwiGLU and its relatives, s = activation(gate) * up, or of a non-gated MLP.
#pragma once

#include <cstdint>

namespace precbench {

enum class Activation : std::uint8_t {
  silu,       ///< x sigma(x)
  gelu_tanh,  ///< GELU with tanh's approximation of erf (Hendrycks & Gimpel 2016)
  gelu,       ///< x Phi(x), with erf
  relu2,      ///< max(x, 0)^2 (So et al. 2021); without a gate only
};

}  // namespace precbench
