// Whole studies: real cases of a small model in child processes, which are this test binary.
#include "bench/study/study.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "bench/measure/session.h"
#include "bench/process/case_process_testing.h"
#include "bench/process/sweep_status.h"
#include "bench/step/checkpoint.h"
#include "bench/study/planned_cost.h"
#include "bench/study/trunk_states.h"
#include "kernels/gpu/device_info.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

constexpr const char* kRealCase = "one case of a study";

/// Writes a small model and returns its path.
std::string small_model(const TempDirectory& directory, int layers = 1) {
  return directory.write(
      "small.json",
      fmt::format(R"({{"layers":{},"width":32,"ffn":64,"heads":2,"kv_heads":2,"vocab":256,"tied":true}})",
                  layers));
}

/// Runs `precbench study` for the recipe rowwise on the CPU with these flags besides.
Answer run_study(const std::string& flags) {
  return output_of("COLUMNS=1000 " PRECBENCH_BINARY_DIR "/precbench study --recipe rowwise --device cpu " +
                   flags);
}

}  // namespace

TEST_CASE("one case of a study", "[.]") {
  be_child(kRealCase, [](const Case& c, const NodeShare& share, StepBoard& board) {
    return run_case(validate(c), share, &board);
  });
}

TEST_CASE("study: --sensitivity-only measures cells and a full study continues from it",
          "[study][sensitivity]") {
  const TempDirectory directory;
  const std::string model = small_model(directory, 2);
  const std::string config = directory.write(
      "study.toml",
      "[work]\nseq = 32\nbatch = 1\n[trunk]\ntrunks = 2\nages = [2]\n[fork]\nsteps = 12\n[fidelity]\nbatches = 1\n"
      "[ladder]\noutlier_ffn = []\noutlier_norm = []\noutlier_vo = []\nlearning_rate = []\nbits = 0\n"
      "[control]\napart = []\nbreak = []\n");
  const std::string out = directory / "out";
  const auto run = [&](const std::string& more) {
    const Answer answer = run_study(
        fmt::format("--model {} --config {} --out {} --sensitivity standard {}", model, config, out, more));
    INFO(answer.text);
    REQUIRE(answer.status == kSweepDone);
    return answer.text;
  };
  const auto rows = [&] {
    std::map<StudyPart, int> parts;
    for (const LocatedRecord& located : read_records({out + "/records.jsonl"}).records) {
      CHECK(located.record.status == Status::ok);
      ++parts[located.record.study->part];
      CHECK(located.record.sensitivity.has_value() == (located.record.study->part == StudyPart::sensitivity));
    }
    return parts;
  };
  const std::string dry = run("--sensitivity-only --dry-run");
  CHECK(contains(dry, "sensitivity of rowwise on " + model + ", trunk 1 after 2 steps: at most "));
  const std::string only = run("--sensitivity-only");
  CHECK(contains(only, "Where the loss comes from: rowwise on small (trunk 1 after 2 steps)"));
  CHECK(contains(only, "What buys the loss back: rowwise on small (trunk 1 after 2 steps)"));
  CHECK(rows() == std::map<StudyPart, int>{{StudyPart::trunk, 1}, {StudyPart::sensitivity, 1}});
  run("");
  CHECK(rows() == std::map<StudyPart, int>{
                      {StudyPart::trunk, 2}, {StudyPart::fork, 2 * 3}, {StudyPart::sensitivity, 1}});
}

TEST_CASE("study: impossible forks are refused before the trunks run", "[study]") {
  const TempDirectory directory;
  StudyCommand command;
  command.axes = {{"model", {"tiny-moe"}}, {"recipe", {"rowwise"}}, {"device", {"cpu"}}};
  command.config = directory.write("study.toml", "[ladder]\nchannels = 4000\n");
  command.out = directory / "out";
  command.options.quiet = true;
  command.options.child = {"/bin/false"};  // fails if a step is timed before
  for (const bool dry_run : {true, false}) {
    command.dry_run = dry_run;
    CHECK(refusal_of([&] { study(command); }) ==
          command.config + ":2: channels: 4000 channels requested, ffn of a block has 128");
    CHECK(!std::filesystem::exists(*command.out));
  }
}

