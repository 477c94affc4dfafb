// Names of dtypes.
#include "kernels/numerics/tensor.h"

namespace precbench {

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::e4m3:
      return "e4m3";
    case DType::e5m2:
      return "e5m2";
    case DType::e2m1:
      return "e2m1";
    case DType::ue8m0:
      return "ue8m0";
    case DType::i32:
      return "i32";
    case DType::f16:
      return "f16";
    case DType::e5m3:
      return "e5m3";
    case DType::e3m4:
      return "e3m4";
    case DType::e3m3:
      return "e3m3";
    case DType::e4m4:
      return "e4m4";
    case DType::grid:
    case DType::grid4:
      return "grid";
    case DType::ue5m3:
      return "ue5m3";
  }
  return "?";
}

}  // namespace precbench
