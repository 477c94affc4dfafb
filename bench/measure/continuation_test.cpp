// A case that was ended resumes from its last complete checkpoint and equals one that was never interrupted.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>

#include "bench/measure/checkpoint_testing.h"
#include "bench/process/case_process_testing.h"
#include "bench/sweep/case_files.h"
#include "kernels/testing/text_checks.h"
#include "results/record/valid_json_testing.h"

using namespace precbench;
namespace fs = std::filesystem;

namespace {

constexpr const char* kRealCase = "a case that writes checkpoints until it is ended";

/// Limits the size of this process's files during its lifetime.
class ShortFiles {
 public:
  explicit ShortFiles(rlim_t bytes) : signal_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~ShortFiles() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, signal_);
  }

 private:
  sighandler_t signal_;
  rlimit before_{};
};

}  // namespace

TEST_CASE("run_case: a case resumes from its checkpoint with the same bits", "[checkpoint]") {
  struct Layout {
    int gpus;
    const char* parallel;
  };
  for (const Layout& layout : {Layout{1, "ddp"}, {2, "ddp"}, {2, "fsdp"}})
    for (const char* master : {"fp32", "bf16", "bf16_sr"})
      for (const char* moments : {"fp32", "bf16"}) {
        INFO(layout.gpus << " ranks " << layout.parallel << ", master " << master << ", moments " << moments);
        const TempDirectory directory;
        Case c = small_case(directory);
        c.gpus = layout.gpus, c.parallel = layout.parallel;
        c.master = master, c.moments = moments;
        c.schedule = "cosine", c.warmup = 2;
        const Record straight = run_ok(c);
        c = with_checkpoints(c, directory / "checkpoints", 3);
        const Record whole = run_ok(c);
        CHECK(whole.id == straight.id);
        CHECK(whole.warnings == straight.warnings);
        check_same_training(whole, straight);
        const std::string end = tensors_of(checkpoint_at(c, 6));
        CHECK(end != tensors_of(checkpoint_at(c, 3)));
        // Simulates a kill after the last step.
        fs::remove_all(checkpoint_at(c, 6));
        const Record rest = run_ok(c);
        check_same_training(rest, straight);
        CHECK(tensors_of(checkpoint_at(c, 6)) == end);
        REQUIRE(rest.warnings.size() == 1);
        CHECK(rest.warnings[0] ==
              "resumed from the checkpoint " + checkpoint_at(c, 3) + ": times are of the steps after step 3");
        CHECK(rest.timing->warmup + static_cast<std::int64_t>(rest.timing->samples_ms.size()) == 3);
        CHECK(!rest.training->params_changed);  // the first step ran in another process
        valid_json(rest);
      }
}

TEST_CASE("run_case: a case of tensor ranks resumes from its checkpoint with the same bits",
          "[checkpoint][tensor]") {
  for (const char* parallel : {"ddp", "fsdp"}) {
    INFO(parallel);
    const TempDirectory directory;
    Case c = small_case(directory);
    c.model =
        directory.write("divisible.json", R"({"layers": 1, "width": 32, "ffn": 96, "heads": 2, "kv_heads": 2,
                                                    "head_dim": 16, "vocab": 100})");
    c.gpus = 4, c.tensor = 2, c.parallel = parallel, c.steps = 4;
    c = with_checkpoints(c, directory / "checkpoints", 2);
    c.checkpoint_keep = "all";
    const Record whole = run_ok(c);
    const std::string end = tensors_of(checkpoint_at(c, 4)),
                      sums = file_text(checkpoint_at(c, 4) + "/checksums.txt");
    // At most a line for each of four ranks, three files and twelve tensors, and none per row of o and down.
    CHECK(std::count(sums.begin(), sums.end(), '\n') <= 4 * 3 * 12 + 1);
    fs::remove_all(checkpoint_at(c, 4));
    const Record rest = run_ok(c);
    CHECK(rest.warnings.size() == 1);
    check_same_training(rest, whole);
    CHECK(tensors_of(checkpoint_at(c, 4)) == end);
    fs::remove_all(checkpoint_at(c, 4));
    damage(checkpoint_at(c, 2) + "/m.safetensors", 1000);
    CHECK(contains(refusal_of([&] { run_case(validate(c)); }), "m.safetensors: damaged: bytes "));
  }
}