TEST_CASE("study: a dry run checks its folder and creates none", "[study]") {
  const TempDirectory directory;
  const std::string file = directory.write("file", "");
  StudyCommand command;
  command.axes = {{"recipe", {"rowwise"}}, {"device", {"cpu"}}};
  command.options.child = {"/bin/false"};
  command.dry_run = true;
  command.out = file;
  CHECK(refusal_of([&] { study(command); }) == "--out: cannot make " + file + ": Not a directory");
  command.out = directory / "new/out";
  CHECK(contains(refusal_of([&] { study(command); }), "does not run here"));
  CHECK(!std::filesystem::exists(directory / "new"));
}

TEST_CASE("study: fewer trunks than a verdict needs are a warning", "[study]") {
  const TempDirectory directory;
  const std::string text = directory.write("text.txt", std::string(20000, 'x')),
                    model = directory.write(
                        "small.json",
                        R"({"layers":1,"width":32,"ffn":64,"heads":2,"kv_heads":2,"vocab":256})");
  const auto said = [&](int trunks) {
    const Answer answer = output_of(fmt::format(
        PRECBENCH_BINARY_DIR
        "/precbench study --model {} --recipe rowwise --device cpu --data {} --out {} --config {} --dry-run",
        model, text, directory / "out",
        directory.write("study.toml",
                        fmt::format("[work]\nseq = 32\nbatch = 1\n[trunk]\ntrunks = {}\nages = [2]\n"
                                    "[fork]\nsteps = 12\n",
                                    trunks))));
    INFO(answer.text);
    CHECK(answer.status == kSweepDone);
    return answer.text;
  };
  const std::string why = ": every verdict will be inconclusive; a verdict needs at least 3\n";
  CHECK(contains(said(1), "precbench: 1 trunk" + why));
  CHECK(contains(said(2), "precbench: 2 trunks" + why));
  CHECK(!contains(said(3), "inconclusive"));
}

TEST_CASE("study: a study that is interrupted and started again ends with the same rows and cards",
          "[study]") {
  const TempDirectory directory;
  const std::string model = small_model(directory);
  const std::string config = directory.write(
      "study.toml",
      "[work]\nseq = 32\nbatch = 1\n[trunk]\ntrunks = 2\nages = [2, 4]\n[fork]\nsteps = 12\n[fidelity]\nbatches = 1\n"
      "[ladder]\noutlier_ffn = [8]\noutlier_norm = []\noutlier_vo = [8]\nlearning_rate = [3]\nbits = 1\nexponent_bits = 1\nchannels = 1\n"
      "[control]\napart = [\"rowwise_e5m2:rowwise\"]\nbreak = []\n");
  const std::string out = directory / "whole", records = out + "/records.jsonl", cards = out + "/cards.json";
  const auto run = [&] {
    const Answer answer = run_study(fmt::format("--model {} --config {} --out {}", model, config, out));
    INFO(answer.text);
    REQUIRE(answer.status == kSweepDone);
  };
  run();
  const auto rows_in = [&] {
    std::map<std::string, nlohmann::ordered_json> rows;
    for (const LocatedRecord& located : read_records({records}).records) {
      const Record& r = located.record;
      REQUIRE(r.study);
      CHECK(r.status == Status::ok);
      REQUIRE(!r.durations.empty());
      CHECK(r.durations.front().work == "start");
      CHECK(r.durations.front().s > 0);
      if (!r.training) continue;
      const nlohmann::ordered_json json = r;
      rows[r.id] = {{"loss", json.at("training").at("loss")},
                    {"fidelity", json.at("fidelity")},
                    {"study", json.at("study")}};
    }
    return rows;
  };
  const auto whole = rows_in();
  // 2 trunks; at 2 ages bf16, perturbed, rowwise, rowwise_e5m2; 2 learning rates, 1 rung of mantissas, 1 of
  // exponents
  CHECK(whole.size() == 2 + 2 * 2 * 4 + 2 + 1 + 1);
  const std::string text = file_text(records), whole_cards = file_text(cards);
  REQUIRE(contains(whole_cards, "\"rowwise\""));

  // The same rows as a kill leaves them, with the cards of that time.
  const auto end_of_line = [&](std::size_t lines) {
    std::size_t end = 0;
    while (lines-- > 0) end = text.find('\n', end) + 1;
    return end;
  };
  const std::size_t last_rung = text.rfind('\n', text.rfind("\"part\":\"learning_rate\"")) + 1;
  REQUIRE(last_rung > end_of_line(4));
  const std::map<std::string, std::size_t> cuts = {{"after the trunks", end_of_line(2)},
                                                   {"within the forks", end_of_line(6)},
                                                   {"within a ladder", last_rung},
                                                   {"within a line", end_of_line(9) + 300}};
  for (const auto& [where, cut] : cuts) {
    INFO(where);
    std::filesystem::resize_file(directory.write("whole/records.jsonl", text), cut);
    std::filesystem::remove(cards);
    run();
    CHECK(rows_in() == whole);
    CHECK(file_text(cards) == whole_cards);
  }

  // Starts afresh; the old rows are moved aside.
  std::filesystem::remove(records + ".1");
  const Answer fresh =
      output_of(fmt::format(PRECBENCH_BINARY_DIR
                            "/precbench study --model {} --recipe rowwise --device cpu --config {} "
                            "--out {} --fresh",
                            model, config, out));
  INFO(fresh.text);
  CHECK(fresh.status == kSweepDone);
  CHECK(!contains(fresh.text, "finished already"));
  CHECK(rows_in() == whole);
  CHECK(std::filesystem::exists(records + ".1"));
  CHECK(!std::filesystem::exists(records + ".2"));

  // Without the second trunk's states, which its finished row does not replace.
  std::filesystem::resize_file(directory.write("whole/records.jsonl", text), text.size() / 2);
  for (const auto& entry : std::filesystem::directory_iterator(out + "/checkpoints"))
    if (!contains(text.substr(0, text.find('\n')), entry.path().filename().string()))
      std::filesystem::remove_all(entry.path());
  run();
  CHECK(rows_in() == whole);
  CHECK(file_text(cards) == whole_cards);
}

