// --grad-sync from the case to its record, with held-out losses and over a checkpoint.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <map>
#include <string>

#include "bench/case/case_testing.h"
#include "bench/measure/checkpoint_testing.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

Case accumulating_case(const TempDirectory& directory) {
  Case c = testing::with_flags(small_case(directory), "--gpus 2 --parallel fsdp --accumulation 3");
  c.clip = 0;  // the norm is the one sum whose order depends on the sharding
  return c;
}

double wire_bytes(const Record& record, const std::string& kind) {
  double bytes = 0;
  for (const CollectiveRecord& c : record.communication->collectives)
    if (c.name == kind) bytes += c.wire_bytes;
  return bytes;
}

}  // namespace

TEST_CASE("run_case: --grad-sync last reduces gradients once a step and trains like ddp", "[session]") {
  const TempDirectory directory;
  Case c = accumulating_case(directory);
  std::string text;
  for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i) + "\n";
  c.eval_data = directory.write("held_out.txt", text);
  c.eval_every = 2;
  c.eval_tokens = 64;
  std::map<std::string, Record> records;
  for (const char* grad_sync : {"every", "last", "auto"}) {
    c.grad_sync = grad_sync;
    records[grad_sync] = run_ok(c);
    const Record& record = records[grad_sync];
    CHECK(record.communication->wire_bytes == record.communication->predicted_wire_bytes);
    CHECK(record.memory->measured->gradients == record.memory->predicted->gradients);
    CHECK(record.memory->measured->peak == record.memory->predicted->peak);
  }
  const Record &every = records["every"], &last = records["last"], &automatic = records["auto"];
  CHECK(wire_bytes(every, "reduce_scatter") == 3 * wire_bytes(last, "reduce_scatter"));
  CHECK(last.memory->measured->gradients == 2 * every.memory->measured->gradients);
  c.parallel = "ddp", c.grad_sync = "every";
  const Record ddp = run_ok(c);
  CHECK(last.training->loss == ddp.training->loss);
  const auto evaluations = [](const Record& r) {
    return nlohmann::ordered_json(r)["training"]["evaluations"];
  };
  REQUIRE(evaluations(last).size() == 3);
  CHECK(evaluations(last) == evaluations(ddp));
  // The id without the option is that of before there was one.
  CHECK(every.id != last.id);
  CHECK(last.id != automatic.id);
  // Memory allows it.
  CHECK(automatic.training->loss == last.training->loss);
  CHECK(automatic.memory->measured->gradients == last.memory->measured->gradients);
  CHECK(contains(fmt::format("{}", fmt::join(automatic.warnings, "\n")), "--grad-sync auto: last"));
  CHECK(!contains(fmt::format("{}", fmt::join(last.warnings, "\n")), "--grad-sync"));
}

TEST_CASE("run_case: --grad-sync auto leaves E4M3 gradients as they are and last refuses them", "[session]") {
  const TempDirectory directory;
  Case c = accumulating_case(directory);
  c.grads = "e4m3";
  const Record every = run_ok(c);
  c.grad_sync = "auto";
  const Record automatic = run_ok(c);
  CHECK(automatic.training->loss == every.training->loss);
  CHECK(contains(fmt::format("{}", fmt::join(automatic.warnings, "\n")), "--grad-sync auto: every"));
  c.grad_sync = "last";
  const Record refused = run_case(validate(c));
  CHECK(refused.status == Status::unsupported);
  CHECK(refused.error.value_or("").starts_with("--grad-sync last: gradients in e4m3"));
}

TEST_CASE("run_case: a case with --grad-sync last resumes from its checkpoint with the same bits",
          "[checkpoint]") {
  const TempDirectory directory;
  for (const char* master : {"fp32", "bf16_sr"}) {
    Case c = accumulating_case(directory);
    c.master = master, c.grad_sync = "last";
    const Record straight = run_ok(c);
    c = with_checkpoints(c, directory / master, 3);
    CHECK(run_ok(c).training->loss == straight.training->loss);
    const std::string end = tensors_of(checkpoint_at(c, 6));
    std::filesystem::remove_all(checkpoint_at(c, 6));
    const Record rest = run_ok(c);
    CHECK(rest.training->loss == straight.training->loss);
    CHECK(tensors_of(checkpoint_at(c, 6)) == end);
    // Replicas write the same files.
    Case ddp = c;
    ddp.parallel = "ddp", ddp.grad_sync = "every";
    run_ok(ddp);
    CHECK(tensors_of(checkpoint_at(ddp, 6)) == end);
  }
}
