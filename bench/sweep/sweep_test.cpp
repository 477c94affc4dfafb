// The runner with cases that really crash, hang, lie and are killed. The child of these sweeps is this test
// binary: the hidden test below runs one case and misbehaves according to the case's seed.
#include "bench/sweep/sweep.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <semaphore>

#include "bench/machine/environment.h"
#include "bench/process/case_process_testing.h"
#include "bench/step/lost_files.h"
#include "bench/sweep/finished_rows.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_file.h"

using namespace precbench;
using namespace std::chrono_literals;

namespace {

constexpr const char* kFakeCase = "one case of a sweep that misbehaves on request";
constexpr const char* kDelayedCase = "one case of a sweep that reports a delay at once";

enum Fault : std::int64_t {
  kFine = 1000,  // and all larger seeds
  kAbort = 1,
  kHang,
  kExit7,
  kBadInput,
  kKilled,
  kKilledOnce,
  kNan,
  kNoRecord,
  kOrphan,
  kChatter,
  kOtherId,
  kWaits,
  kLosesFile,
  kSurprising,
  kUnreadable,
  kWaitsForGpu,
};

Record fake_run(const Case& c, const NodeShare&, StepBoard&) {
  if (!c.save_init.empty()) std::ofstream(c.save_init, std::ios::app) << getpid() << "\n";
  Record record = start_record(validate(c));
  record.training.emplace();
  record.training->loss = {std::sqrt(static_cast<double>(c.seed))};
  record.training->grad_norm = {1};
  switch (c.seed) {
    case kAbort:
      signal(SIGABRT, SIG_DFL);  // not the test framework's handler
      fmt::print(stderr, "the reason\nin two lines\n");
      abort();
    case kHang:
      pause();
      break;
    case kExit7:
      fmt::print(stderr, "no luck\n");
      _exit(7);
    case kBadInput:
      throw InvalidInput("--data: corpus.bin: bad magic");
    case kKilled:
      raise(SIGKILL);
      break;
    case kKilledOnce:
      if (std::ofstream mark(c.save_final, std::ios::app); mark.tellp() == 0) {
        mark << "killed" << std::flush;
        raise(SIGKILL);
      }
      break;
    case kNan:
      record.training->loss = {5, NAN};
      record.training->grad_norm = {1, NAN};
      break;
    case kNoRecord:
      _exit(0);
    case kOrphan:
      if (fork() == 0) {
        pause();
        _exit(0);
      }
      break;
    case kChatter:
      for (int i = 0; i < 100000; ++i) fmt::print(stderr, "line {}\n", i);
      fmt::print("on standard output\n");
      fflush(stdout);
      _exit(9);
    case kOtherId:
      record.id = "0123456789abcdef";
      break;
    case kWaits:
      for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"})
        record.warnings.push_back(getenv(name) ? getenv(name) : "unset");
      break;
    case kLosesFile:
      record.warnings.push_back(
          lost_file_warning("--save-final: w: cannot be written (No space left on device)"));
      break;
    case kSurprising:
      record.quantization = {{"qkv.x rows", "e4m3", 100.5, 0.0, 30.0}};
      record.metrics.emplace().mfu_measured = 1.019;
      record.metrics->tokens_per_s = 1e6;
      break;
    case kUnreadable:
      record.method_version = -1;
      break;
    case kWaitsForGpu: {
      std::binary_semaphore said(0);
      const SlowNotice notice(
          [&] {
            said.release();
            return std::optional<std::string>("waiting for the GPU");
          },
          1ms);
      said.acquire();
      break;
    }
    default:
      if (!c.save_final.empty()) wait_at_gate(c.save_final);
  }
  return record;
}

SweepOptions options_for(const TempDirectory& directory) { return sweep_into(directory, kFakeCase); }

/// Returns what a process that runs `body`, and must end with `status`, writes to standard error.
std::string errors_of(int status, const std::function<int()>& body) {
  const TempDirectory directory;
  const pid_t pid = in_background([&] {
    errors_to(directory / "errors");
    return body();
  });
  CHECK(exit_status(pid) == status);
  return file_text(directory / "errors");
}

std::vector<Case> cases_of(const std::vector<std::int64_t>& seeds) {
  std::vector<Case> cases;
  for (const std::int64_t seed : seeds) {
    cases.emplace_back();
    cases.back().device = "cpu";
    cases.back().seed = seed;
  }
  return cases;
}

std::vector<Case> fine_cases(int count) {
  std::vector<std::int64_t> seeds;
  for (int i = 0; i < count; ++i) seeds.push_back(kFine + i);
  return cases_of(seeds);
}

}  // namespace