namespace {

constexpr const char* kOneTrunkConfig =
    "[work]\nseq = 32\nbatch = 1\n[trunk]\ntrunks = 2\nages = [2, 4]\n[fork]\nsteps = 12\n[fidelity]\nbatches = 1\n"
    "[ladder]\noutlier_ffn = [8]\noutlier_norm = []\noutlier_vo = []\nlearning_rate = [3]\nbits = 0\n"
    "exponent_bits = 0\nchannels = 1\n[control]\napart = []\nbreak = []\n";

std::int64_t bytes_below(const std::string& folder) {
  std::error_code error;
  std::int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error))
    if (entry.is_regular_file(error)) bytes += static_cast<std::int64_t>(entry.file_size(error));
  return bytes;
}

/// A study of the small model on a disk with room for so many bytes of checkpoints, in a process of its own.
struct SmallDisk {
  const TempDirectory& directory;
  std::string model, config;

  Answer run(const std::string& out, std::int64_t capacity, bool fresh = false) const {
    const std::string said = out + ".said";
    std::filesystem::remove(said);
    const pid_t pid = in_background([&] {
      errors_to(said);
      StudyCommand command;
      command.axes = {{"model", {model}}, {"recipe", {"rowwise"}}, {"device", {"cpu"}}};
      command.config = config;
      command.out = out;
      command.options.child = {PRECBENCH_BINARY_DIR "/precbench", "run-case"};
      command.options.fresh = fresh;
      command.options.free_bytes = [&](const std::string&) {
        return capacity - bytes_below(out + "/checkpoints");
      };
      return study(command);
    });
    const int status = exit_status(pid);
    return {status, file_text(said)};
  }
};

/// Returns what a study has measured, by id.
std::map<std::string, nlohmann::ordered_json> measured_in(const std::string& out) {
  std::map<std::string, nlohmann::ordered_json> rows;
  for (const LocatedRecord& located : read_records({out + "/records.jsonl"}).records) {
    CHECK(located.record.status == Status::ok);
    const nlohmann::ordered_json json = located.record;
    CHECK(!rows.contains(located.record.id));
    auto& row = rows[located.record.id] = {{"fidelity", json.at("fidelity")}, {"study", json.at("study")}};
    for (const char* series : {"loss", "grad_norm", "lr"}) row[series] = json.at("training").at(series);
  }
  return rows;
}

}  // namespace

