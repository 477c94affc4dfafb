// Lists, ranges, errors, and the order of a grid.
#include "bench/cli/axis.h"

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

using Words = std::vector<std::string>;

Words expanded(const std::string& name, const Words& words) { return expand_axis(*find_field(name), words); }

std::string refusal(const std::string& name, const Words& words) {
  return refusal_of([&] { expanded(name, words); });
}

}  // namespace

TEST_CASE("expand_axis: lists and ranges keep the order written", "[axis]") {
  CHECK(expanded("recipe", {"bf16,mxfp8", "rowwise"}) == Words{"bf16", "mxfp8", "rowwise"});
  CHECK(expanded("seq", {"1024-8192*2"}) == Words{"1024", "2048", "4096", "8192"});
  CHECK(expanded("seq", {"128-512+128,4096"}) == Words{"128", "256", "384", "512", "4096"});
  CHECK(expanded("seed", {"1-3"}) == Words{"1", "2", "3"});
  CHECK(expanded("seq", {"1000-5000*3"}) == Words{"1000", "3000"});
  CHECK(expanded("gpus", {"4-4*2"}) == Words{"4"});
  CHECK(expanded("seed", {"9223372036854775806-9223372036854775807"}).size() == 2);
  CHECK(expanded("seed", {"0-2"}) == Words{"0", "1", "2"});
}

TEST_CASE("expand_axis: names and paths with hyphens are not ranges", "[axis]") {
  CHECK(expanded("recipe", {"my-own-1-2.json"}) == Words{"my-own-1-2.json"});
  CHECK(expanded("recipe", {"1-8*2"}) == Words{"1-8*2"});
  CHECK(expanded("model", {"llama3.2-1b"}) == Words{"llama3.2-1b"});
  CHECK(expanded("lr", {"1e-5"}) == Words{"1e-5"});
}

TEST_CASE("expand_axis: an empty value or a bad range is refused by its flag", "[axis]") {
  CHECK(refusal("seq", {}) == "--seq: empty axis");
  CHECK(refusal("seq", {""}) == "--seq: empty value in \"\"");
  CHECK(refusal("recipe", {"bf16,"}) == "--recipe: empty value in \"bf16,\"");
  CHECK(refusal("seq", {"128-1024*1"}) == "--seq: range 128-1024*1 never ends");
  CHECK(refusal("seq", {"128-1024*0"}) == "--seq: range 128-1024*0 never ends");
  CHECK(refusal("seq", {"128-1024+0"}) == "--seq: range 128-1024+0 never ends");
  CHECK(refusal("seed", {"0-8*2"}) == "--seed: range 0-8*2 never ends");
  CHECK(refusal("batch", {"8-2*2"}) == "--batch: range 8-2*2 starts above its end");
  CHECK(refusal("seed", {"1-10001"}) == "--seed: range 1-10001 has more than 10000 values");
  CHECK(refusal("seed", {"1-99999999999999999999"}) ==
        "--seed: range 1-99999999999999999999 has a number that is too large");
}

TEST_CASE("expand_grid: fields vary in the table's order with recipes innermost", "[axis]") {
  Case base;
  base.lr = 0.5;
  const auto grid = expand_grid(
      base, {{"recipe", {"bf16,mxfp8"}}, {"gpus", {"1,2"}}, {"model", {"tiny,15m"}}, {"seq", {"64,64"}}});
  REQUIRE(grid.size() == 8);
  CHECK(grid[0].model == "tiny");
  CHECK((grid[0].recipe == "bf16" && grid[1].recipe == "mxfp8"));
  CHECK((grid[1].gpus == 1 && grid[2].gpus == 2));
  CHECK((grid[3].model == "tiny" && grid[4].model == "15m"));
  for (const Case& c : grid) CHECK((c.lr == 0.5 && c.seq == 64));
}

TEST_CASE("expand_grid: an invalid value throws InvalidInput", "[axis]") {
  CHECK_THROWS_AS(expand_grid({}, {{"seq", {"0"}}}), InvalidInput);
  CHECK_THROWS_AS(expand_grid({}, {{"parallel", {"ddp,fsdq"}}}), InvalidInput);
}
