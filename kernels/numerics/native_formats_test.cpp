// The table of native formats, for the recipes of the front page's matrix.
#include "kernels/numerics/native_formats.h"

#include <set>

#include "kernels/testing/catch.h"

namespace precbench {
namespace {

TEST_CASE("native_formats: recipes are native where cuBLASLt documents their formats", "[recipe]") {
  struct Expected {
    const char* recipe;
    std::set<int> native_on;
  };
  for (const Expected& e :
       {Expected{"bf16", {80, 89, 90, 100, 120}}, Expected{"tensorwise", {89, 90, 100, 120}},
        Expected{"tensorwise_delayed", {89, 90, 100, 120}}, Expected{"rowwise", {90, 100}},
        Expected{"blockwise", {90}}, Expected{"blockwise_pow2", {90, 100}}, Expected{"mxfp8", {100, 120}},
        Expected{"nvfp4", {100, 120}}, Expected{"mxfp4_bwd", {}}}) {
    INFO(e.recipe);
    std::set<int> found;
    for (const int capability : {80, 89, 90, 100, 120})
      if (is_native(native_formats(capability), find_recipe(e.recipe))) found.insert(capability);
    CHECK(found == e.native_on);
  }
}

TEST_CASE("native_formats: unknown compute capabilities have none", "[recipe]") {
  for (const int capability : {0, 75, 70, 999}) CHECK(native_formats(capability).none());
}

TEST_CASE("native_format_of: two E5M2 operands and two sides of 128x128 are no mode", "[recipe]") {
  GemmRecipe gemm = find_recipe("tensorwise").dgrad;
  gemm.a.dtype = gemm.b.dtype = DType::e5m2;
  CHECK_FALSE(native_format_of(gemm));
  gemm = find_recipe("blockwise").fprop;
  CHECK(native_format_of(gemm) == NativeFormat::fp8_block);
  gemm.a = gemm.b;
  CHECK_FALSE(native_format_of(gemm));
}

}  // namespace
}  // namespace precbench
