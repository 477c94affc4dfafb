// Checkpoints of runs with delayed scaling store the amax history, and runs resume with it.
#include <fstream>

#include "bench/measure/checkpoint_testing.h"
#include "bench/step/delayed_testing.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
using namespace precbench::testing;
using precbench::testing::delayed::with_history;
namespace fs = std::filesystem;

namespace {

Case delayed_case(const TempDirectory& directory) {
  Case c = small_case(directory);
  c.recipe = "tensorwise_delayed";
  return with_checkpoints(c, directory / "checkpoints", 3);
}

std::string scales_at(const Case& c, int step) { return checkpoint_at(c, step) + "/scales.safetensors"; }

}  // namespace

TEST_CASE("run_case: delayed scaling resumes from its checkpoint with the same bits",
          "[checkpoint][delayed]") {
  for (const std::string kind : {"one rank", "bf16", "fp8", "experts", "micro", "micro fp8"}) {
    INFO(kind);
    const TempDirectory directory;
    Case c = delayed_case(directory);
    if (kind.starts_with("micro")) {
      c.recipe = directory.write(
          "mine.json",
          with_history("tensorwise_delayed", {{"update", "micro"}, {"first", "window"}, {"length", 7}})
              .dump());
      c.accumulation = 2;
    }
    if (kind != "one rank") c.gpus = 2;
    if (kind == "experts")
      c.model = "tiny-moe", c.ep = 2;
    else if (c.gpus > 1)
      c.parallel = "fsdp", c.gather = kind.ends_with("fp8") ? "fp8" : "bf16";
    const Record whole = run_ok(c);
    const std::string end = tensors_of(checkpoint_at(c, 6)), scales = file_text(scales_at(c, 6));
    CHECK(file_text(scales_at(c, 3)) != scales);
    fs::remove_all(checkpoint_at(c, 6));
    const Record rest = run_ok(c);
    CHECK(rest.training->loss == whole.training->loss);
    CHECK(tensors_of(checkpoint_at(c, 6)) == end);
    CHECK(file_text(scales_at(c, 6)) == scales);
  }
}

TEST_CASE("run_case: ranks with their own amax histories resume with the same bits",
          "[checkpoint][delayed]") {
  struct Setting {
    std::int64_t gpus;
    const char* parallel;
    std::int64_t ep;
  };
  for (const auto& [gpus, parallel, ep] : {Setting{2, "ddp", 1}, Setting{3, "fsdp", 1}, Setting{4, "hsdp", 1},
                                           Setting{2, "ddp", 2}, Setting{4, "ddp", 2}}) {
    INFO(gpus << " ranks, " << parallel << ", ep " << ep);
    const TempDirectory directory;
    Case c = delayed_case(directory);
    c.recipe = directory.write("mine.json",
                               with_history("tensorwise_delayed", {{"reduce", false}, {"length", 8}}).dump());
    c.gpus = gpus;
    c.parallel = parallel;
    if (c.parallel == "hsdp") c.shard_group = 2;
    c.ep = ep;
    if (ep > 1) c.model = "tiny-moe";
    const Record whole = run_ok(c);
    const std::string end = tensors_of(checkpoint_at(c, 6)), scales = file_text(scales_at(c, 6));
    CHECK(contains(scales, "\"known\":{\"dtype\":\"F32\",\"shape\":[" + std::to_string(gpus) + ","));
    fs::remove_all(checkpoint_at(c, 6));
    const Record rest = run_ok(c);
    REQUIRE(!rest.warnings.empty());
    CHECK(rest.warnings[0].starts_with("resumed from the checkpoint"));
    CHECK(rest.training->loss == whole.training->loss);
    CHECK(tensors_of(checkpoint_at(c, 6)) == end);
    CHECK(file_text(scales_at(c, 6)) == scales);
    // Another number of ranks is another case, which can only fork from the checkpoint.
    Case other = c;
    other.gpus = gpus + 1;
    other.parallel = "ddp", other.shard_group = 1, other.ep = 1;
    CHECK(contains(refusal_of([&] { Checkpoint(checkpoint_at(c, 6)).check_continues(validate(other)); }),
                   ": it is of the case "));
    CHECK(refusal_of([&] { Checkpoint(checkpoint_at(c, 6)).check_forks(validate(other)); }) == "");
  }
}

TEST_CASE("run_case: a checkpoint whose amaxes do not fit the case is skipped", "[checkpoint][delayed]") {
  const TempDirectory directory;
  const Case c = delayed_case(directory);
  const Record whole = run_ok(c);
  const std::string scales = file_text(scales_at(c, 3));
  const auto passed_over = [&](const std::string& contents) {
    fs::remove_all(checkpoint_at(c, 6));
    std::ofstream(scales_at(c, 3), std::ios::binary) << contents;
    const Record again = run_ok(c);
    CHECK(again.training->loss == whole.training->loss);
    return again.warnings.empty() ? "" : again.warnings[0];
  };
  CHECK(passed_over(scales).starts_with("resumed from the checkpoint"));
  std::string other = scales;
  const std::size_t shape = other.find("[27,1023]");
  REQUIRE(shape != std::string::npos);
  other.replace(shape, 9, "[1023,27]");
  CHECK(contains(passed_over(other),
                 "scales.safetensors: history is F32 [1023, 27], the case expects F32 [27, 1023]"));
  CHECK(contains(passed_over(scales.substr(0, scales.size() / 2)), "scales.safetensors"));

  const std::string state = checkpoint_at(c, 3) + "/state.json";
  std::string text = without_checksums(file_text(state));
  const std::size_t kind = text.find(",\"scales\"");
  REQUIRE(kind != std::string::npos);
  std::ofstream(state) << text.erase(kind, 9);
  CHECK(contains(passed_over(scales), "its state lacks scales"));
}

TEST_CASE("run_case: a fork starts without the amax history of its trunk", "[checkpoint][delayed]") {
  const TempDirectory directory;
  Case trunk = delayed_case(directory);
  run_ok(trunk);
  const auto fork_losses = [&](const char* recipe) {
    Case fork = small_case(directory);
    fork.recipe = recipe;
    fork.fork_from = checkpoint_at(trunk, 6);
    fork.steps = 3;
    return run_ok(fork).training->loss;
  };
  const std::vector<double> delayed = fork_losses("tensorwise_delayed"), current = fork_losses("tensorwise");
  CHECK(delayed[0] == current[0]);
  CHECK(delayed[2] != current[2]);
  Case other =
      with_checkpoints(small_case(directory), directory / "checkpoints", 3);  // tensorwise, without amaxes
  run_ok(other);
  CHECK(!fs::exists(scales_at(other, 6)));
  Case fork = small_case(directory);
  fork.recipe = "tensorwise_delayed_recent";
  fork.fork_from = checkpoint_at(other, 6);
  run_ok(fork);
}