TEST_CASE("study: on a small disk it keeps one trunk at a time with the same rows and cards",
          "[study][disk]") {
  const TempDirectory directory;
  const SmallDisk disk{directory, small_model(directory), directory.write("study.toml", kOneTrunkConfig)};
  const std::string whole = directory / "whole", out = directory / "short", records = out + "/records.jsonl";
  const auto by_program = [&](const std::string& folder) {
    const Answer answer =
        run_study(fmt::format("--model {} --config {} --out {}", disk.model, disk.config, folder));
    INFO(answer.text);
    REQUIRE(answer.status == kSweepDone);
    return answer.text;
  };
  by_program(whole);
  const auto expected = measured_in(whole);
  CHECK(expected.size() == 2 + 2 * 2 * 3 + 2);
  const std::int64_t states = bytes_below(whole + "/checkpoints"), capacity = states * 7 / 10;

  const Answer one = disk.run(out, capacity);
  INFO(one.text);
  REQUIRE(one.status == kSweepDone);
  CHECK(contains(one.text, "precbench: " + out + " has "));
  CHECK(contains(one.text, ": one trunk at a time ("));
  CHECK(measured_in(out) == expected);
  CHECK(bytes_below(out + "/checkpoints") == 0);
  // With room, the same command has nothing to run: states that no fork needs are not missed. It writes the cards.
  const std::string text = file_text(records);
  by_program(out);
  CHECK(file_text(records) == text);
  CHECK(file_text(out + "/cards.json") == file_text(whole + "/cards.json"));

  // Stopped within the forks of each trunk, with the states of that trunk gone as well.
  const auto end_of_line = [&](std::size_t lines) {
    std::size_t end = 0;
    while (lines-- > 0) end = text.find('\n', end) + 1;
    return end;
  };
  for (const std::size_t lines : {std::size_t{3}, expected.size() - 2}) {
    INFO(lines << " lines");
    directory.write("short/records.jsonl", text.substr(0, end_of_line(lines)));
    const Answer again = disk.run(out, capacity);
    INFO(again.text);
    CHECK(again.status == kSweepDone);
    CHECK(measured_in(out) == expected);
    CHECK(bytes_below(out + "/checkpoints") <= capacity);  // the last trunk alone fits, and stays
  }
  // Killed while it removed the states of the first trunk: half of them are left, which counts as none.
  directory.write("short/records.jsonl", text.substr(0, end_of_line(expected.size() / 2)));
  const std::string trunk =
      nlohmann::ordered_json::parse(text.substr(0, text.find('\n')))["id"].get<std::string>();
  directory.write("short/checkpoints/" + trunk + ".removed/step-000002/state.json", "{}");
  // The states of the second trunk are there and leave no room for the first: the second goes first.
  REQUIRE(bytes_below(out + "/checkpoints") > capacity - states / 2);
  const Answer killed = disk.run(out, capacity);
  INFO(killed.text);
  CHECK(killed.status == kSweepDone);
  CHECK(measured_in(out) == expected);
  CHECK(!std::filesystem::exists(out + "/checkpoints/" + trunk + ".removed"));
  // Starting over with the states of an earlier study beside them.
  const Answer fresh = disk.run(whole, states + capacity, true);
  INFO(fresh.text);
  CHECK(fresh.status == kSweepDone);
  CHECK(contains(fresh.text, ": one trunk at a time ("));
  CHECK(measured_in(whole) == expected);
}

TEST_CASE("study: a disk without room for one trunk is refused before anything runs", "[study][disk]") {
  const TempDirectory directory;
  const SmallDisk disk{directory, small_model(directory), directory.write("study.toml", kOneTrunkConfig)};
  const Answer answer = disk.run(directory / "out", 1000);
  CHECK(answer.status == 99);  // from the exception
  CHECK(contains(answer.text, "--out: " + (directory / "out") +
                                  " has 1 kB free, and the checkpoints of all trunks need "));
  CHECK(contains(answer.text, ", those of one trunk at a time "));
  CHECK(!std::filesystem::exists(directory / "out/records.jsonl"));
}