TEST_CASE("one case of a sweep that misbehaves on request", "[.]") { be_child(kFakeCase, fake_run); }

TEST_CASE("run_sweep: each kind of failure is a row and the sweep continues", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  const auto grid = cases_of({kAbort, kExit7, kKilled, kNan, kNoRecord, kOrphan, kChatter, kOtherId, kFine});
  CHECK(run_sweep(grid, options) == kSweepFailures);
  auto rows = rows_by_seed(options);
  REQUIRE(rows.size() == grid.size());
  CHECK(rows[kAbort].status == Status::crashed);
  CHECK(rows[kAbort].error.value_or("none") ==
        "killed by signal 6 (Aborted); its last words: the reason in two lines");
  CHECK(rows[kExit7].error.value_or("none") == "ended with exit status 7; its last words: no luck");
  CHECK(rows[kKilled].status == Status::crashed);
  CHECK(rows[kKilled].error.value_or("none") == "killed by signal 9 (Killed), twice; out of host memory?");
  CHECK(rows[kNan].status == Status::diverged);
  CHECK(rows[kNoRecord].status == Status::crashed);
  CHECK(rows[kOrphan].status == Status::ok);
  CHECK(rows[kChatter].error->find("line 99999") != std::string::npos);
  CHECK(rows[kChatter].error->ends_with(" on standard output"));
  CHECK(rows[kChatter].error->size() < 500);
  CHECK(rows[kOtherId].status == Status::crashed);
  CHECK(rows[kFine].status == Status::ok);
  // The environment is known however the case ended.
  const auto machine = [](const Record& r) { return r.env.host.value_or("") + machine_of(r.env); };
  CHECK(!rows[kAbort].env.host.value_or("").empty());
  CHECK(machine(rows[kNoRecord]) == machine(rows[kAbort]));
  CHECK(rows[kAbort].env.threads.value_or(0) > 0);
}

TEST_CASE("run_sweep: a case with a lost file keeps its row and the status is not 0", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  const std::string errors = directory / "errors";
  const pid_t pid = in_background([&] {
    errors_to(errors);
    return run_sweep(cases_of({kLosesFile, kFine}), options);
  });
  CHECK(exit_status(pid) == kSweepFailures);
  CHECK(rows_by_seed(options)[kLosesFile].status == Status::ok);
  const std::string told = file_text(errors);
  CHECK(told.find("precbench: not written: --save-final: w: cannot be written (No space left on device)\n") !=
        std::string::npos);
  CHECK(told.find("precbench: 1 file could not be written; the rows say which (warnings)\n") !=
        std::string::npos);
  CHECK(run_sweep(cases_of({kFine, kFine + 1}), options) == kSweepDone);
}

TEST_CASE("run_sweep: values that a reader would refuse are removed and the row is kept", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  CHECK(run_sweep(cases_of({kSurprising, kUnreadable}), options) == kSweepFailures);
  const RecordSet set = read_records({options.out + "/records.jsonl"});
  CHECK(set.problems == std::vector<std::string>{});
  auto rows = rows_by_seed(options);
  REQUIRE(rows.size() == 2);
  const Record& surprising = rows[kSurprising];
  CHECK(surprising.status == Status::ok);
  CHECK(surprising.metrics->mfu_measured == 1.019);
  CHECK(!surprising.quantization.at(0).underflow_percent);
  CHECK(std::count(surprising.warnings.begin(), surprising.warnings.end(),
                   "not recorded: /quantization/0/underflow_percent: 100.5 is above 100") == 1);
  CHECK(rows[kUnreadable].status == Status::crashed);
  CHECK(rows[kUnreadable].error.value_or("") ==
        "this record cannot be read back: /method_version: -1 is below 1");
}

