// GEMM recipes whose operands can be quantized independently.
#pragma once

#include "kernels/numerics/recipe.h"

namespace precbench {

/// Returns the GEMM with operands that need neither random numbers nor another GEMM's codes. The speed and
/// exactness of a GEMM do not depend on how its codes were drawn.
inline GemmRecipe without_draws(GemmRecipe gemm) {
  for (QuantFormat* format : {&gemm.a, &gemm.b}) {
    format->element_rounding = ElementRounding::rne;
    format->transform = {};
    format->eden = 0;
    format->from_fprop = false;
  }
  return gemm;
}

}  // namespace precbench