TEST_CASE("study: a trunk whose state could not be written is not ok and runs again", "[study][disk]") {
  const TempDirectory directory;
  const std::string flags = fmt::format("study --recipe rowwise --device cpu --model {} --config {} --out {}",
                                        small_model(directory, 4),
                                        directory.write("study.toml", kOneTrunkConfig), directory / "out");
  // 128 blocks of 512 or 1,024 bytes, depending on the shell: rows fit, weights do not.
  const Answer full = output_of("(ulimit -f 128; " PRECBENCH_BINARY_DIR "/precbench " + flags + ")");
  INFO(full.text);
  CHECK(full.status == kSweepFailures);
  CHECK(contains(full.text, "precbench: trunk 1 of "));
  CHECK(contains(full.text, " has no states to fork: crashed, loss "));
  CHECK(contains(full.text, ": not written: the checkpoint after step 2: "));
  for (const LocatedRecord& located : read_records({directory / "out/records.jsonl"}).records)
    CHECK(located.record.status == Status::crashed);
  const Answer again = output_of(PRECBENCH_BINARY_DIR "/precbench " + flags);
  INFO(again.text);
  CHECK(again.status == kSweepDone);
}

TEST_CASE("plan_trunk_space: counts states that are there and refuses one trunk at a time with a common age",
          "[study][disk]") {
  const TempDirectory directory;
  Case c;
  c.device = "cpu", c.steps = 4, c.checkpoint_every = 2, c.checkpoint_keep = "all",
  c.checkpoint_dir = directory / "c";
  std::vector<Plan> trunks;
  for (const std::int64_t seed : {1, 2, 3}) {
    c.seed = seed;
    trunks.push_back(validate(c));
  }
  const std::int64_t each = 2 * checkpoint_bytes(trunks[0]);
  const auto plan = [&](std::int64_t free, bool steady = false) {
    return plan_trunk_space(trunks, directory / "out", Earlier::used, steady,
                            [&](const std::string&) { return free; });
  };
  CHECK(plan(3 * each).note.empty());
  CHECK(plan(3 * each).order == TrunkOrder::all_trunks);
  CHECK(plan(3 * each - 1).order == TrunkOrder::one_trunk);
  CHECK(plan(each).fits);
  CHECK(!plan(each - 1).fits);
  CHECK(!plan(3 * each - 1, true).fits);
  CHECK(contains(plan(3 * each - 1, true).note, "give the steps ([trunk] ages = [60])"));
  CHECK(plan(3 * each, true).fits);
  CHECK(plan_trunk_space(trunks, "out", Earlier::used, true, [](const std::string&) {
          return std::nullopt;
        }).fits);
  // The states of the first trunk are there: they make room for the next ones after its forks.
  for (const int step : {2, 4}) std::filesystem::create_directories(checkpoint_at(trunks[0], step));
  CHECK(plan(2 * each).note.empty());
  CHECK(plan(0).fits);
  CHECK(plan(0).order == TrunkOrder::one_trunk);
}

TEST_CASE("study: trained tokens need weights that were trained before", "[study][init]") {
  const auto refused = [](const std::string& flags) {
    const Answer answer = run_study(flags);
    CHECK(answer.status == 2);
    return answer.text;
  };
  CHECK(refused("--trained-tokens 2T") ==
        "precbench: --trained-tokens: needs pretrained weights: add --init-from\n");
  CHECK(refused("--init-from w.safetensors --trained-tokens 2X") ==
        "precbench: --trained-tokens: \"2X\" is not a number of tokens, such as 300B, 2T or 1.5e9\n");
}

