// Warnings that a user hears at once: which, and once a process.
#include "bench/sweep/told_at_once.h"

#include "kernels/gpu/device_info.h"
#include "tools/testing/catch.h"

namespace precbench {
namespace {

TEST_CASE("of a record's warnings a user hears those that doubt the whole sweep, each kind once",
          "[told_at_once]") {
  using Lines = std::vector<std::string>;
  const std::string overlap = "--eval-data: holds what --data holds",
                    driver = why_no_hopper_kernels(90, false);
  Record record;
  record.warnings = {"--reshard auto: on"};
  CHECK(told_at_once(record).empty());
  record.warnings = {"--reshard auto: on", driver};
  CHECK(told_at_once(record) == Lines{driver});
  record.warnings = {driver, overlap};
  CHECK(told_at_once(record) == Lines{overlap});
  CHECK(told_at_once(record).empty());
}

}  // namespace
}  // namespace precbench