TEST_CASE("run_sweep: OpenMP threads of a case spin briefly unless the user sets otherwise", "[sweep]") {
  using Words = std::vector<std::string>;
  const auto child_sees = [](const char* policy, const char* spins) {
    const TempDirectory directory;
    const SweepOptions options = options_for(directory);
    const pid_t pid = in_background([&] {
      policy ? setenv("OMP_WAIT_POLICY", policy, 1) : unsetenv("OMP_WAIT_POLICY");
      spins ? setenv("GOMP_SPINCOUNT", spins, 1) : unsetenv("GOMP_SPINCOUNT");
      return run_sweep(cases_of({kWaits}), options);
    });
    CHECK(exit_status(pid) == kSweepDone);
    return rows_by_seed(options)[kWaits].warnings;
  };
  CHECK(child_sees(nullptr, nullptr) == Words{"unset", "1000"});
  CHECK(child_sees("passive", nullptr) == Words{"passive", "unset"});
  CHECK(child_sees(nullptr, "7") == Words{"unset", "7"});
}

TEST_CASE("run_sweep: works if the parent process ignores SIGCHLD", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  const pid_t pid = in_background([&] {
    signal(SIGCHLD, SIG_IGN);
    alarm(static_cast<unsigned>(kHangGuard.count()));  // in case the sweep waits for a lost child
    return run_sweep(cases_of({kFine, kExit7}), options);
  });
  CHECK(exit_status(pid) == kSweepFailures);
  CHECK(rows_by_seed(options)[kFine].status == Status::ok);
  CHECK(rows_by_seed(options)[kExit7].error.value_or("none").starts_with("ended with exit status 7"));
}

TEST_CASE("run_sweep: a case that hangs is a timeout row", "[sweep]") {
  const TempDirectory directory;
  SweepOptions options = options_for(directory);
  options.timeout_s = 0.5;
  CHECK(run_sweep(cases_of({kHang}), options) == kSweepFailures);
  CHECK(rows_by_seed(options)[kHang].status == Status::timeout);
  CHECK(rows_by_seed(options)[kHang].error.value_or("none") == "still running after 0.5 s (--timeout)");
}

TEST_CASE("run_sweep: a case tells what it waits for while it runs", "[sweep]") {
  const TempDirectory directory;
  SweepOptions options = options_for(directory);
  options.quiet = false;
  const std::string errors = errors_of(kSweepDone, [&] {
    return run_sweep(cases_of({kFine, kWaitsForGpu}), options);
  });
  const std::string words = fmt::format("seed={}: waiting for the GPU\n", +kWaitsForGpu);
  CHECK(contains(errors, words));
  CHECK(errors.find(words) < errors.find("[2/2]"));
  CHECK(rows_by_seed(options)[kWaitsForGpu].status == Status::ok);
}

TEST_CASE(kDelayedCase, "[.]") { be_child(kDelayedCase, fake_run, 1ms); }

TEST_CASE("run_case_process: a case that hangs before its first step says so, also at its end", "[sweep]") {
  std::vector<std::string> said;
  const CaseProcessResult result = run_case_process(
      child_command(kDelayedCase), cases_of({kHang}).front(), all_ranks(1), 0, [&] { return !said.empty(); },
      [&](const std::string& words) { said.push_back(words); });
  CHECK(said == std::vector<std::string>{"no step after 0.001 s: its ranks have not started"});
  CHECK(result.end == CaseProcessResult::End::stopped);
  CHECK(result.last_lines == said.front());
  CHECK(result.record.empty());
}

TEST_CASE("run_sweep: a second start does nothing and --retry-failed repeats failed rows", "[sweep]") {
  const TempDirectory directory;
  SweepOptions options = options_for(directory);
  const auto grid = cases_of({kExit7, kFine, kFine + 1});
  CHECK(run_sweep(grid, options) == kSweepFailures);
  const std::string before = file_text(options.out + "/records.jsonl");
  CHECK(run_sweep(grid, options) == kSweepFailures);
  CHECK(file_text(options.out + "/records.jsonl") == before);

  options.retry_failed = true;
  CHECK(run_sweep(grid, options) == kSweepFailures);
  CHECK(rows_by_seed(options).size() == 3);
  CHECK(file_text(options.out + "/records.jsonl.1") == before);
}

