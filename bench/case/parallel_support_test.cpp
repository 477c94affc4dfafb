// Reasons why ranks, lengths and formats do not fit each other. parallel_pairs_test.cpp walks all pairs of
// axes.

#include <fmt/format.h>

#include <string>
#include <utility>

#include "bench/case/plan.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;

namespace {

std::string reason_of(const Case& c) { return parallel_unsupported_reason(validate(c)).value_or(""); }

Case context_case(std::int64_t gpus, std::int64_t context) {
  Case c;
  c.device = "cpu";
  c.seq = 128;
  c.gpus = gpus;
  c.context = context;
  return c;
}

}  // namespace

TEST_CASE("parallel_unsupported_reason: ranks and lengths that do not divide name the flag", "[context]") {
  CHECK(reason_of(context_case(4, 2)) == "");
  CHECK(reason_of(context_case(4, 3)) == "--context: 3 does not divide 4 ranks");
  CHECK(reason_of(context_case(1, 2)) == "--context: 2 does not divide 1 rank");
  Case c = context_case(4, 2);
  c.seq = 130;
  CHECK(reason_of(c) == "--context 2: seq 130 is not a multiple of 4, two chunks per rank");
  c = context_case(8, 2);
  c.parallel = "hsdp", c.shard_group = 3;
  CHECK(reason_of(c) == "--shard-group: 3 does not divide 8 ranks");
  c.gpus = 6;
  CHECK(reason_of(c) == "--shard-group: 3 is not a multiple of --context 2, whose ranks share a shard group");
  c.gpus = 8, c.shard_group = 4;
  CHECK(reason_of(c) == "");
}

TEST_CASE("parallel_unsupported_reason: chunks hold whole blocks of tokens", "[context]") {
  for (const auto& [recipe, block] : {std::pair{"blockwise", 128}, {"mxfp8", 32}, {"nvfp4", 16}}) {
    Case c = context_case(2, 2);
    c.recipe = recipe, c.steps = 4;
    c.seq = 4 * block;
    CHECK(reason_of(c) == "");
    c.seq += 4 * 8;
    CHECK(reason_of(c) == std::string("--context 2: ") + recipe + " needs chunks of a multiple of " +
                              std::to_string(block) + " tokens, but seq / 4 is " + std::to_string(block + 8));
  }
  Case c = context_case(2, 2);
  c.recipe = "tensorwise", c.seq = 132;
  CHECK(reason_of(c) == "");
  c.switch_recipe = "mxfp8@2", c.steps = 4;
  CHECK(reason_of(c) == "--context 2: mxfp8 needs chunks of a multiple of 32 tokens, but seq / 4 is 33");
}

TEST_CASE("parallel_unsupported_reason: amaxes of a group need context ranks, and no divided experts",
          "[context]") {
  Case c = context_case(4, 1);
  c.recipe = "tensorwise", c.reduce_amax = "group";
  CHECK(reason_of(c) == "--reduce-amax group: no ranks share a sequence; add --context N");
  c.context = 2;
  CHECK(reason_of(c) == "");
  c.model = "tiny-moe", c.ep = 2;
  CHECK(reason_of(c) ==
        "--reduce-amax group: an expert's rows are tokens of all of --ep's ranks; use on or off");
}

TEST_CASE("parallel_unsupported_reason: GPUs share sequences of heads of 64, 128 or 256 with own attention",
          "[context]") {
  Case c = context_case(2, 2);
  c.device = "cuda";
  c.model = "llama3.1-8b";
  c.attention = "cudnn";
  CHECK(reason_of(c) == "--context: cuDNN attention takes whole sequences; use auto or own");
  c.attention = "auto";
  const TempDirectory directory;
  for (const int width : {96, 128, 256}) {
    INFO(width);
    c.model = directory.write("wide.json", fmt::format(R"({{"layers": 1, "width": 64, "ffn": 64, "heads": 1,
        "kv_heads": 1, "head_dim": {}, "vocab": 64}})",
                                                       width));
    CHECK(reason_of(c) ==
          (width != 96
               ? ""
               : "--context: attention over keys of other ranks needs a head_dim of 64, 128 or 256, not 96"));
  }
}
