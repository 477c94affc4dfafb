// Layouts that are only predicted: their plans, ids and records.
#include <string>

#include "bench/case/case_testing.h"
#include "bench/case/plan.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr const char* kRanks = "--device cuda --model llama3.1-8b --seq 4096 --batch 1 --gpus 64";
constexpr const char* kLayout = " --tensor 4 --pipeline 4 --micro-batches 8";

}  // namespace

TEST_CASE("layouts are predicted only: no plan with one can run, and ids without one stay", "[layout]") {
  const Case plain = case_of_flags(kRanks), with_layout = case_of_flags(std::string(kRanks) + kLayout);
  const Plan plan = validate(plain), layout = validate(with_layout);
  CHECK_FALSE(is_predicted_only(plain));
  for (const bool on_gpu : {false, true}) {
    const Case tensor = case_of_flags(std::string("--gpus 2 --tensor 2 --device ") + (on_gpu ? "cuda" : "cpu"));
    CHECK_FALSE(is_predicted_only(tensor));
    CHECK(has_layout(tensor) == on_gpu);
  }
  CHECK(is_predicted_only(case_of_flags("--device cpu --gpus 4 --tensor 2 --pipeline 2")));
  CHECK_FALSE(unsupported_reason(plan));
  CHECK(unsupported_reason(layout) ==
        "--pipeline 4: predicted only, a run does not support it; use sweep --dry-run --on MACHINE");
  CHECK_THROWS_AS(refuse_unfit({plan, layout}, {}, {}, true), InvalidInput);
  CHECK_NOTHROW(refuse_unfit({plan, layout}, {}, {}, false));
  CHECK_NOTHROW(refuse_unfit({plan}, {}, {}, true));
  const nlohmann::ordered_json fields = case_to_json(plain);
  for (const char* name :
       {"tensor", "pipeline", "virtual_stages", "micro_batches", "shard_optimizer", "overlap"}) {
    CHECK_FALSE(fields.contains(name));
    CHECK_FALSE(field_to_json(plain, *find_field(name)).is_null());
  }
  CHECK(layout.id != plan.id);
  CHECK(case_from_json(case_to_json(with_layout)) == with_layout);
  // Ranks of a replica share its tokens: 64 / 16 replicas of 8 sequences.
  CHECK(layout.tokens_per_step() == 4 * 8 * 4096);
}
