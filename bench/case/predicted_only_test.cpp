// Layouts that are only predicted: their plans, ids and records.
#include <string>

#include "bench/case/plan.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

/// Returns a valid layout of llama3.1-8b.
Case layout_case() {
  Case c;
  c.device = "cuda";
  c.model = "llama3.1-8b";
  c.seq = 4096;
  c.batch = 1;
  c.gpus = 64;
  c.tensor = 4;
  c.pipeline = 4;
  c.micro_batches = 8;
  return c;
}

}  // namespace

TEST_CASE("layouts are predicted only: no plan with one can run, and ids without one stay", "[layout]") {
  Case plain = layout_case();
  plain.tensor = plain.pipeline = 1;
  plain.micro_batches = 0;
  const Plan plan = validate(plain), layout = validate(layout_case());
  CHECK_FALSE(is_predicted_only(plain));
  CHECK_FALSE(unsupported_reason(plan));
  CHECK(unsupported_reason(layout) ==
        "--tensor 4: predicted only, a run does not support it; use sweep --dry-run --on MACHINE");
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
  CHECK(case_from_json(case_to_json(layout_case())) == layout_case());
  // Ranks of a replica share its tokens: 64 / 16 replicas of 8 sequences.
  CHECK(layout.tokens_per_step() == 4 * 8 * 4096);
}
