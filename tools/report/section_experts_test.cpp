// Tests the MoE section of a report.
#include "kernels/testing/catch.h"
#include "tools/report/sections_testing.h"

using namespace precbench;

namespace {

/// Returns a record with four layers of 8 experts, top-2; routing takes 10% of the profiled step.
Record moe_record(const std::string& recipe, int gpus = 1) {
  Record record = samples::gpu_record(recipe, 250);
  if (gpus > 1) samples::set_gpus(record, gpus);
  MoeRecord moe;
  moe.experts = 8, moe.top_k = 2;
  moe.score = "softmax", moe.routing = "learned";
  const double slots = static_cast<double>(*record.training->tokens_per_step) / gpus * 2 * 4;
  moe.rows = {slots, slots, slots / 0.75, 0};
  moe.padding_fraction = 0.25;
  moe.load = {1.5, 2.25, {1.25, 1.5, 1.5, 2.25}, 3};
  record.moe = moe;
  record.breakdown->routing_ms = 0;
  record.breakdown->routing_ms = profiled_ms(*record.breakdown) / 9;
  return record;
}

}  // namespace

TEST_CASE("experts section: shows load and padding and dropped slots and routing time", "[sections][moe]") {
  Record dropping = moe_record("blockwise");
  dropping.moe->rows.dropped = dropping.moe->rows.actual / 8;
  dropping.moe->rows.actual -= dropping.moe->rows.dropped;
  const std::string text = section_of({moe_record("bf16"), dropping}, "Experts");
  INFO(text);
  CHECK(contains(text, "median load 1.50, worst load 2.25, idle experts 3, padding 25.0%"));
  CHECK(contains(text, "routing share 10.0%"));
  REQUIRE(lines_with(text, "blockwise").size() == 1);
  CHECK(contains(lines_with(text, "blockwise").front(), "12.5%"));
  CHECK(contains(lines_with(text, "bf16").front(), "0.0%"));
  CHECK_FALSE(contains(text, "to experts, per"));  // a single GPU has all experts
  CHECK(section_of({samples::gpu_record("bf16", 250)}, "Experts") == "");
}

TEST_CASE("experts section: dropped slots are a fraction of this rank's slots", "[sections][moe]") {
  Record all_here = moe_record("blockwise", 4);  // a quarter of the slots of each of four ranks
  all_here.moe->rows.dropped = 0.75 * all_here.moe->rows.actual;
  const std::string text = section_of({moe_record("bf16", 4), all_here}, "Experts");
  INFO(text);
  CHECK(contains(lines_with(text, "blockwise").front(), "75.0%"));
}

TEST_CASE("experts section: forced routing is named and explained", "[sections][moe]") {
  Record learned = moe_record("bf16"), one = with(moe_record("bf16"), "routing", "one");
  one.moe->routing = "one";
  one.moe->load.median = one.moe->load.max = 4.0;  // 8 experts, top-2
  one.moe->load.empty_experts = 24;                // six in each of four layers
  const std::string text = section_of({learned, one}, "Experts");
  INFO(text);
  REQUIRE(lines_with(text, "4.00").size() == 1);
  CHECK(contains(lines_with(text, "4.00").front(), "one "));
  CHECK(contains(lines_with(text, "4.00").front(), "24"));
  // The routing "learned" is shown although its case does not name it.
  CHECK(contains(lines_with(text, "2.25").front(), "learned"));
  CHECK(contains(text, "one: all tokens to the same experts, the model's first top_k"));
  CHECK_FALSE(contains(section_of({learned}, "Experts"), "forced"));
}

TEST_CASE("experts section: exchanged bytes are shown with predictions where they differ",
          "[sections][moe]") {
  Record gather = moe_record("bf16", 4), sync = moe_record("blockwise", 4);
  gather.moe->bytes = ExchangeBytes{3e6, 2e6, 3e6, 2e6};
  sync.moe->bytes = ExchangeBytes{1.5e6, 1e6, 1.2e6, 1e6};
  gather.moe->ep = sync.moe->ep = 4;
  const std::string text = section_of({gather, sync}, "Experts");
  INFO(text);
  CHECK(contains(text, "to experts, per GPU"));
  CHECK(contains(lines_with(text, "bf16").front(), "3 MB"));
  CHECK_FALSE(contains(lines_with(text, "bf16").front(), "("));
  CHECK(contains(lines_with(text, "blockwise").front(), "1.5 MB (1.2 MB)"));
  // Older records lack predictions.
  sync.moe->bytes->predicted_dispatch.reset();
  CHECK(contains(lines_with(section_of({gather, sync}, "Experts"), "blockwise").front(), "1.5 MB  "));
}

TEST_CASE("time section: routing is a class of an MoE step", "[sections][moe]") {
  const std::string text = section_of({moe_record("bf16"), moe_record("blockwise")}, "Where the time goes");
  INFO(text);
  CHECK(contains(text, "routing (ms)"));
  CHECK(contains(text, "rows to experts and back"));
  const std::string dense = section_of(
      {samples::gpu_record("bf16", 250), samples::gpu_record("blockwise", 200)}, "Where the time goes");
  CHECK(dense != "");
  CHECK_FALSE(contains(dense, "routing"));
}