TEST_CASE("run_sweep: --fresh moves the old records aside", "[sweep]") {
  const TempDirectory directory;
  SweepOptions options = options_for(directory);
  run_sweep(fine_cases(2), options);
  const std::string before = file_text(options.out + "/records.jsonl");
  options.fresh = true;
  run_sweep(fine_cases(1), options);
  run_sweep(fine_cases(3), options);
  CHECK(file_text(options.out + "/records.jsonl.1") == before);
  CHECK(read_records({options.out + "/records.jsonl.2"}).records.size() == 1);
  CHECK(rows_by_seed(options).size() == 3);
}

TEST_CASE("run_sweep: a row of another machine is kept and its case runs here too", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  const auto grid = fine_cases(2);
  StepBoard board;
  Record machine = fake_run(grid[0], {}, board), host = fake_run(grid[1], {}, board);
  machine.env.cpu = "another processor";
  host.env = describe_environment(1, -1, 1);
  host.env.host = "node-9";
  std::filesystem::create_directories(options.out);
  for (const Record& record : {machine, host}) append_record(options.out + "/records.jsonl", record);
  const auto start_says = [&] { return errors_of(kSweepDone, [&] { return run_sweep(grid, options); }); };
  const std::string of_host =
      "1 case finished on node-9, another host of the same kind; --fresh runs it here\n";
  CHECK(start_says() ==
        "1 case finished on another machine, another processor; run again here; both rows are kept\n" +
            of_host);
  CHECK(read_records({options.out}).records.size() == 3);
  CHECK(start_says() == of_host);
  CHECK(read_records({options.out}).records.size() == 3);
}

TEST_CASE("run_sweep: rows of another build count, and a line says how to measure anew", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  const auto grid = fine_cases(2);
  StepBoard board;
  std::filesystem::create_directories(options.out);
  for (std::size_t i = 0; i < grid.size(); ++i) {
    Record row = fake_run(grid[i], {}, board);
    row.env = describe_environment(1, -1, 1);
    if (i == 0) row.env.git = std::string(40, '0');
    if (i == 1) row.env.git.reset();  // an unknown commit may be this one
    append_record(options.out + "/records.jsonl", row);
  }
  const std::string text = errors_of(kSweepDone, [&] { return run_sweep(grid, options); });
  CHECK(contains(text, "1 case finished by a build of commit 000000000000"));
  CHECK(contains(text, "; --fresh measures anew\n"));
  CHECK_FALSE(contains(text, "an unknown commit, and"));
}

TEST_CASE("run_sweep: a finished row of schema 1 is kept and its case runs again", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  const auto grid = fine_cases(2);
  StepBoard board;
  Record old = fake_run(grid[0], {}, board);
  old.schema = 1;
  old.id = "of another algorithm";
  old.definition.reset();
  std::filesystem::create_directories(options.out);
  append_record(options.out + "/records.jsonl", old);
  CHECK(
      errors_of(kSweepDone, [&] { return run_sweep(grid, options); }) ==
      "1 case finished by an earlier version of this program, whose records (schema 1) do not say what models, "
      "recipes and data were; run again, and the old rows stay\n");
  std::ifstream file(options.out + "/records.jsonl");
  std::string line;
  int lines = 0;
  while (std::getline(file, line)) ++lines;
  CHECK(lines == 3);
  CHECK(read_records({options.out}).records.size() == 2);  // the newer row counts
}

TEST_CASE("run_sweep: a finished case whose saved weights are missing runs again", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  auto grid = fine_cases(2);
  grid[0].save_init = directory / "weights";
  CHECK(run_sweep(grid, options) == kSweepDone);
  const std::string before = file_text(options.out + "/records.jsonl"),
                    weights = file_text(grid[0].save_init);
  CHECK(run_sweep(grid, options) == kSweepDone);
  CHECK(file_text(grid[0].save_init) == weights);
  std::filesystem::remove(grid[0].save_init);
  CHECK(run_sweep(grid, options) == kSweepDone);
  CHECK(!file_text(grid[0].save_init).empty());
  CHECK(rows_by_seed(options).size() == 2);
  CHECK(file_text(options.out + "/records.jsonl.1") == before);
}

