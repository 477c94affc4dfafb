// Sizes of checkpoints against real files, and refusals on a small disk, which the tests
// invent.
#include "bench/sweep/disk_space.h"

#include <filesystem>
#include <optional>
#include <string>

#include "bench/measure/checkpoint_testing.h"
#include "bench/sweep/sweep.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

namespace fs = std::filesystem;

FreeBytes always(std::optional<std::int64_t> bytes) {
  return [bytes](const std::string&) { return bytes; };
}

std::int64_t size_of_files(const std::string& folder) {
  std::int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) bytes += static_cast<std::int64_t>(entry.file_size());
  return bytes;
}

/// Runs a sweep of the case whose child never starts. Returns the refusal.
std::string refusal_of_sweep(const Case& c, const std::string& out, const FreeBytes& free,
                             bool fresh = false) {
  SweepOptions options;
  options.out = out, options.quiet = true, options.fresh = fresh, options.free_bytes = free;
  options.child = {"/bin/false"};
  return refusal_of([&] { run_sweep(validate(std::vector<Case>{c}), options); });
}

}  // namespace

TEST_CASE("checkpoint_bytes: a checkpoint takes what is announced", "[checkpoint][disk]") {
  const TempDirectory directory;
  for (const char* moments : {"fp32", "bf16"}) {
    Case c = with_checkpoints(small_case(directory), directory / moments, 6);
    c.moments = moments;
    run_ok(c);
    const std::int64_t real = size_of_files(checkpoint_at(c, 6)), announced = checkpoint_bytes(validate(c));
    INFO(moments << ": " << real << " bytes, announced " << announced);
    // Headers, losses and checksums of so small a model weigh more than one percent.
    CHECK(announced > real * 8 / 10);
    CHECK(announced < real * 11 / 10);
  }
}

TEST_CASE("missing_checkpoint_bytes: counts kept checkpoints that are not there yet", "[checkpoint][disk]") {
  const TempDirectory directory;
  Case c = with_checkpoints(small_case(directory), directory / "checkpoints", 2);
  const std::int64_t each = checkpoint_bytes(validate(c));
  const auto missing = [&](Earlier earlier = Earlier::used) {
    return missing_checkpoint_bytes(validate(c), earlier);
  };
  CHECK(missing() == 2 * each);  // the older one of two stays until the newer one is complete
  c.checkpoint_keep = "all";
  CHECK(missing() == 3 * each);
  run_ok(c);
  CHECK(missing() == 0);
  CHECK(missing(Earlier::moved_aside) == 3 * each);
  fs::remove_all(checkpoint_at(c, 4));
  CHECK(missing() == each);
  // A half-written one is removed before the next is written.
  directory.write("checkpoints/" + validate(c).id + "/step-000004.partial/m.safetensors",
                  std::string(1 << 16, 'x'));
  CHECK(missing() <= each - (1 << 16));
  c.checkpoint_every = 0;
  CHECK(missing() == 0);
}

TEST_CASE("free_bytes_at: a folder that does not exist has the space of its parent", "[disk]") {
  const TempDirectory directory;
  const auto here = free_bytes_at(directory / ""), below = free_bytes_at(directory / "none/at/all");
  REQUIRE(here.has_value() == below.has_value());
  if (here) CHECK(*here > 0);
}

TEST_CASE("run_sweep: checkpoints that do not fit the disk are refused before anything runs",
          "[checkpoint][disk]") {
  const TempDirectory directory;
  const Case c = with_checkpoints(small_case(directory), directory / "checkpoints", 2);
  const std::int64_t needed = missing_checkpoint_bytes(validate(c), Earlier::used);
  const std::string why = refusal_of_sweep(c, directory / "out", always(needed - 1));
  CHECK(why.starts_with("--checkpoint-dir: the checkpoints of 1 case need " + describe_bytes(needed) +
                        ", and " + c.checkpoint_dir + " has " + describe_bytes(needed - 1) +
                        " free; make room, "));
  CHECK(!fs::exists(directory / "out/records.jsonl"));
  CHECK(refusal_of_sweep(c, directory / "out", always(needed)) == "");
  CHECK(refusal_of_sweep(c, directory / "out", always(std::nullopt)) == "");  // unknown
  // A finished case needs nothing, unless it starts over: then nothing is moved.
  CHECK(refusal_of_sweep(c, directory / "out", always(0)) == "");
  const std::string rows = file_text(directory / "out/records.jsonl");
  CHECK(!rows.empty());
  CHECK(contains(refusal_of_sweep(c, directory / "out", always(0), true),
                 "--checkpoint-dir: the checkpoints of 1 case"));
  CHECK(file_text(directory / "out/records.jsonl") == rows);
}
