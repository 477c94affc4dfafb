// Forks: what they take from another run's checkpoint, what they set themselves, and what is refused.
#include <set>

#include "bench/measure/checkpoint_testing.h"
#include "bench/sweep/case_files.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
namespace fs = std::filesystem;

namespace {

/// Uses a text of one sequence: every step of every run reads the same tokens, so that a fork can continue
/// like its trunk.
Case one_sequence(const TempDirectory& directory) {
  Case c = small_case(directory);
  c.recipe = "bf16";
  c.data = directory.write("text.txt", "the quick brown fox jumps over the");
  fs::resize_file(c.data, static_cast<std::uintmax_t>(c.seq) + 1);
  return c;
}

/// Runs the case with checkpoints after 3 and 6 steps.
Record run_trunk(Case& c, const TempDirectory& directory) {
  c = with_checkpoints(c, directory / "trunk", 3);
  c.checkpoint_keep = "all";
  return run_ok(c);
}

Case fork_of(Case c, const std::string& checkpoint, std::int64_t steps) {
  c.checkpoint_every = 0;
  c.fork_from = checkpoint;
  c.steps = steps;
  return c;
}

std::string refusal(const Case& c) {
  const std::string why = refusal_of([&] { check_files({validate(c)}); });
  CHECK(refusal_of([&] { run_case(validate(c)); }) == why);
  return why;
}

}  // namespace

TEST_CASE("run_case: a fork takes over weights and moments and AdamW's step count", "[checkpoint]") {
  for (const char* format : {"fp32", "bf16"}) {
    const TempDirectory directory;
    Case c = one_sequence(directory);
    c.master = c.moments = format;
    const Record trunk = run_trunk(c, directory);
    const std::vector<double>& loss = trunk.training->loss;
    const Record fork = run_ok(fork_of(c, checkpoint_at(c, 3), 3));
    CHECK(fork.training->loss == std::vector<double>(loss.begin() + 3, loss.end()));
    CHECK((*fork.definition->init)["kind"] == "fork");

    // The same weights without the state give the same first loss and other updates.
    Case weights = fork_of(c, "", 3);
    weights.init_from = checkpoint_at(c, 3) + "/weights.safetensors";
    const Record other = run_ok(weights);
    CHECK(other.training->loss[0] == fork.training->loss[0]);
    CHECK(other.training->loss[1] != fork.training->loss[1]);
    CHECK(other.id != fork.id);
  }
}

TEST_CASE("run_case: a resumed fork of a fork continues AdamW's step count", "[checkpoint]") {
  const TempDirectory directory;
  Case c = one_sequence(directory);
  c.steps = 9;
  const Record trunk = run_trunk(c, directory);
  const std::vector<double>& loss = trunk.training->loss;
  Case fork = with_checkpoints(fork_of(c, checkpoint_at(c, 3), 6), directory / "fork", 3);
  run_ok(fork);
  CHECK(Checkpoint(checkpoint_at(fork, 3)).position().optimizer_steps_before == 3);
  fs::remove_all(checkpoint_at(fork, 6));
  const Record rest = run_ok(fork);
  CHECK(rest.training->loss == std::vector<double>(loss.begin() + 3, loss.end()));
  const Record second = run_ok(fork_of(c, checkpoint_at(fork, 3), 3));
  CHECK(second.training->loss == std::vector<double>(loss.begin() + 6, loss.end()));
}

TEST_CASE("run_case: a fork has its own schedule and data and recipe", "[checkpoint]") {
  const TempDirectory directory;
  Case c = small_case(directory);
  run_trunk(c, directory);
  Case fork = fork_of(c, checkpoint_at(c, 6), 4);
  fork.seed = 7;
  fork.recipe = "rowwise";
  fork.lr = 1e-3, fork.warmup = 2;
  fork.gpus = 2, fork.parallel = "fsdp";
  const Record record = run_ok(fork);
  Case fresh = fork;
  fresh.fork_from = "";
  CHECK(record.training->lr == run_ok(fresh).training->lr);
  CHECK(record.training->lr.front() < record.training->lr.back());
  // Its data is that of step 0 and seed 7: the first loss equals that of the trunk's weights on this data.
  Case weights = fresh;
  weights.init_from = checkpoint_at(c, 6) + "/weights.safetensors";
  CHECK(run_ok(weights).training->loss[0] == record.training->loss[0]);
  std::set<std::string> ids = {record.id};
  fork.fork_from = checkpoint_at(c, 3);
  CHECK(ids.insert(validate(fork).id).second);
  CHECK(ids.insert(validate(fresh).id).second);
}

