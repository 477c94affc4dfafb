// selection.h: syntax of layers and steps, and torchao's rule against its own tests.
#include "kernels/numerics/selection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/numerics/recipe.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

std::string again(const char* text) {
  return fmt::format("{}", fmt::join(words_of(parse_keep_bf16(text)), ","));
}

/// Returns which of `layers` blocks keep o in BF16, as "x".
std::string kept(const char* text, std::int64_t layers) {
  const Recipe recipe = find_recipe("rowwise");
  const KeepBf16 keep = parse_keep_bf16(text);
  std::string blocks;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    blocks += keep.keeps(recipe, LinearRole::o, layer, layers, 64, 64) ? 'x' : '.';
  return blocks;
}

}  // namespace

TEST_CASE("parse_keep_bf16: words are read and written back", "[selection]") {
  CHECK(parse_keep_bf16("") == KeepBf16{});
  CHECK(parse_keep_bf16("none") == KeepBf16{});
  CHECK(again("last:2,first:1") == "first:1,last:2");
  CHECK(again("last:0.15") == "last:0.15");
  CHECK(again("down,qkv,first_linear,torchao_auto") == "qkv,down,first_linear,torchao_auto");
  CHECK(again("min_out:512,min_in:64,o") == "o,min_in:64,min_out:512");
  CHECK(again("last_linear") == "head");
  CHECK(again("split_qkv") == "qkv_apart");
  for (const char* bad : {"first",
                          "first:",
                          "first:x",
                          "first:-1",
                          "middle:1",
                          "first:1,first:2",
                          "first:1,",
                          ",",
                          "first:1.5",
                          "first:0.0",
                          "last:1.0",
                          "last:nan",
                          "last:0.5x",
                          "lm_head",
                          "o,o",
                          "k,k",
                          "qkv_apart,qkv_apart",
                          "split_qkv,qkv_apart",
                          "head,last_linear",
                          "none,o",
                          "min_in:",
                          "min_in:0",
                          "min_in:1,min_in:2",
                          "min_out:0.5",
                          "min_out:-16",
                          "first:99999999999999999999"}) {
    INFO(bad);
    CHECK(contains(refusal_of([&] { parse_keep_bf16(bad); }),
                   "is unknown or repeated; known: first:N, last:N, qkv, o, gate_up"));
  }
}

TEST_CASE("parse_keep_bf16: blocks count from either end and fractions round up", "[selection]") {
  CHECK(kept("first:1,last:2", 6) == "x...xx");
  CHECK(kept("first:0", 3) == "...");
  CHECK(kept("last:0.15", 20) ==
        ".................xxx");  // NVFP4 recipe's 1.2B model, half a block per character
  CHECK(kept("first:0.07", 100).find('.') == 7);
  CHECK(kept("last:0.15", 4) == "...x");
  CHECK(kept("first:9223372036854775807,last:9223372036854775807", 3) == "xxx");
  CHECK(kept("o", 3) == "xxx");
  CHECK(kept("qkv,gate_up,down,head,first_linear", 3) == "...");
}

TEST_CASE("parse_keep_bf16: roles and the first and last linear layer", "[selection]") {
  const Recipe recipe = find_recipe("mxfp8");
  const auto keeps = [&](const char* text, LinearRole role, std::int64_t layer) {
    return parse_keep_bf16(text).keeps(recipe, role, layer, 2, 64, 64);
  };
  CHECK(keeps("gate_up", LinearRole::gate_up, 1));
  CHECK(!keeps("gate_up", LinearRole::down, 1));
  CHECK(keeps("first_linear", LinearRole::qkv, 0));
  CHECK(!keeps("first_linear", LinearRole::qkv, 1));
  CHECK(!keeps("first_linear", LinearRole::o, 0));
  CHECK(keeps("last_linear", LinearRole::head, 0));
  CHECK(!keeps("first:2,last:2", LinearRole::head, 0));  // the head belongs to no block
  CHECK(keeps("first_linear", LinearRole::q, 0));
  CHECK(!keeps("first_linear", LinearRole::k, 0));
  CHECK((keeps("k", LinearRole::k, 1) && !keeps("k", LinearRole::q, 1) && !keeps("k", LinearRole::qkv, 1)));
  for (const LinearRole part : kQkvParts) {
    CHECK(keeps("qkv", part, 1));
    CHECK(keeps("last:1", part, 1));
    CHECK(!keeps("qkv_apart", part, 1));
  }
  CHECK((parse_keep_bf16("v").qkv_apart() && parse_keep_bf16("o,qkv_apart").qkv_apart()));
  CHECK(!parse_keep_bf16("qkv,first_linear,torchao_auto").qkv_apart());
}