TEST_CASE("run_case: a checkpoint of another build is resumed with a warning", "[checkpoint]") {
  const TempDirectory directory;
  const Case c = with_checkpoints(small_case(directory), directory / "checkpoints", 3);
  run_ok(c);
  fs::remove_all(checkpoint_at(c, 6));
  const std::string state = (fs::path(checkpoint_at(c, 3)) / "state.json").string();
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(file_text(state));
  json["program"]["git"] = std::string(40, '0');
  json.erase("checksums");  // as an older program wrote it; they would find this edit
  std::ofstream(state) << json.dump();
  const Record rest = run_ok(c);
  if (!rest.env.git) return;  // built without git
  REQUIRE(rest.warnings.size() == 2);
  CHECK(rest.warnings[0].starts_with("the checkpoint " + checkpoint_at(c, 3) +
                                     " was written by commit 000000000000, and this program is of commit "));
  CHECK(rest.warnings[0].ends_with("--fresh starts it anew"));
}

TEST_CASE("run_case: checkpoint_at writes the state after the named steps and a case resumes from them",
          "[checkpoint]") {
  const TempDirectory directory;
  Case c = small_case(directory);
  const Record straight = run_ok(c);
  c.checkpoint_at = "5,2", c.checkpoint_keep = "all", c.checkpoint_dir = directory / "checkpoints";
  const Record whole = run_ok(c);
  CHECK(whole.id == straight.id);
  check_same_training(whole, straight);
  for (std::int64_t step = 1; step <= c.steps; ++step)
    CHECK(fs::exists(checkpoint_at(c, step)) == (step == 2 || step == 5));
  check_same_training(run_ok(c), straight);  // continues from step 5
  fs::remove_all(checkpoint_at(c, 5));
  check_same_training(run_ok(c), straight);  // continues from step 2
  CHECK(fs::exists(checkpoint_at(c, 5)));
}

TEST_CASE("run_case: MS-AMP's levels resume from a checkpoint with the same bits", "[checkpoint]") {
  struct Run {
    const char *recipe, *parallel;
    int gpus, accumulation;
    const char* recompute;
  };
  for (const auto& [recipe, parallel, gpus, accumulation, recompute] :
       {Run{"msamp_o1", "ddp", 1, 2, "none"},
        {"msamp_o2", "ddp", 2, 1, "block"},
        {"msamp_o2", "fsdp", 2, 2, "none"},
        {"msamp_o3", "ddp", 1, 1, "none"},
        {"msamp_o3", "fsdp", 2, 1, "block"}}) {
    INFO(recipe << ", " << gpus << " ranks " << parallel << ", accumulation " << accumulation);
    const TempDirectory directory;
    Case c = small_case(directory);
    c.recipe = recipe, c.parallel = parallel, c.gpus = gpus, c.accumulation = accumulation;
    c.recompute = recompute;
    const Record straight = run_ok(c);
    c = with_checkpoints(c, directory / "checkpoints", 3);
    const Record whole = run_ok(c);
    CHECK(whole.id == straight.id);
    check_same_training(whole, straight);
    const auto files = [&] {
      return tensors_of(checkpoint_at(c, 6)) + file_text(checkpoint_at(c, 6) + "/weights_scale.safetensors") +
             file_text(checkpoint_at(c, 6) + "/scales.safetensors");
    };
    const std::string end = files();
    fs::remove_all(checkpoint_at(c, 6));
    check_same_training(run_ok(c), straight);
    CHECK(files() == end);
    // A fork decodes the weights with their scales, in FP32 and in FP16; --init-from refuses them.
    Case fork = small_case(directory);
    fork.fork_from = checkpoint_at(c, 6);
    fork.recipe = "bf16";
    const double next = run_ok(fork).training->loss[0];
    fork.recipe = recipe;
    CHECK(std::fabs(run_ok(fork).training->loss[0] - next) < 0.05 * next);
    CHECK(std::fabs(next - straight.training->loss[5]) < 0.3 * next);
    Case other = small_case(directory);
    other.init_from = checkpoint_at(c, 6) + "/weights.safetensors";
    std::string why;
    try {
      check_files({validate(other)});
    } catch (const InvalidInput& error) {
      why = error.what();
    }
    CHECK(contains(why, "its scales are in weights_scale.safetensors"));
  }
}

TEST_CASE("run_case: held-out losses from before the checkpoint are kept on resuming", "[checkpoint]") {
  const TempDirectory directory;
  Case c = with_checkpoints(small_case(directory), directory / "checkpoints", 3);
  std::string text;
  for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i) + "\n";
  c.eval_data = directory.write("held_out.txt", text);
  c.eval_every = 2;
  c.eval_tokens = 64;
  const auto evaluations = [](const Record& r) {
    return nlohmann::ordered_json(r)["training"]["evaluations"];
  };
  const Record whole = run_ok(c);
  REQUIRE(evaluations(whole).size() == 3);
  CHECK(evaluations(whole)[0]["step"] == 2);
  fs::remove_all(checkpoint_at(c, 6));
  const Record rest = run_ok(c);
  CHECK(rest.warnings != whole.warnings);  // it did resume
  CHECK(evaluations(rest) == evaluations(whole));
}