TEST_CASE("run_case: a fork may use other dtypes for its state", "[checkpoint]") {
  const TempDirectory directory;
  Case c = one_sequence(directory);
  const Record trunk = run_trunk(c, directory);
  Case fork = fork_of(c, checkpoint_at(c, 3), 2);
  fork.master = fork.moments = "bf16";  // the step uses BF16 weights anyway
  CHECK(run_ok(fork).training->loss[0] == trunk.training->loss[3]);

  Case narrow = one_sequence(directory);
  narrow.master = narrow.moments = "bf16";
  narrow.seed = 9;
  const Record bf16 = run_trunk(narrow, directory);
  Case wide = fork_of(narrow, checkpoint_at(narrow, 3), 3);
  wide.master = wide.moments = "fp32";
  const Record record = run_ok(wide);
  CHECK(record.training->loss[0] == bf16.training->loss[3]);
  CHECK(record.training->loss[2] !=
        bf16.training->loss[5]);  // its second update starts from the unrounded result of the first
}

TEST_CASE("run_case: invalid fork sources are refused in one line", "[checkpoint]") {
  const TempDirectory directory;
  Case c = small_case(directory);
  run_trunk(c, directory);
  const std::string path = checkpoint_at(c, 3), state = path + "/state.json";
  const Case fork = fork_of(c, path, 2);
  CHECK(refusal(fork) == "");

  Case other = fork;
  other.model = "tiny";
  CHECK(refusal(other) == path + ": its model \"small\" has ffn 96, the model tiny has 384");
  other = fork;
  other.fork_from = directory / "nowhere";
  CHECK(refusal(other) == directory / "nowhere/state.json" + ": no such file");
  other = fork;
  other.init_from = path + "/weights.safetensors";
  CHECK(refusal_of([&] { validate(other); }) ==
        "--fork-from and --init-from: both set the initial weights; choose one");

  const std::string text = without_checksums(file_text(state));
  const auto with_state = [&](const std::string& damaged) {
    std::ofstream(state) << damaged;
    const std::string why = refusal(fork);
    std::ofstream(state) << text;
    return why;
  };
  CHECK(with_state(text.substr(0, 300)) == state + ": not valid JSON in line 1, column 301");
  CHECK(with_state("[]") == state + ": not the state of a checkpoint, or damaged");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    REQUIRE(changed.find(from) != std::string::npos);
    return with_state(changed.replace(changed.find(from), from.size(), to));
  };
  CHECK(with(R"("format":1)", R"("format":2)") ==
        state + ": written by a newer version of this program: checkpoint format 2, and this one knows 1");
  CHECK(with(R"("step":3)", R"("step":2)") == state + ": damaged: loss has 3 entries after 2 steps");
  CHECK(with(R"("files":["m")", R"("files":["amax","m")") ==
        state + ": its state has amax, which this program does not keep");
  CHECK(with(R"("files":["m",)", R"("files":[)") == state + ": its state lacks m");

  const std::string weights = path + "/weights.safetensors";
  const std::string whole = file_text(weights);
  fs::resize_file(weights, whole.size() - 100);
  CHECK(refusal(fork).starts_with(weights + ": truncated: "));
  fs::remove(weights);
  CHECK(refusal(fork).starts_with(weights + ": cannot be read"));
  std::ofstream(weights, std::ios::binary) << whole;
  CHECK(refusal(fork) == "");
}

