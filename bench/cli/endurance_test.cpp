// Sweeps under an unread error stream, Ctrl-Z, a full disk and deleted rows. The case process of these sweeps
// is this test binary with the hidden test below.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "bench/machine/environment.h"
#include "bench/process/case_process_testing.h"
#include "bench/process/signals.h"
#include "bench/process/standard_error.h"
#include "bench/sweep/sweep.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/temp_directory.h"
#include "results/record/record_file.h"

using namespace precbench;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

constexpr const char* kSlowCase = "one case of a sweep that takes its time";

/// Writes its process id to the file save_init, waits for the gate save_final, and takes `warmup`
/// milliseconds.
Record slow_run(const Case& c, const NodeShare&, StepBoard&) {
  if (!c.save_init.empty()) std::ofstream(c.save_init) << getpid() << "\n" << std::flush;
  if (!c.save_final.empty()) wait_at_gate(c.save_final);
  std::this_thread::sleep_for(std::chrono::milliseconds(c.warmup));
  return start_record(validate(c));
}

std::vector<Case> slow_cases(int count, int milliseconds) {
  std::vector<Case> cases(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    cases[static_cast<std::size_t>(i)].device = "cpu";
    cases[static_cast<std::size_t>(i)].seed = i;
    cases[static_cast<std::size_t>(i)].warmup = milliseconds;
  }
  return cases;
}

/// Waits for a case process to write its id to a file, and returns the id.
pid_t process_in(const std::string& file) {
  REQUIRE(eventually([&] { return file_text(file).ends_with("\n"); }));
  return std::stoi(file_text(file));
}

/// A sweep of one case in the background, and the case's process, which runs until the gate, if any, is
/// opened.
struct Running {
  Running(const TempDirectory& directory, const SweepOptions& options, const std::string& gate = "") {
    auto grid = slow_cases(1, 0);
    grid[0].save_init = directory / "pid";
    grid[0].save_final = gate;
    sweep = in_background([&] { return run_sweep(grid, options); });
    child = process_in(grid[0].save_init);
  }
  /// Kills the case and the sweep.
  void give_up() const {
    kill(child, SIGKILL);
    kill(sweep, SIGKILL);
    exit_status(sweep);
  }
  pid_t sweep, child;
};

bool stopped(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string id, name, state;
  return stat >> id >> name >> state && state == "T";
}

/// A background sweep whose progress goes to a full pipe without a reader. An alarm kills it if it hangs.
struct Unread {
  explicit Unread(const std::vector<Case>& grid) {
    options.quiet = false;
    REQUIRE(pipe(ends) == 0);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    const std::string page(4096, 'x');
    while (write(ends[1], page.data(), page.size()) > 0) continue;
    fcntl(ends[1], F_SETFL, 0);
    sweep = in_background([&] {
      dup2(ends[1], STDERR_FILENO);
      alarm(static_cast<unsigned>(kHangGuard.count()));
      return run_sweep(grid, options);
    });
  }
  ~Unread() {
    close(ends[0]);
    close(ends[1]);
  }
  const TempDirectory directory;
  SweepOptions options = sweep_into(directory, kSlowCase);
  int ends[2];
  pid_t sweep;
};

