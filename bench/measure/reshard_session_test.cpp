// --reshard from the case to its record.
#include <stdlib.h>

#include <map>
#include <set>
#include <string>

#include "bench/case/case_testing.h"
#include "bench/measure/session.h"
#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("run_case: reshard auto keeps weights gathered if memory allows and adds a warning", "[session]") {
  std::map<std::string, Record> records;
  setenv("OMP_NUM_THREADS", "1", 1);  // the models are too small for two threads
  for (const char* reshard : {"on", "off", "auto"}) {
    INFO(reshard);
    Case c = testing::case_of_flags("--device cpu --seq 32 --gpus 2 --parallel fsdp --grads bf16");
    c.reshard = reshard;
    c.steps = 3;
    const Record& record = records[reshard] = run_case(validate(c));
    REQUIRE(record.status == Status::ok);
    CHECK(record.communication->wire_bytes == record.communication->predicted_wire_bytes);
    std::set<std::string> kinds;
    for (const CollectiveRecord& kind : record.communication->collectives) kinds.insert(kind.name);
    CHECK(kinds.count("reduce_scatter bf16") == 1);
    CHECK(kinds.count("reduce_scatter") == 0);
  }
  CHECK(records["on"].training->loss == records["off"].training->loss);
  CHECK(records["on"].id != records["off"].id);
  CHECK(records["on"].warnings.empty());
  CHECK(records["off"].communication->wire_bytes < 0.85 * records["on"].communication->wire_bytes);
  CHECK(records["auto"].communication->wire_bytes == records["off"].communication->wire_bytes);
  CHECK(records["auto"].memory->measured->weights == records["off"].memory->measured->weights);
  REQUIRE(records["auto"].warnings.size() == 1);
  CHECK(records["auto"].warnings[0] == "--reshard auto: off");
}
