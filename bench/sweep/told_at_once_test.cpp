// Warnings that a user hears at once: which, and once a process.
#include "bench/sweep/told_at_once.h"

#include "bench/step/lost_files.h"
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

TEST_CASE("told_at_once: every lost file is told, a doubt of a kind once", "[told_at_once]") {
  using Lines = std::vector<std::string>;
  const std::string lost = lost_file_warning("--save-final: a: cannot be written"),
                    read_again = "--data: 100 sequences of 32 tokens were read, and the data has 50";
  Record record;
  record.warnings = {read_again, lost};
  CHECK(told_at_once(record) == Lines{lost, read_again});
  CHECK(told_at_once(record) == Lines{lost});
}

}  // namespace
}  // namespace precbench