TEST_CASE("is_too_small: matches torchao's own tests", "[selection]") {
  const auto small = [](const char* recipe, std::int64_t in, std::int64_t out) {
    return is_too_small(find_recipe(recipe), out, in);
  };
  // test/float8/test_auto_filter.py: in_features, out_features
  CHECK(!small("tensorwise", 8192, 2048));
  CHECK(small("tensorwise", 4096, 1024));
  CHECK(!small("rowwise", 4096, 8192));
  CHECK(small("rowwise", 2048, 4096));
  CHECK(small("rowwise", 4096, 2048));
  CHECK(small("rowwise", 1024, 4112));
  // One past each edge, and sizes that no FP8 GEMM supports.
  CHECK(!small("tensorwise", 4112, 1024));
  CHECK(!small("tensorwise", 4096, 1040));
  CHECK(!small("rowwise", 2064, 4096));
  CHECK(!small("rowwise", 2048, 4112));
  CHECK(!small("rowwise", 1040, 4112));
  CHECK(small("tensorwise", 8192, 2040));
  CHECK(small("rowwise", 8200, 8192));
  // Too small in Llama 3.1 8B: k and v; in Llama 3.2 1B: k and v, with per-row scales all but gate and up.
  CHECK((small("tensorwise", 4096, 1024) && !small("tensorwise", 4096, 4096)));
  CHECK((small("rowwise", 4096, 1024) && !small("rowwise", 4096, 4096) && !small("rowwise", 14336, 4096)));
  CHECK((small("tensorwise", 2048, 512) && !small("tensorwise", 2048, 2048)));
  CHECK((small("rowwise", 2048, 2048) && small("rowwise", 8192, 2048) && !small("rowwise", 2048, 8192)));
  for (const char* recipe : {"blockwise", "mxfp8", "rowwise_gw_hp"})
    CHECK(refusal_of([&] { small(recipe, 64, 64); }) ==
          "torchao_auto: needs tensor scales or row scales throughout, which " + std::string(recipe) +
              " does not have");
}

TEST_CASE("parse_switches: words of a schedule are read and written back", "[selection]") {
  CHECK(parse_switches("").empty());
  CHECK(parse_switches("none").empty());
  const std::vector<RecipeSwitch> two = parse_switches("my/own@1.json@100,bf16@0.82");
  REQUIRE(two.size() == 2);
  CHECK((two[0] == RecipeSwitch{"my/own@1.json", {100, 0}} && two[1] == RecipeSwitch{"bf16", {0, 0.82}}));
  CHECK(to_text(two[0]) + "," + to_text(two[1]) == "my/own@1.json@100,bf16@0.82");
  CHECK((two[0].from.of(1000) == 100 && two[1].from.of(100) == 82 && two[1].from.of(101) == 83));
  for (const char* bad : {"bf16", "bf16@", "@5", "bf16@0", "bf16@-1", "bf16@1.5", "bf16@5,", "bf16@x"}) {
    INFO(bad);
    CHECK(contains(refusal_of([&] { parse_switches(bad); }), "is not RECIPE@STEP"));
  }
}

TEST_CASE("parse_keep_bf16: block:N keeps a block and block:N.ROLE one of its layers", "[selection]") {
  CHECK(kept("block:2", 5) == "..x..");
  CHECK(kept("block:4,block:0", 5) == "x...x");
  CHECK(kept("block:1.o,first:1", 4) == "xx..");
  CHECK(kept("block:1.down", 4) == "....");
  CHECK(again("block:3.gate_up,block:0,o,block:3") == "block:3.gate_up,block:0,block:3,o");
  const KeepBf16 keep = parse_keep_bf16("block:1.qkv");
  const Recipe recipe = find_recipe("rowwise");
  CHECK(keep.keeps(recipe, LinearRole::q, 1, 4, 64, 64));  // also with separate q, k and v
  CHECK(!keep.keeps(recipe, LinearRole::q, 0, 4, 64, 64));
  CHECK(!keep.keeps(recipe, LinearRole::head, 1, 4, 64, 64));
  CHECK(!keep.qkv_apart());
  for (const char* bad :
       {"block", "block:", "block:-1", "block:x", "block:1.", "block:1.q", "block:1.head", "block:1.5",
        "block:1,block:1", "block:1.o,block:1.o", "block:99999999999999999999"}) {
    INFO(bad);
    CHECK(contains(refusal_of([&] { parse_keep_bf16(bad); }), "block:N, block:N.ROLE"));
  }
}