TEST_CASE("study: a CUDA dry run without a GPU prints the plan without a time", "[study][init]") {
  if (find_gpus().count > 0) return;  // with a GPU the steps would be timed
  const TempDirectory directory;
  const std::string text = directory.write("text.txt", std::string(2'000'000, 'x'));
  const Answer answer = output_of(
      fmt::format(PRECBENCH_BINARY_DIR
                  "/precbench study --dry-run --device cuda --model tiny --recipe rowwise --data {} --out {}",
                  text, directory / "out"));
  INFO(answer.text);
  CHECK(answer.status == kSweepDone);
  CHECK(contains(answer.text, "the plan has no estimate of the study's time"));
  CHECK(contains(answer.text, "study of tiny on cuda: 3 trunks, forks of 150 steps after 200, 400;"));
  CHECK(contains(answer.text, "trunks, BF16"));
  CHECK(!std::filesystem::exists(directory / "out"));
}

TEST_CASE("print_plan: is written before the cases run, to a file too", "[study]") {
  const TempDirectory directory;
  const std::string path = directory.write("plan", "");
  const pid_t pid = in_background([&] {
    dup2(open(path.c_str(), O_WRONLY), STDOUT_FILENO);
    print_plan({}, {{"all", 0, 0, {}}}, "study of tiny on cpu");
    return 0;  // without flushing
  });
  CHECK(exit_status(pid) == 0);
  CHECK(contains(file_text(path), "study of tiny on cpu\n"));
}

TEST_CASE("study: with --init-from it re-warms and chooses the age and forks there again after a restart",
          "[study][init]") {
  const TempDirectory directory;
  std::string letters;
  std::uint32_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 1664525u + 1013904223u;
    letters += static_cast<char>('a' + (state >> 24) % 26);
  }
  const std::string text = directory.write("text.txt", letters);
  const std::string model = small_model(directory);
  const std::string weights = directory / "weights.safetensors";
  const Answer made = output_of(fmt::format(
      PRECBENCH_BINARY_DIR
      "/precbench run --model {} --recipe bf16 --device cpu --seq 32 --batch 1 --steps 2 --data {} "
      "--save-final {}",
      model, text, weights));
  INFO(made.text);
  REQUIRE(made.status == 0);
  // With a tiny rate the loss is steady at once; with a usual one the loss of undertrained weights falls to
  // the end.
  for (const auto& [rate, age, steady] : {std::tuple("1e-9", 4, true), std::tuple("1e-3", 16, false)}) {
    const std::string config = directory.write(
        "study.toml",
        fmt::format(
            "[work]\nseq = 32\nbatch = 4\n[trunk]\ntrunks = 2\nlr = {}\nwarmup = 1\n[rewarm]\nfirst = 4\nmost = "
            "16\n[fork]\nsteps = 12\nwarmup = 2\n[fidelity]\nbatches = 2\n[ladder]\noutlier_ffn = []\nbits = 0\n"
            "[control]\napart = []\nbreak = []\n",
            rate));
    const std::string out = directory / rate;
    const auto run = [&] {
      return run_study(
          fmt::format("--model {} --config {} --data {} --out {} --init-from {} --trained-tokens 3M", model,
                      config, text, out, weights));
    };
    const Answer answer = run();
    INFO(answer.text);
    REQUIRE(answer.status == kSweepDone);
    CHECK(contains(answer.text, steady ? "BF16's loss is steady from step 4 on"
                                       : "BF16's loss is still moving at the last saved step"));
    CHECK(contains(answer.text, "forks of 12 steps after 4, 8 or 16 of BF16"));
    int forks = 0;
    for (const LocatedRecord& located : read_records({out + "/records.jsonl"}).records) {
      const StudyPlace& place = *located.record.study;
      CHECK(place.trained_tokens == 3'000'000);
      if (place.part == StudyPart::trunk) {
        CHECK_FALSE(place.steady);
        continue;
      }
      ++forks;
      CHECK(place.age == age);
      CHECK(place.steady == steady);
    }
    CHECK(forks == 2 * 3);  // two trunks; bf16, bf16 perturbed, rowwise
    const std::string cards = file_text(out + "/cards.json");
    CHECK(contains(cards, "\"trained_tokens\": 3000000"));
    const std::string rows = file_text(out + "/records.jsonl");
    const Answer again = run();
    INFO(again.text);
    CHECK(again.status == kSweepDone);
    CHECK(file_text(out + "/records.jsonl") == rows);
    CHECK(file_text(out + "/cards.json") == cards);
  }
}
