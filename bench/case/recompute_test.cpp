// Words of --recompute: what they mean, how records have them, and what is refused.
#include "bench/case/recompute.h"

#include "bench/case/case.h"
#include "bench/case/plan.h"
#include "bench/case/supported.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

Case with_recompute(const std::string& text) {
  Case c;
  set_text(c, *find_field("recompute"), text);
  return c;
}

}  // namespace

TEST_CASE("recompute: words become parts and print sorted", "[case][recompute]") {
  CHECK(parse_recompute("none") == Recompute{});
  CHECK(parse_recompute("block") == kRecomputeBlocks);
  CHECK(parse_recompute("block:5") == Recompute{.blocks = 5});
  CHECK(parse_recompute("norm+ffn") == Recompute{.norm = true, .ffn = true});
  for (const char* text : {"none", "block", "block:5", "norm", "ffn", "attention", "attention+ffn",
                           "attention+norm", "ffn+norm", "attention+ffn+norm"})
    CHECK(recompute_text(parse_recompute(text)) == text);
  CHECK(with_recompute("norm+ffn+attention").recompute == "attention+ffn+norm");
}

TEST_CASE("recompute: the order of parts changes neither case nor id, and old ids stay",
          "[case][recompute]") {
  const Plan sorted = resolve(with_recompute("attention+ffn+norm"));
  CHECK(resolve(with_recompute("norm+attention+ffn")).id == sorted.id);
  Case unsorted;
  unsorted.recompute = "norm+ffn+attention";
  CHECK(resolve(unsorted).id == sorted.id);
  CHECK(case_to_json(resolve(unsorted).fields) == case_to_json(sorted.fields));
  CHECK(resolve(with_recompute("block:2")).id != resolve(with_recompute("block")).id);
  // Part of the id since before there were parts.
  CHECK(resolve(Case{}).id != resolve(with_recompute("block")).id);
}

TEST_CASE("recompute: other words are refused by flag", "[case][recompute]") {
  const auto why = [](const char* text) { return refusal_of([&] { with_recompute(text); }); };
  for (const char* text : {"", "all", "norm+", "+norm", "block+norm", "none+ffn", "norm,ffn"})
    CHECK(why(text) == std::string("--recompute: \"") + text +
                           "\" is not none, block, block:K, or norm, ffn and attention joined by +");
  for (const char* text : {"block:", "block:0", "block:-1", "block:x", "block:1.5"})
    CHECK(contains(why(text), "K in block:K is a number of blocks, at least 1"));
  CHECK(why("norm+ffn+norm") == "--recompute: norm twice in norm+ffn+norm");
  CHECK(!unsupported_reason(resolve(with_recompute("block:4"))));
  CHECK(unsupported_reason(resolve(with_recompute("block:5"))) ==
        "--recompute block:5: tiny has 4 blocks; to recompute all, use block");
}