TEST_CASE("run_case: ranks write the same checkpoint files in any sharding", "[checkpoint]") {
  const TempDirectory directory;
  Case c = with_checkpoints(small_case(directory), directory / "checkpoints", 6);
  c.gpus = 2;
  c.clip = 0;  // the norm is the one sum whose order depends on the sharding
  Case sharded = c;
  sharded.parallel = "fsdp";
  run_ok(c);
  run_ok(sharded);
  CHECK(checkpoint_at(c, 6) != checkpoint_at(sharded, 6));
  CHECK(tensors_of(checkpoint_at(c, 6)) == tensors_of(checkpoint_at(sharded, 6)));
}

TEST_CASE("run_case: the previous checkpoint is kept until the next one is complete", "[checkpoint]") {
  const TempDirectory directory;
  Case c = with_checkpoints(small_case(directory), directory / "checkpoints", 2);
  run_ok(c);
  CHECK(!fs::exists(checkpoint_at(c, 2)));
  CHECK(fs::exists(checkpoint_at(c, 4)));
  CHECK(fs::exists(checkpoint_at(c, 6)));
  c.checkpoint_keep = "all";
  c.seed = 3;
  directory.write("checkpoints/" + validate(c).id + "/step-000003.partial/m.safetensors", "half");
  run_ok(c);
  for (const int step : {2, 4, 6}) CHECK(Checkpoint(checkpoint_at(c, step)).position().step == step);
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint_folder(validate(c))))
    CHECK(!entry.path().has_extension());  // nothing half-written is left
}

TEST_CASE("run_case: on a full disk the run goes on but is not ok", "[checkpoint]") {
  const TempDirectory directory;
  const Case c = with_checkpoints(small_case(directory), directory / "checkpoints", 2);
  const Record straight = run_ok(c);
  fs::remove_all(checkpoint_at(c, 6));
  const std::string before = tensors_of(checkpoint_at(c, 4));
  Record full;
  {
    const ShortFiles limit(10000);
    full = run_case(validate(c));
  }
  CHECK(full.status == Status::crashed);
  check_same_training(full, straight);
  REQUIRE(full.warnings.size() == 2);
  CHECK(full.warnings[1].starts_with("not written: the checkpoint after step 6: " + checkpoint_at(c, 6) +
                                     ".partial/"));
  CHECK(contains(full.warnings[1], ": cannot be written ("));
  CHECK(full.error == full.warnings[1]);
  CHECK(!fs::exists(checkpoint_at(c, 6)));
  CHECK(!fs::exists(checkpoint_at(c, 6) + ".partial"));
  CHECK(tensors_of(checkpoint_at(c, 4)) == before);
}

TEST_CASE("run_case: an incomplete checkpoint is skipped and one of a newer version is refused",
          "[checkpoint]") {
  const TempDirectory directory;
  Case c = with_checkpoints(small_case(directory), directory / "checkpoints", 2);
  c.checkpoint_keep = "all";
  const Record straight = run_ok(c);
  fs::resize_file(checkpoint_at(c, 4) + "/m.safetensors", 5000);
  const Record rest = run_ok(c);
  check_same_training(rest, straight);
  REQUIRE(rest.warnings.size() == 2);
  CHECK(rest.warnings[0].starts_with("a checkpoint is passed over: " + checkpoint_at(c, 4) +
                                     "/m.safetensors: truncated"));
  CHECK(contains(rest.warnings[1], checkpoint_at(c, 2)));

  const std::string state = checkpoint_at(c, 4) + "/state.json";
  const std::string text = file_text(state);
  REQUIRE(text.starts_with(R"({"format":1,)"));
  std::ofstream(state) << R"({"format":2,)" << text.substr(12);
  const std::string refused = state +
                              ": written by a newer version of this program: checkpoint format 2, and "
                              "this one knows 1";
  CHECK(refusal_of([&] { check_files({validate(c)}); }) == refused);
  CHECK(refusal_of([&] { run_case(validate(c)); }) == refused);
  CHECK(file_text(state).starts_with(R"({"format":2,)"));
}