TEST_CASE("run_sweep: a row that says that a process or a checkpoint was lost does not count", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  const auto grid = fine_cases(3);
  StepBoard board;
  std::vector<Record> rows;
  for (const Case& c : grid) rows.push_back(fake_run(c, {}, board));
  for (Record& row : rows) row.status = Status::crashed, row.env = describe_environment(1, -1, 1);
  rows[0].error = "process 1 (node-2, rank 1): the connection to it is lost";
  rows[1].error = lost_file_warning("the checkpoint after step 2: no room");
  rows[1].warnings = {*rows[1].error};
  rows[2].error = "killed by signal 6 (Aborted)";
  std::filesystem::create_directories(options.out);
  for (const Record& record : rows) append_record(options.out + "/records.jsonl", record);
  CHECK(
      errors_of(kSweepFailures, [&] { return run_sweep(grid, options); }) ==  // for the third, which counts
      "1 case could not write all files, and is run again\n1 case lost a process of the sweep, and is run again\n");
  auto now = rows_by_seed(options);
  CHECK(now.size() == 3);
  CHECK(now[kFine].status == Status::ok);
  CHECK(now[kFine + 1].status == Status::ok);
  CHECK(now[kFine + 2].error == rows[2].error);
}

namespace {

GpuRecord gpu_of(std::int64_t memory) {
  return {"NVIDIA H200", "9.0", memory, "580", "GPU-1", true, 700.0, std::nullopt};
}

void predict_peak(Record& record, std::int64_t peak) {
  record.memory = Memory{};
  record.memory->predicted = MemorySegments{};
  record.memory->predicted->peak = peak;
}

}  // namespace

