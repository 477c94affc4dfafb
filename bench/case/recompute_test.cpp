// Words of --recompute: what they mean, how records have them, and what is refused.
#include "bench/case/recompute.h"

#include "bench/case/case_testing.h"
#include "bench/case/plan.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
using precbench::testing::case_with;

TEST_CASE("recompute: words become parts and print sorted", "[case][recompute]") {
  CHECK(parse_recompute("none") == Recompute{});
  CHECK(parse_recompute("block") == kRecomputeBlocks);
  CHECK(parse_recompute("block:5") == Recompute{.blocks = 5});
  CHECK(parse_recompute("selective") == kRecomputeSelective);
  CHECK(parse_recompute("norm+ffn") == Recompute{.norm = true, .ffn = true});
  for (const char* text : {"none", "selective", "block", "block:5", "norm", "ffn", "attention",
                           "attention+ffn", "attention+norm", "ffn+norm", "attention+ffn+norm"})
    CHECK(recompute_text(parse_recompute(text)) == text);
  CHECK(case_with("recompute", "norm+ffn+attention").recompute == "attention+ffn+norm");
}

TEST_CASE("recompute: the order of parts changes neither case nor id, and old ids stay",
          "[case][recompute]") {
  const Plan sorted = validate(case_with("recompute", "attention+ffn+norm"));
  CHECK(validate(case_with("recompute", "norm+attention+ffn")).id == sorted.id);
  Case unsorted;
  unsorted.recompute = "norm+ffn+attention";
  CHECK(validate(unsorted).id == sorted.id);
  CHECK(case_to_json(validate(unsorted).fields) == case_to_json(sorted.fields));
  CHECK(validate(case_with("recompute", "block:2")).id != validate(case_with("recompute", "block")).id);
  // Part of the id since before there were parts.
  CHECK(validate(Case{}).id != validate(case_with("recompute", "block")).id);
}

TEST_CASE("recompute: other words are refused by flag", "[case][recompute]") {
  const auto why = [](const char* text) { return refusal_of([&] { case_with("recompute", text); }); };
  for (const char* text : {"", "all", "norm+", "+norm", "block+norm", "none+ffn", "norm,ffn"})
    CHECK(why(text) ==
          std::string("--recompute: \"") + text +
              "\" is not none, selective, block, block:K, or norm, ffn and attention joined by +");
  for (const char* text : {"block:", "block:0", "block:-1", "block:x", "block:1.5"})
    CHECK(contains(why(text), "K in block:K is a number of blocks, at least 1"));
  CHECK(why("norm+ffn+norm") == "--recompute: norm twice in norm+ffn+norm");
}