std::size_t number_of_lines(const std::string& path) {
  const std::string text = file_text(path);
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("one case of a sweep that takes its time", "[.]") { be_child(kSlowCase, slow_run); }

TEST_CASE("sweep: unwritable progress output does not stop it", "[endurance]") {
  const auto status_with = [](const std::function<void()>& spoil_errors) {
    const TempDirectory directory;
    SweepOptions options = sweep_into(directory, kSlowCase);
    options.quiet = false;
    const pid_t pid = in_background([&] {
      survive_broken_pipes();
      spoil_errors();
      return run_sweep(slow_cases(3, 0), options);
    });
    const int status = exit_status(pid);
    CHECK(rows_by_seed(options).size() == 3);
    return status;
  };
  CHECK(status_with([] { dup2(open("/dev/full", O_WRONLY), STDERR_FILENO); }) == kSweepDone);
  CHECK(status_with([] {
          close(STDERR_FILENO);
          keep_standard_streams();
        }) == kSweepDone);
  CHECK(status_with([] {
          int ends[2];
          CHECK(pipe(ends) == 0);
          dup2(ends[1], STDERR_FILENO);
          close(ends[0]);
        }) == kSweepDone);
}

TEST_CASE("sweep: a full progress pipe without a reader does not block it", "[endurance]") {
  const Unread unread(slow_cases(3, 0));
  CHECK(exit_status(unread.sweep) == kSweepDone);
  CHECK(rows_by_seed(unread.options).size() == 3);
}

TEST_CASE("sweep: SIGINT while progress output blocks interrupts it", "[endurance]") {
  const TempDirectory directory;
  auto grid = slow_cases(3, 0);
  grid[1].save_final = directory / "never opened";  // in case the sweep gets here before the signal
  const Unread unread(grid);
  CHECK(eventually([&] { return number_of_lines(unread.options.out + "/records.jsonl") == 1; }));
  std::this_thread::sleep_for(200ms);  // within the second that the sweep waits for the reader
  kill(unread.sweep, SIGINT);
  CHECK(exit_status(unread.sweep) == kSweepInterrupted);
  CHECK(rows_by_seed(unread.options).size() == 1);
}

TEST_CASE("closed standard streams: their descriptors are not reused for files", "[cli][endurance]") {
  const TempDirectory directory;
  const std::string out = directory / "out", program = PRECBENCH_BINARY_DIR "/precbench ",
                    one = "sweep --device cpu --batch 1 --seq 32 --steps 1 --out " + out;
  CHECK(output_of("(" + program + one + " <&- >/dev/null 2>&-)").status == 0);
  CHECK(file_text(out + "/.lock").empty());
  CHECK(number_of_lines(out + "/records.jsonl") == 1);
  // A closed standard output is reported. The program fails only if its result goes there; a sweep's is in
  // its records.
  CHECK(refusal_in(output_of("(" + program + one + " --dry-run >&-)")) ==
        "precbench: cannot write standard output: Bad file descriptor");
  const Answer full = output_of("(" + program + one + " --seed 7 >/dev/full)");
  CHECK(full.status == 0);
  CHECK(full.text.ends_with("precbench: cannot write standard output: No space left on device\n"));
  CHECK(number_of_lines(out + "/records.jsonl") == 2);
  CHECK(output_of("(" + program + "run --device cpu --batch 1 --seq 32 --steps 1 >/dev/full)").status == 2);
}

TEST_CASE("sweep stopped by SIGSTOP: a case that ended in time is not a timeout", "[endurance]") {
  with_time_limit(4, [](double limit) {
    const TempDirectory directory;
    SweepOptions options = sweep_into(directory, kSlowCase);
    options.timeout_s = limit;
    const std::string gate = directory / "gate";
    const Stopwatch watch;
    const Running running(directory, options, gate);
    kill(running.sweep, SIGSTOP);
    CHECK(eventually([&] { return stopped(running.sweep); }));
    if (watch.seconds() > limit / 2) return running.give_up(), false;
    open_gate(gate);
    CHECK(eventually([&] { return !alive(running.child); }));
    std::this_thread::sleep_for(std::chrono::duration<double>(limit + 0.1));
    kill(running.sweep, SIGCONT);
    CHECK(exit_status(running.sweep) == kSweepDone);
    CHECK(rows_by_seed(options)[0].status == Status::ok);
    CHECK(rows_by_seed(options)[0].warnings.empty());
    return true;
  });
}

TEST_CASE("sweep stopped by Ctrl-Z: the case stops too and the time does not count", "[endurance]") {
  with_time_limit(4, [](double limit) {
    const TempDirectory directory;
    SweepOptions options = sweep_into(directory, kSlowCase);
    options.timeout_s = limit;
    const std::string gate = directory / "gate";
    const Stopwatch before;
    const Running running(directory, options, gate);
    kill(running.sweep, SIGTSTP);
    CHECK(eventually([&] { return stopped(running.sweep) && stopped(running.child); }));
    if (before.seconds() > limit / 2) return running.give_up(), false;
    std::this_thread::sleep_for(std::chrono::duration<double>(limit + 0.1));
    CHECK((stopped(running.sweep) && stopped(running.child)));
    const Stopwatch after;
    open_gate(gate);
    kill(running.sweep, SIGCONT);
    const int status = exit_status(running.sweep);
    if (after.seconds() > limit / 2) return false;
    CHECK(status == kSweepDone);
    const Record row = rows_by_seed(options)[0];
    CHECK(row.status == Status::ok);
    REQUIRE(row.warnings.size() == 1);
    CHECK(row.warnings[0].starts_with("the case was stopped and continued (Ctrl-Z): it was suspended for "));
    return true;
  });
}

TEST_CASE("stopped sweep: SIGKILL also ends its case", "[endurance]") {
  const TempDirectory directory;
  const SweepOptions options = sweep_into(directory, kSlowCase);
  const Running running(directory, options, directory / "never opened");
  kill(running.sweep, SIGTSTP);
  CHECK(eventually([&] { return stopped(running.sweep); }));
  kill(running.sweep, SIGKILL);
  CHECK(exit_status(running.sweep) == -SIGKILL);
  CHECK(eventually([&] { return !alive(running.child); }));
}

TEST_CASE("sweep on a full disk: one line and status 130 and finished rows are kept", "[endurance]") {
  // The first or a later row does not fit. LLVM's OpenMP needs a file of 1,024 bytes at start.
  const rlim_t bytes = GENERATE(1024, 6000);
  const TempDirectory directory;
  const SweepOptions options = sweep_into(directory, kSlowCase);
  const auto grid = slow_cases(8, 0);
  const pid_t pid = in_background([&] {
    errors_to(directory / "stderr");
    // A file size limit simulates a full disk: the write that crosses it is cut short in the same way.
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {bytes, bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
    return run_sweep(grid, options);
  });
  CHECK(exit_status(pid) == kSweepInterrupted);
  const std::size_t before = rows_by_seed(options).size();
  CHECK(((before > 0) == (bytes > 1024) && before < grid.size()));
  const std::string said = file_text(directory / "stderr"), records = options.out + "/records.jsonl";
  INFO(said);
  CHECK(said.starts_with("cannot write " + records + ": "));
  CHECK(said.ends_with(
      fmt::format(": {} of 8 cases are in {}; the same command resumes from there\n", before, records)));
  CHECK(run_sweep(grid, options) == kSweepDone);
  CHECK(rows_by_seed(options).size() == grid.size());
}

TEST_CASE("sweep: rows deleted by another program end it with status 130", "[endurance]") {
  const std::function<void(const std::string&)> takes[] = {
      [](const std::string& file) { fs::remove(file); },
      [](const std::string& file) { fs::rename(file, file + ".away"); },
      [](const std::string& file) { fs::resize_file(file, 0); },
  };
  for (int i = 0; i < 6; ++i) {
    const auto& take = takes[i / 2];
    const bool resumed = i % 2;  // the deleted row is from an earlier start
    const TempDirectory directory;
    const SweepOptions options = sweep_into(directory, kSlowCase);
    const std::string records = options.out + "/records.jsonl";
    auto grid = slow_cases(3, 0);
    if (resumed) CHECK(run_sweep({grid[0]}, options) == kSweepDone);
    grid[1].save_init = directory / "pid";
    grid[1].save_final = directory / "never opened";
    const pid_t sweep = in_background([&] {
      errors_to(directory / "stderr");
      return run_sweep(grid, options);
    });
    const pid_t child = process_in(grid[1].save_init);
    take(records);
    kill(child, SIGTERM);  // gets a row like any other
    CHECK(exit_status(sweep) == kSweepInterrupted);
    CHECK(file_text(directory / "stderr") ==
          fmt::format("another program changed {0} during the sweep: 2 of 3 cases are in {0}; the same "
                      "command resumes from there\n",
                      records));
    CHECK(rows_by_seed(options).size() == 2);
  }
}

TEST_CASE("sweep: records.jsonl that is not a regular file is refused", "[endurance]") {
  const TempDirectory directory;
  const SweepOptions options = sweep_into(directory, kSlowCase);
  const std::string records = options.out + "/records.jsonl";
  fs::create_directories(options.out);
  const auto refused = [&](const std::string& why) {
    CHECK_THROWS_WITH(run_sweep(slow_cases(1, 0), options), "--out: " + records + ": " + why);
    fs::remove(records);
  };
  fs::create_directory(records);
  refused("a folder, not a file");
  REQUIRE(mkfifo(records.c_str(), 0644) == 0);
  refused("not a regular file");
  fs::create_symlink("/dev/full", records);
  refused("not a regular file");
  REQUIRE(mkfifo((records + ".first-runs").c_str(), 0644) == 0);
  CHECK_THROWS_WITH(run_sweep(slow_cases(1, 0), options),
                    "--out: " + records + ".first-runs: not a regular file");
}