TEST_CASE("lacked_memory_beside_others: only what would fit an empty GPU", "[sweep]") {
  Record record;
  record.status = Status::oom;
  record.env.gpu = gpu_of(150'000'000'000);
  CHECK_FALSE(lacked_memory_beside_others(record));  // without a prediction nobody knows
  predict_peak(record, 135'000'000'000);
  CHECK(lacked_memory_beside_others(record));
  predict_peak(record, 135'000'000'001);
  CHECK_FALSE(lacked_memory_beside_others(record));
  predict_peak(record, 1);
  record.status = Status::ok;
  CHECK_FALSE(lacked_memory_beside_others(record));
}

TEST_CASE(
    "read_finished_rows: a case that lacked memory beside others runs again, one that needs it all does not",
    "[sweep]") {
  const TempDirectory directory;
  const std::string path = directory / "records.jsonl";
  const std::vector<Plan> grid = validate(fine_cases(3));
  Environment here;
  here.gpu = gpu_of(100'000'000'000);
  const std::vector<std::optional<std::int64_t>> peaks = {50'000'000'000, 95'000'000'000, std::nullopt};
  for (std::size_t i = 0; i < grid.size(); ++i) {
    Record row = failed_record(grid[i], Status::oom, "out of memory");
    row.env = here;
    if (peaks[i]) predict_peak(row, *peaks[i]);
    append_record(path, row);
  }
  const auto read = [&] {
    const Rows rows = read_finished_rows(path, grid, false, [&](const std::string&) { return here; });
    return rows.size() == 2 && !rows.contains(grid[0].id) ? 0 : 1;
  };
  CHECK(
      errors_of(0, read) ==
      "1 case ran out of GPU memory although the predicted peak fits (other processes may have held the rest), and "
      "is run again\n");
  const RecordSet left = read_records({path});
  REQUIRE(left.records.size() == 2);
  CHECK(left.records[0].record.id == grid[1].id);
  CHECK(left.records[1].record.id == grid[2].id);
}

TEST_CASE("run_sweep: a case that is killed from outside once runs again", "[sweep]") {
  const TempDirectory directory;
  auto grid = cases_of({kKilledOnce});
  grid[0].save_final = directory / "mark";
  const SweepOptions options = options_for(directory);
  CHECK(run_sweep(grid, options) == kSweepDone);
  const Record row = rows_by_seed(options)[kKilledOnce];
  CHECK(row.status == Status::ok);
  CHECK(row.warnings ==
        std::vector<std::string>{
            "killed: the first process of this case was killed by signal 9 (SIGKILL); this row is of a "
            "second one"});
}

TEST_CASE("run_sweep: bad input found by a case ends the sweep and keeps finished rows", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  CHECK_THROWS_WITH(run_sweep(cases_of({kFine, kBadInput, kFine + 1}), options),
                    "--data: corpus.bin: bad magic");
  CHECK(rows_by_seed(options).size() == 1);
}

TEST_CASE("run_sweep: a sweep killed at any moment and restarted ends with the same rows", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  auto grid = fine_cases(40);
  // A fast machine must not finish at once: it passes each gate only after a kill.
  std::vector<std::string> gates;
  for (std::size_t i = 5; i < grid.size(); i += 7) {
    gates.push_back(directory / fmt::format("gate {}", i));
    grid[i].save_final = gates.back();
  }
  const std::size_t kills = kill_until_done([&] { return run_sweep(grid, options); }, gates);
  CHECK(kills >= gates.size());
  const auto rows = rows_by_seed(options);
  CHECK(rows.size() == grid.size());
  for (const Case& c : grid) {
    REQUIRE(rows.count(c.seed));
    CHECK(rows.at(c.seed).training->loss.front() == std::sqrt(static_cast<double>(c.seed)));
  }
}

TEST_CASE("run_sweep: a half-written last line is kept aside and its case runs again", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  run_sweep(fine_cases(3), options);
  const std::string path = options.out + "/records.jsonl", whole = file_text(path);
  std::ofstream(path, std::ios::trunc) << whole.substr(0, whole.size() - 100);
  CHECK(run_sweep(fine_cases(3), options) == kSweepDone);
  CHECK(rows_by_seed(options).size() == 3);
  CHECK(file_text(path + ".broken").size() > 100);
}

TEST_CASE("run_sweep: no child outlives a killed sweep", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  auto grid = cases_of({kHang});
  grid[0].save_init = directory / "pid";
  const pid_t sweep = in_background([&] { return run_sweep(grid, options); });
  REQUIRE(eventually([&] { return file_text(grid[0].save_init).ends_with("\n"); }));
  const pid_t child = std::stoi(file_text(grid[0].save_init));
  CHECK(alive(child));
  kill(sweep, SIGKILL);
  exit_status(sweep);
  CHECK(eventually([&] { return !alive(child); }));
}

TEST_CASE("run_sweep: Ctrl-C stops the child and keeps finished rows and exits with 130", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  auto grid = cases_of({kFine, kHang, kFine + 1});
  grid[1].save_init = directory / "pid";
  const pid_t sweep = in_background([&] {
    errors_to(directory / "stderr");
    return run_sweep(grid, options);
  });
  REQUIRE(eventually([&] { return file_text(grid[1].save_init).ends_with("\n"); }));
  kill(sweep, SIGINT);
  CHECK(exit_status(sweep) == kSweepInterrupted);
  CHECK(!alive(std::stoi(file_text(grid[1].save_init))));
  CHECK(rows_by_seed(options).size() == 1);
  CHECK(file_text(directory / "stderr") == "interrupted: 1 of 3 cases are in " + options.out +
                                               "/records.jsonl; the same command resumes from there\n");
}

TEST_CASE("run_sweep: two sweeps cannot write to one folder", "[sweep]") {
  const TempDirectory directory;
  const SweepOptions options = options_for(directory);
  auto grid = cases_of({kHang});
  grid[0].save_init = directory / "pid";
  const pid_t first = in_background([&] { return run_sweep(grid, options); });
  REQUIRE(eventually([&] { return file_text(grid[0].save_init).ends_with("\n"); }));
  CHECK_THROWS_WITH(run_sweep(fine_cases(1), options), "--out: another sweep is writing to " + options.out +
                                                           "; wait for it or choose another folder");
  kill(first, SIGTERM);
  CHECK(exit_status(first) == kSweepInterrupted);
  CHECK(run_sweep(fine_cases(1), options) == kSweepDone);
}

TEST_CASE("run_sweep: a folder that cannot be created is refused", "[sweep]") {
  const TempDirectory directory;
  SweepOptions options = options_for(directory);
  options.out = directory.write("file", "") + "/out";
  CHECK_THROWS_WITH(run_sweep(fine_cases(1), options),
                    "--out: cannot make " + options.out + ": Not a directory");
}
