// Speeds of a stack in the table of advise, with factors of a host of the test.
#include "tools/advise/stack_speeds.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"

namespace precbench {
namespace {

SpeedRow stack_row(const std::string& recipe, double tokens_per_s, const MeanWithInterval& speedup) {
  SpeedRow row;
  row.recipe = recipe, row.tokens_per_s = tokens_per_s, row.speedup = speedup;
  row.fields = {{"recipe", recipe}};
  row.joules_per_token = 1;
  return row;
}

TEST_CASE("in_stack: speeds, order and notes are the stack's, and ours stay beside them", "[advise][stack]") {
  SpeedTable table;
  table.gpu.name = "NVIDIA H200";
  table.rows = {stack_row("blockwise", 1300, {1.3, 1.25, 1.35}),
                stack_row("rowwise", 1280, {1.28, 1.28, 1.28}), stack_row("bf16", 1000, {1, 1, 1})};
  AdviseHost host;
  host.stack_speed = [](const AdviseHost::StackQuestion& question) -> std::optional<StackSpeed> {
    CHECK(question.bf16_tokens_per_s == 1000);
    const bool block = question.fields.at("recipe") == "blockwise";
    return StackSpeed{{0.9, 0.8, 1},
                      {block ? 0.8 : 0.95, block ? 0.7 : 0.9, block ? 0.9 : 1},
                      block ? std::vector<std::string>{"no evidence for blockwise with pytorch"}
                            : std::vector<std::string>{}};
  };
  // Adapters stay in the order of their weights: the first that fits is recommended.
  SpeedTable adapters = table;
  adapters.part = TrainedPart::lora;
  std::swap(adapters.rows.front(), adapters.rows.back());
  CHECK(in_stack(adapters, "pytorch", host).rows.front().recipe == "bf16");
  const SpeedTable theirs = in_stack(table, "pytorch", host);
  REQUIRE(theirs.rows.size() == 3);
  const SpeedRow& block = theirs.rows.front();
  CHECK(block.recipe == "blockwise");
  CHECK(*block.tokens_per_s == Approx(1170));
  CHECK(*block.own_tokens_per_s == 1300);
  CHECK(block.speedup->mean == Approx(1.04));
  CHECK(block.own_speedup->mean == 1.3);
  CHECK(std::log(block.speedup->mean / block.speedup->low) ==
        Approx(std::hypot(std::log(1.3 / 1.25), std::log(0.8 / 0.7))));
  CHECK(theirs.rows[1].speedup->mean == Approx(1.216));
  CHECK(theirs.rows[2].speedup->mean == 1);
  CHECK_FALSE(block.joules_per_token);
  CHECK(theirs.notes.back().find("no evidence for blockwise with pytorch: ") == 0);
  host.stack_speed = [](const AdviseHost::StackQuestion&) { return std::optional<StackSpeed>(); };
  CHECK_THROWS_WITH(in_stack(table, "megatron", host),
                    "--stack: no factor of megatron is known on NVIDIA H200");
}

}  // namespace
}  // namespace precbench