TEST_CASE("run_case: a fork finds damage in what it reads in any sharding", "[checkpoint]") {
  // The embedding has several blocks, at whose ends neither the writers' nor the readers' parts end.
  constexpr std::size_t kVocab = 50001;
  for (const auto& [writers, readers] : {std::pair(1, 2), {2, 1}, {2, 3}}) {
    INFO(writers << " ranks write, " << readers << " read");
    const TempDirectory directory;
    Case c = small_case(directory);
    c.model = directory.write("wide.json", R"({"layers": 1, "width": 32, "ffn": 96, "heads": 2, "kv_heads": 1,
                                               "head_dim": 16, "vocab": 50001})");
    c.recipe = "bf16";
    c.steps = 1;
    c.gpus = writers;
    c.parallel = writers > 1 ? "fsdp" : "ddp";
    c = with_checkpoints(c, directory / "trunk", 1);
    run_ok(c);
    const std::string path = checkpoint_at(c, 1);
    Case fork = fork_of(c, path, 1);
    fork.gpus = readers;
    fork.parallel = readers > 1 ? "fsdp" : "ddp";
    const auto refused = [&](const std::string& file, std::size_t before_end) {
      INFO(file << ", " << before_end << " bytes before its end");
      damage(file, before_end);
      const std::string damaged = file_text(file);
      CHECK(refusal_of([&] { check_files({validate(fork)}); }) == "");  // opens it but reads no values
      const std::string why = refusal_of([&] { run_case(validate(fork)); });
      CHECK(why.starts_with(file + ": damaged: bytes "));
      CHECK(why.ends_with(" are not those that were written"));
      CHECK(!contains(why, "\n"));
      CHECK(file_text(file) == damaged);  // left as it is
      damage(file, before_end);
      return why;
    };
    run_ok(fork);
    const std::string weights = path + "/weights.safetensors", m = path + "/m.safetensors";
    // The files begin with the head, followed by the embedding.
    const std::size_t whole = fs::file_size(weights), wide = kVocab * 32 * 4;
    for (const std::size_t from_begin : {wide / 3, wide / 2 * 3, whole - 1})
      refused(weights, whole - from_begin);
    refused(m, whole - wide / 2);
    fork.moments = "bf16";  // read and converted to another dtype
    refused(m, whole - wide / 3);
    CHECK(contains(refused(path + "/v.safetensors", whole - wide / 2), " of lm_head.weight are"));
  }
}

TEST_CASE("run_case: the scales of stored moments are verified if a fork reads them", "[checkpoint]") {
  const TempDirectory directory;
  Case c = one_sequence(directory);
  c.moments = "e4m3", c.second_moment = "fp16";
  run_trunk(c, directory);
  const std::string path = checkpoint_at(c, 3), scales = path + "/m_scale.safetensors";
  Case fork = fork_of(c, path, 1);
  damage(scales);
  CHECK(refusal_of([&] { run_case(validate(fork)); }).starts_with(scales + ": damaged: bytes 0 to 4 of "));
  damage(scales);
  fork.moments = fork.second_moment = "fp32";
  run_ok(fork);
}

TEST_CASE("run_case: a checkpoint without checksums can be forked", "[checkpoint]") {
  const TempDirectory directory;
  Case c = small_case(directory);
  run_trunk(c, directory);
  const std::string path = checkpoint_at(c, 3), state = path + "/state.json";
  const std::vector<double> loss = run_ok(fork_of(c, path, 2)).training->loss;
  const std::string text = without_checksums(file_text(state));
  std::ofstream(state) << text;
  fs::remove(path + "/checksums.txt");
  CHECK(run_ok(fork_of(c, path, 2)).training->loss == loss);
}

TEST_CASE("run_case: a fork rounds its trunk's moments to scaled dtypes and resumes from them",
          "[checkpoint][optimizer]") {
  const TempDirectory directory;
  Case c = one_sequence(directory);
  run_trunk(c, directory);
  std::vector<double> last;
  for (const auto& [m, v] : {std::pair("fp32", "fp32"), {"e4m3", "fp16"}, {"coat", "coat"}}) {
    INFO(m << " and " << v);
    Case fork = fork_of(c, checkpoint_at(c, 3), 4);
    fork.moments = m;
    fork.second_moment = v;
    fork.checkpoint_every = 2;
    fork.checkpoint_dir = directory / "forks";
    const Record record = run_ok(fork);
    CHECK(record.training->loss[0] == run_ok(fork_of(c, checkpoint_at(c, 3), 1)).training->loss[0]);
    last.push_back(record.training->loss[3]);
    // From its own scaled state back to FP32: the first loss is that of the weights.
    Case back = fork_of(fork, checkpoint_at(fork, 2), 2);
    back.moments = "fp32";
    back.second_moment = "same";
    CHECK(run_ok(back).training->loss[0] == record.training->loss[2]);
  }
  CHECK((last[1] != last[0] && last[2] != last[0]));
  for (const double loss : last) CHECK(std::fabs(loss / last[0] - 1) < 1e-2);
}

TEST_CASE("run_case: a fork needs the optimizer of its trunk", "[checkpoint][optimizer]") {
  const TempDirectory directory;
  Case c = one_sequence(directory);
  c.optimizer = "lion";
  const Record trunk = run_trunk(c, directory);
  const std::string path = checkpoint_at(c, 3);
  CHECK(!std::filesystem::exists(path + "/v.safetensors"));
  Case fork = fork_of(c, path, 2);
  CHECK(run_ok(fork).training->loss[0] == trunk.training->loss[3]);
  fork.optimizer = "adamw";
  CHECK(refusal(fork) == path + ": its optimizer is lion, the case's is adamw");
}