TEST_CASE("run_case: a case does not resume from damaged values and deletes nothing", "[checkpoint]") {
  const TempDirectory directory;
  Case c = with_checkpoints(small_case(directory), directory / "checkpoints", 2);
  c.checkpoint_keep = "all";
  const Record straight = run_ok(c);
  fs::remove_all(checkpoint_at(c, 6));
  const std::string newest = checkpoint_at(c, 4);
  for (const char* kind : {"weights", "m", "v"}) {
    INFO(kind);
    const std::string file = newest + "/" + kind + ".safetensors", before = file_text(file);
    damage(file, 1000);
    const std::string damaged = file_text(file), older = tensors_of(checkpoint_at(c, 2));
    const std::string why = refusal_of([&] { run_case(validate(c)); });
    CHECK(why.starts_with(file + ": damaged: bytes 0 to "));
    CHECK(contains(why, " are not those that were written; move " + newest + " away to resume"));
    CHECK(!contains(why, "\n"));
    CHECK(file_text(file) == damaged);
    CHECK(tensors_of(checkpoint_at(c, 2)) == older);
    std::ofstream(file, std::ios::binary) << before;
  }
  damage(newest + "/m.safetensors");
  fs::rename(newest, newest + "-damaged");
  const Record rest = run_ok(c);
  check_same_training(rest, straight);
  REQUIRE(rest.warnings.size() == 1);
  CHECK(contains(rest.warnings[0], checkpoint_at(c, 2)));
}

TEST_CASE("run_case: a checkpoint with a damaged state or damaged checksums is skipped", "[checkpoint]") {
  const TempDirectory directory;
  Case c = with_checkpoints(small_case(directory), directory / "checkpoints", 2);
  c.checkpoint_keep = "all";
  const Record straight = run_ok(c);
  fs::remove_all(checkpoint_at(c, 6));
  const std::string newest = checkpoint_at(c, 4), state = newest + "/state.json",
                    sums = newest + "/checksums.txt", state_text = file_text(state),
                    sums_text = file_text(sums);
  const auto passed_over = [&] {
    const Record rest = run_ok(c);
    check_same_training(rest, straight);
    fs::remove_all(checkpoint_at(c, 6));
    fs::create_directories(newest);
    std::ofstream(state, std::ios::binary) << state_text;
    std::ofstream(sums, std::ios::binary) << sums_text;
    REQUIRE(rest.warnings.size() == 2);
    CHECK(contains(rest.warnings[1], checkpoint_at(c, 2)));
    return rest.warnings[0];
  };
  const std::string over = "a checkpoint is passed over: ";
  const std::size_t loss = state_text.find(R"("loss":[)");
  REQUIRE(loss != std::string::npos);
  std::string other = state_text;
  other[loss + 9] = other[loss + 9] == '1' ? '2' : '1';
  std::ofstream(state, std::ios::binary) << other;
  CHECK(passed_over() == over + state + ": damaged: it is not what checksums.txt has the checksum of");
  fs::remove(sums);
  CHECK(passed_over() == over + sums + ": no such file");
  const std::size_t name = sums_text.find("m/"), line = sums_text.rfind('\n', name) + 1;
  other = sums_text;
  std::ofstream(sums, std::ios::binary) << other.erase(line, other.find('\n', name) + 1 - line);
  CHECK(contains(passed_over(), sums + ": damaged: it lacks some of m/"));
  std::ofstream(sums, std::ios::binary) << sums_text.substr(0, name);
  CHECK(passed_over() == over + sums + ": damaged: not the checksums of a checkpoint");
  // Checkpoints written before checksums existed are read without them.
  fs::remove(sums);
  std::ofstream(state, std::ios::binary) << without_checksums(state_text);
  const Record rest = run_ok(c);
  check_same_training(rest, straight);
  REQUIRE(rest.warnings.size() == 1);
  CHECK(contains(rest.warnings[0], newest));
}

TEST_CASE(kRealCase, "[.]") {
  be_child(kRealCase, [](const Case& c, const NodeShare& share, StepBoard& board) {
    return run_case(validate(c), share, &board);
  });
}

TEST_CASE("run_case_process: a case whose process was ended resumes where it was", "[checkpoint]") {
  const TempDirectory directory;
  Case c = small_case(directory);
  c.model = "tiny", c.recipe = "bf16";
  c.seq = 64, c.batch = 2, c.steps = 60;
  const Record straight = run_ok(c);
  c = with_checkpoints(c, directory / "checkpoints", 3);
  const std::string first = checkpoint_at(c, 3);
  bool begun = false;
  const CaseProcessResult ended = run_case_process(child_command(kRealCase), c, {}, 0, [&] {
    std::vector<std::string> problems;
    begun = begun || last_checkpoint(validate(c), problems) != nullptr;
    return begun;
  });
  REQUIRE(ended.end == CaseProcessResult::End::stopped);
  CHECK(ended.record.empty());
  const Record rest = run_ok(c);
  check_same_training(rest, straight);
  REQUIRE(rest.warnings.size() == 1);
  CHECK(rest.warnings[0].starts_with("resumed from the checkpoint "));
}
