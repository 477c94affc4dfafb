// Fuzzes a case as it appears in records and in messages of the coordinator.
#include "bench/case/plan.h"
#include "kernels/base/untrusted_input.h"
#include "results/record/schema.h"
#include "tools/fuzz/fuzz.h"

using namespace precbench;

PRECBENCH_FUZZ_TARGET(case) {
  taken([&] {
    const Case c =
        case_from_json(parse_untrusted<nlohmann::ordered_json>(text_of(data, size), kDescriptionLimits));
    const Plan plan = validate(c);
    expect(case_from_json(case_to_json(c)) == c);
    expect(plan.id == case_id(c, plan));
    expect(Schema::record().violations(start_record(plan)).empty());
  });
  return 0;
}
