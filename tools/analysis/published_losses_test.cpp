// Published losses and known failures.
#include "tools/analysis/published_losses.h"

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("published_losses: the program has the committed file", "[published_losses]") {
  CHECK(published_losses().size() >= 100);
}

TEST_CASE("known_failure: recipes that failed at 8B are known with their source", "[published_losses]") {
  for (const char* recipe : {"mxfp8_e5m2", "mxfp8_floor"}) {
    const PublishedLoss* failure = known_failure(recipe);
    REQUIRE(failure);
    CHECK(failure->by_numerics);
    CHECK_FALSE(failure->where.empty());
  }
  CHECK(known_failure_words(*known_failure("mxfp8_e5m2")) == "known to fail at 8B (Megatron-Bridge)");
  for (const char* recipe : {"mxfp8", "rowwise", "blockwise", "tensorwise"})
    CHECK_FALSE(known_failure(recipe));
}

TEST_CASE("read_published_losses: failures of software are no failures of a recipe", "[published_losses]") {
  const auto losses = read_published_losses(
      R"({"losses": [{"id": "a", "kind": "failure", "nearest": "mxfp8", "cause": "software"},
                     {"id": "b", "kind": "gap", "nearest": null, "gap_nats": -0.5, "tokens": null, "stage": "from scratch"}]})");
  REQUIRE(losses.size() == 2);
  CHECK_FALSE(losses[0].by_numerics);
  CHECK(losses[1].nearest.empty());
  CHECK(losses[1].gap_nats == -0.5);
  CHECK_FALSE(losses[1].tokens);
  CHECK(losses[1].from_scratch);
  CHECK_THROWS_AS(read_published_losses("{}"), InvalidInput);
  CHECK_THROWS_AS(read_published_losses("nonsense"), InvalidInput);
}
