// Several real processes that run a sweep together: a coordinator and its workers, each with a child, on this
// host without GPUs. The children are this test binary: the hidden test below runs one part of a case and
// misbehaves according to the case's seed. If a process is killed or stopped, no other may be left running.
#include "bench/process/coordinator.h"

#include <signal.h>

#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "bench/machine/environment.h"
#include "bench/process/case_process_testing.h"
#include "bench/process/rendezvous_testing.h"
#include "bench/process/worker.h"
#include "bench/step/rank_threads_testing.h"
#include "bench/sweep/finished_rows.h"
#include "bench/sweep/sweep.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
using namespace std::chrono_literals;

namespace {

constexpr const char* kFakePart = "one part of a case that misbehaves on request";

enum Fault : std::int64_t {
  kFine = 1000,  // and all larger seeds
  kWorkerAborts = 1,
  kCoordinatorAborts,
  kWorkerRefuses,
  kWorkerNeedsMore,
  kWorkerNeedsMoreLater,
  kCoordinatorNeedsMoreLater,
  kAllDiverge,
  kHang,
  kWorkerIsLate,
  kRankSleeps,
  kWorkerTakesLonger,
  kWorkerTakesSeconds,  // twice the time limit; milliseconds in `warmup`
};

[[noreturn]] void hang() {
  for (;;) pause();  // pause() returns after each handled signal
}

/// Runs ranks that meet in every step; the last rank hangs before the third.
void run_ranks(const NodeShare& share, StepBoard& board) {
  run_meetings(share, 3, board, [&](int rank, int step) {
    if (rank == share.world - 1 && step == 2) hang();
  });
}

/// Plays one part of a case. Parts without a fault of their own wait, as ranks in a collective may.
Record fake_part(const Case& c, const NodeShare& share, StepBoard& board) {
  const bool coordinator = share.first == 0;
  std::ofstream(c.save_init, std::ios::app)
      << fmt::format("{} {} {} {} {}\n", c.seed, share.first, share.local, share.first_gpu, getpid())
      << std::flush;
  Record record = start_record(validate(c));
  if (c.seed == (coordinator ? kCoordinatorAborts : kWorkerAborts)) {
    signal(SIGABRT, SIG_DFL);  // not the test framework's handler
    fmt::print(stderr, "the reason\n");
    abort();
  } else if (c.seed == kWorkerNeedsMore && !coordinator) {
    record.status = Status::oom;
    record.error = "12 GiB more";
  } else if (c.seed == kWorkerNeedsMoreLater || c.seed == kCoordinatorNeedsMoreLater) {
    if (coordinator == (c.seed == kWorkerNeedsMoreLater)) throw std::runtime_error("the peer is gone");
    std::this_thread::sleep_for(300ms);
    record.status = Status::oom;
    record.error = "12 GiB more";
  } else if (c.seed == kWorkerRefuses && !coordinator) {
    throw InvalidInput("--data: corpus.bin: not on this host");
  } else if (c.seed == kAllDiverge) {
    if (coordinator) std::this_thread::sleep_for(300ms);
    record.status = Status::diverged;
    record.error = coordinator ? "at step 2" : "seen from afar";
  } else if (c.seed == kWorkerTakesLonger) {
    if (!coordinator) std::this_thread::sleep_for(300ms);
  } else if (c.seed == kWorkerTakesSeconds) {
    if (!coordinator) std::this_thread::sleep_for(std::chrono::milliseconds(c.warmup));
  } else if (c.seed == kRankSleeps) {
    run_ranks(share, board);
    hang();
  } else if (c.seed < kFine && !(c.seed == kWorkerIsLate && coordinator)) {
    hang();
  }
  return record;
}

struct Part {
  NodeShare share;
  pid_t pid = 0;
};

constexpr const char* kSecret = "of these processes";
/// Waits only a short time for a part that hangs after another has failed. `stop`: for a process that cannot
/// be told to stop.
Timeouts impatient(std::chrono::seconds stop = kHangGuard) {
  return {.meet = kHangGuard, .stop = stop, .row = 4s, .handshake = kHangGuard};
}
/// For cases in which no part hangs: each may end as late as it likes.
constexpr Timeouts kPatient = {
    .meet = kHangGuard, .stop = kHangGuard, .row = kHangGuard, .handshake = kHangGuard};

/// The processes of one sweep; killed at the end unless the test has waited for them.
class Together {
 public:
  Together(int count, const std::vector<std::int64_t>& seeds, int gpus, double timeout_s,
           const Timeouts& timeouts = impatient())
      : address_(free_address()), timeouts_(timeouts) {
    for (const std::int64_t seed : seeds) {
      Case c;
      c.device = "cpu";
      c.gpus = gpus;
      c.seed = seed;
      c.save_init = directory_ / "parts";
      if (seed == kWorkerTakesSeconds) c.warmup = static_cast<std::int64_t>(2000 * timeout_s);
      grid_.push_back(c);
    }
    options_.timeout_s = timeout_s;
    for (int process = 0; process < count; ++process)
      pids_.push_back(in_background([&] { return run({process, count, process, "the test"}); }));
  }
  ~Together() {
    for (const pid_t pid : pids_)
      if (pid > 0) {
        kill(pid, SIGKILL);
        ::exit_status(pid);
      }
  }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;

  /// Returns the parts that were started, by seed and first rank.
  std::map<std::pair<std::int64_t, int>, Part> parts() const {
    std::map<std::pair<std::int64_t, int>, Part> parts;
    std::istringstream lines(file_text(directory_ / "parts"));
    std::int64_t seed = 0;
    for (Part part;
         lines >> seed >> part.share.first >> part.share.local >> part.share.first_gpu >> part.pid;)
      parts[{seed, part.share.first}] = part;
    return parts;
  }
  bool running(std::int64_t seed, std::size_t count) const {
    std::size_t found = 0;
    for (const auto& [key, part] : parts()) found += key.first == seed;
    return found == count;
  }
  /// Returns true if `count` parts of the case have started and that of process 0 has ended.
  bool own_part_ended(std::int64_t seed, std::size_t count) const {
    return running(seed, count) && !alive(parts().at({seed, 0}).pid);
  }
  bool any_part_alive() const {
    for (const auto& [key, part] : parts())
      if (alive(part.pid)) return true;
    return false;
  }
  std::map<std::int64_t, Record> rows() const { return rows_by_seed(options_); }
  /// Returns the rows that the next start counts.
  Rows counted_rows() const {
    return read_finished_rows(options_.out + "/records.jsonl", validate(grid_), false);
  }
  std::string error_of(std::int64_t seed) const { return rows().at(seed).error.value_or("none"); }
  const Address& address() const { return address_; }
  pid_t pid(int process) const { return pids_.at(static_cast<std::size_t>(process)); }
  int exit_status(int process) {
    return ::exit_status(std::exchange(pids_.at(static_cast<std::size_t>(process)), -1));
  }
  /// Returns the lines on the process's standard error, without those that say for whom it waits.
  std::string said(int process) const {
    std::istringstream lines(file_text(directory_ / fmt::format("stderr{}", process)));
    std::string text;
    for (std::string line; std::getline(lines, line);)
      if (line.find(" is waiting for ") == std::string::npos) text += line + "\n";
    return text;
  }

 private:
  int run(const Nodes& nodes) {
    errors_to(directory_ / fmt::format("stderr{}", nodes.index));
    if (nodes.index > 0) return run_worker(nodes, address_, kSecret, grid_, options_.child, timeouts_);
    Coordinator coordinator(nodes, address_, kSecret, timeouts_, grid_);
    options_.coordinator = &coordinator;
    const int status = run_sweep(grid_, options_);
    coordinator.finish(status == kSweepInterrupted ? kSweepInterrupted : kSweepDone);
    return status;
  }

  TempDirectory directory_;
  Address address_;
  Timeouts timeouts_;
  std::vector<Case> grid_;
  SweepOptions options_ = sweep_into(directory_, kFakePart);
  std::vector<pid_t> pids_;
};

std::string process_1(const std::string& ranks) {
  return fmt::format("process 1 ({}, {})", host_name(), ranks);
}

}  // namespace

TEST_CASE("one part of a case that misbehaves on request", "[.]") { be_child(kFakePart, fake_part); }

TEST_CASE("Coordinator: three processes run every case with their own ranks", "[together]") {
  Together sweep(3, {kFine, kFine + 1}, 6, 0);
  CHECK(sweep.exit_status(0) == kSweepDone);
  CHECK(sweep.exit_status(1) == 0);
  CHECK(sweep.exit_status(2) == 0);
  CHECK(sweep.said(1) == "");
  CHECK(sweep.rows().size() == 2);
  const auto parts = sweep.parts();
  CHECK(parts.size() == 6);
  for (const int first : {0, 2, 4})
    for (const std::int64_t seed : {kFine + 0, kFine + 1}) CHECK(parts.at({seed, first}).share.local == 2);
}

TEST_CASE("Coordinator: a crashing part ends its case and is named and the sweep continues", "[together]") {
  Together sweep(2, {kWorkerAborts, kCoordinatorAborts, kFine}, 2, 0);
  CHECK(sweep.exit_status(0) == kSweepFailures);
  CHECK(sweep.exit_status(1) == 0);
  CHECK(!sweep.any_part_alive());
  CHECK(sweep.rows()[kWorkerAborts].status == Status::crashed);
  CHECK(sweep.error_of(kWorkerAborts) ==
        process_1("rank 1") + ": killed by signal 6 (Aborted); its last words: the reason");
  CHECK(sweep.error_of(kCoordinatorAborts) ==
        "process 0 (" + host_name() + ", rank 0): killed by signal 6 (Aborted); its last words: the reason");
  CHECK(sweep.rows()[kFine].status == Status::ok);
}

TEST_CASE("Coordinator: a part's status becomes the case's row and process 0's own takes precedence",
          "[together]") {
  const auto end = [](Together& sweep) {
    CHECK(sweep.exit_status(0) == kSweepDone);
    CHECK(sweep.exit_status(1) == 0);
    CHECK(!sweep.any_part_alive());
    CHECK(sweep.rows()[kFine].status == Status::ok);
  };
  Together one_hangs(2, {kWorkerNeedsMore, kFine}, 4, 0);
  end(one_hangs);
  CHECK(one_hangs.rows()[kWorkerNeedsMore].status == Status::oom);
  CHECK(one_hangs.error_of(kWorkerNeedsMore) == process_1("ranks 2-3") + ": 12 GiB more");
  Together all_end(2, {kAllDiverge, kFine}, 4, 0, kPatient);
  end(all_end);
  CHECK(all_end.rows()[kAllDiverge].status == Status::diverged);
  CHECK(all_end.error_of(kAllDiverge) == "at step 2");
}

TEST_CASE("Coordinator: the row of another process's failure has the environment", "[together]") {
  Together sweep(2, {kWorkerNeedsMore}, 2, 0);
  CHECK(sweep.exit_status(0) == kSweepFailures);  // no case is ok
  const Environment env = sweep.rows()[kWorkerNeedsMore].env;
  CHECK(env.host == host_name());
  CHECK(env.build.has_value());
  CHECK((env.cpu == describe_environment(1, -1, 1).cpu));
}

TEST_CASE("Coordinator: a failure caused by another does not hide it", "[together]") {
  Together sweep(2, {kWorkerNeedsMoreLater, kCoordinatorNeedsMoreLater}, 2, 0, kPatient);
  CHECK(sweep.exit_status(0) == kSweepFailures);  // no case is ok
  CHECK(sweep.exit_status(1) == 0);
  for (const std::int64_t seed : {kWorkerNeedsMoreLater + 0, kCoordinatorNeedsMoreLater + 0})
    CHECK(sweep.rows()[seed].status == Status::oom);
  CHECK(sweep.error_of(kWorkerNeedsMoreLater) == process_1("rank 1") + ": 12 GiB more");
  CHECK(sweep.error_of(kCoordinatorNeedsMoreLater) == "12 GiB more");
}

TEST_CASE("Coordinator: bad input of one process ends the sweep of all", "[together]") {
  Together sweep(2, {kWorkerRefuses, kFine}, 2, 0);
  CHECK(sweep.exit_status(0) == 99);  // from the exception
  CHECK(sweep.exit_status(1) == kCoordinatorGone);
  CHECK(!sweep.any_part_alive());
  CHECK(sweep.said(0) == process_1("rank 1") + ": --data: corpus.bin: not on this host\n");
}

TEST_CASE("Coordinator: a killed worker ends the case and the sweep", "[together]") {
  Together sweep(3, {kFine + 1, kHang, kFine}, 3, 0);
  REQUIRE(eventually([&] { return sweep.running(kHang, 3); }));
  kill(sweep.pid(1), SIGKILL);
  CHECK(sweep.exit_status(0) == kSweepInterrupted);
  CHECK(sweep.exit_status(1) == -SIGKILL);
  CHECK(sweep.exit_status(2) == kSweepInterrupted);
  CHECK(eventually([&] { return !sweep.any_part_alive(); }));
  // The case that ran has a row, which says what happened and does not count; later ones have none.
  auto rows = sweep.rows();
  CHECK(rows.size() == 2);
  CHECK(rows[kFine + 1].status == Status::ok);
  CHECK(rows[kHang].status == Status::crashed);
  CHECK(rows[kHang].error == process_1("rank 1") + ": the connection to it is lost");
  const std::string said = sweep.said(0);
  CHECK(said.starts_with("no connection to process 1 (" + host_name() + "): 1 of 3 cases are in "));
  CHECK(said.ends_with("; start the processes again, and the same command resumes from there\n"));
  const Rows counted = sweep.counted_rows();
  CHECK(counted.size() == 1);
  CHECK(counted.contains(rows[kFine + 1].id));
}

TEST_CASE("Coordinator: a process that is lost in the last case leaves it to the same command",
          "[together]") {
  Together sweep(2, {kFine, kHang}, 2, 0);
  REQUIRE(eventually([&] { return sweep.running(kHang, 2); }));
  kill(sweep.pid(1), SIGKILL);
  CHECK(sweep.exit_status(0) == kSweepInterrupted);
  CHECK(sweep.said(0).starts_with("no connection to process 1 (" + host_name() + "): 1 of 2 cases are in "));
  CHECK(sweep.counted_rows().size() == 1);
}

TEST_CASE("run_worker: workers end when their coordinator is killed", "[together]") {
  Together sweep(3, {kHang, kFine}, 3, 0);
  REQUIRE(eventually([&] { return sweep.running(kHang, 3); }));
  kill(sweep.pid(0), SIGKILL);
  CHECK(sweep.exit_status(0) == -SIGKILL);
  CHECK(sweep.exit_status(1) == kCoordinatorGone);
  CHECK(sweep.exit_status(2) == kCoordinatorGone);
  CHECK(eventually([&] { return !sweep.any_part_alive(); }));
  CHECK(sweep.said(2) == "precbench: process 2 of 3 ends: process 0 ended before the sweep did\n");
}

TEST_CASE("Coordinator: a stopped worker makes the case time out and is named", "[together]") {
  with_time_limit(4, [](double limit) {
    const Stopwatch watch;
    Together sweep(2, {kHang, kFine}, 2, limit, impatient(1s));
    const auto late = [&] { return watch.seconds() > limit / 2; };
    REQUIRE(eventually([&] { return sweep.running(kHang, 2) || late(); }));
    kill(sweep.pid(1), SIGSTOP);
    if (late()) return false;
    CHECK(sweep.exit_status(0) == kSweepInterrupted);
    CHECK(sweep.rows()[kHang].status == Status::timeout);
    CHECK(sweep.error_of(kHang).starts_with(
        process_1("rank 1") + fmt::format(" did not report: still running after {} s (--timeout)", limit)));
    CHECK(sweep.error_of(kHang).ends_with("; process 1 (" + host_name() + "): the connection to it is lost"));
    CHECK(sweep.rows().size() == 1);
    CHECK(sweep.counted_rows().empty());
    kill(sweep.pid(1), SIGCONT);
    CHECK(sweep.exit_status(1) == kCoordinatorGone);
    CHECK(eventually([&] { return !sweep.any_part_alive(); }));
    return true;
  });
}

TEST_CASE("Coordinator: a case is timed by process 0's clock without its stops", "[together]") {
  with_time_limit(4, [](double limit) {
    const Stopwatch watch;
    Together sweep(2, {kWorkerTakesSeconds}, 2, limit);
    const auto late = [&] { return watch.seconds() > limit / 2; };
    // A part of process 0 that is still running would be stopped, too.
    REQUIRE(eventually([&] { return sweep.own_part_ended(kWorkerTakesSeconds, 2) || late(); }));
    kill(sweep.pid(0), SIGTSTP);
    if (late()) return false;
    CHECK(eventually([&] { return !sweep.any_part_alive(); }));
    kill(sweep.pid(0), SIGCONT);
    CHECK(sweep.exit_status(0) == kSweepDone);
    CHECK(sweep.exit_status(1) == 0);
    CHECK(sweep.rows()[kWorkerTakesSeconds].status == Status::ok);
    return true;
  });
}

TEST_CASE("Coordinator: a part that outlasts the coordinator's is named at the timeout", "[together]") {
  with_time_limit(4, [](double limit) {
    const Stopwatch watch;
    Together sweep(2, {kWorkerIsLate, kFine}, 2, limit);
    const auto late = [&] { return watch.seconds() > limit / 2; };
    REQUIRE(eventually([&] { return sweep.own_part_ended(kWorkerIsLate, 2) || late(); }));
    if (late()) return false;
    const int status = sweep.exit_status(0);
    if (sweep.rows()[kFine].status == Status::timeout) return false;
    CHECK(status == kSweepFailures);
    CHECK(sweep.exit_status(1) == 0);
    CHECK(!sweep.any_part_alive());
    CHECK(sweep.rows()[kWorkerIsLate].status == Status::timeout);
    CHECK(sweep.error_of(kWorkerIsLate) ==
          process_1("rank 1") + fmt::format(" did not report: still running after {} s (--timeout)", limit));
    CHECK(sweep.rows()[kFine].status == Status::ok);
    return true;
  });
}

TEST_CASE("Coordinator: the row of a hang names the rank that holds up the others", "[together]") {
  with_time_limit(4, [](double limit) {
    Together sweep(2, {kRankSleeps}, 4, limit);
    CHECK(sweep.exit_status(0) == kSweepFailures);
    CHECK(sweep.exit_status(1) == 0);
    CHECK(!sweep.any_part_alive());
    const std::string expected = fmt::format(
        "still running after {} s (--timeout); its last words: process 0 ({}, ranks 0-1): none of "
        "the ranks 0-1 has begun step 4; {}: rank 3 has not enqueued step 3; the others have",
        limit, host_name(), process_1("ranks 2-3"));
    // Ranks that have not come this far in half a minute are hanging, not slow.
    if (sweep.error_of(kRankSleeps) != expected && limit < 30) return false;
    CHECK(sweep.error_of(kRankSleeps) == expected);
    return true;
  });
}

TEST_CASE("Coordinator: a time limit of centuries works", "[together]") {
  Together sweep(2, {kWorkerTakesLonger}, 2, 9999999999);
  CHECK(sweep.exit_status(0) == kSweepDone);
  CHECK(sweep.exit_status(1) == 0);
  CHECK(sweep.rows()[kWorkerTakesLonger].status == Status::ok);
}

TEST_CASE("Coordinator: an interrupt of any process ends the whole sweep without a row", "[together]") {
  for (const int interrupted_one : {0, 1}) {
    Together sweep(2, {kHang, kFine}, 2, 0);
    REQUIRE(eventually([&] { return sweep.running(kHang, 2); }));
    kill(sweep.pid(interrupted_one), SIGTERM);
    CHECK(sweep.exit_status(0) == kSweepInterrupted);
    CHECK(sweep.exit_status(1) == kSweepInterrupted);
    CHECK(!sweep.any_part_alive());
    CHECK(sweep.said(0).starts_with("interrupted: 0 of 2 cases are in "));
  }
}

TEST_CASE("run_worker: an interrupt while waiting for process 0 is an interrupt", "[together]") {
  const pid_t pid = in_background([] {
    std::thread([] {
      eventually([] { return handles(getpid(), SIGTERM); });
      kill(getpid(), SIGTERM);
    }).detach();
    return run_worker({1, 2, 0, "the test"}, Address{"127.0.0.1", 1}, "", {}, child_command(kFakePart));
  });
  CHECK(exit_status(pid) == kSweepInterrupted);
}

TEST_CASE("Coordinator: processes do not wait forever for each other", "[together]") {
  constexpr Timeouts kNone = {.meet = 200ms, .stop = 1s, .row = 1s, .farewell = 10ms};
  const Nodes first = {0, 2, 0, "the test"}, second = {1, 2, 0, "the test"};
  const Address address = {"127.0.0.1", 1};  // a port that no user's program can listen on
  CHECK_THROWS_WITH(run_worker(second, address, "", {}, child_command(kFakePart), kNone),
                    "process 1 of 2 found no process 0 at 127.0.0.1:1 within 0.2 s");
  CHECK_THROWS_WITH(Coordinator(first, Address{"127.0.0.1", 0}, "", kNone),
                    "process 1 of 2 has not connected to 127.0.0.1:0 within 0.2 s");
}

namespace {

/// Processes that meet or refuse each other: process 0 with one number of processes and grid, and a worker with
/// others.
struct Meeting {
  Nodes first = {0, 2, 0, "the test"};
  std::vector<std::pair<Nodes, std::string>> workers;  // with their secrets
  Case of_first = {}, of_workers = {};
  std::chrono::milliseconds farewell = 10ms;

  /// Runs all to their end; process 0 ends once all have met, without running a case. Returns for each, process 0
  /// first, its exit status and the lines on its standard error.
  std::vector<std::pair<int, std::string>> run() const {
    const TempDirectory directory;
    const Address address = free_address();
    std::vector<pid_t> pids = {in_background([&] {
      errors_to(directory / "0");
      Timeouts timeouts = kPatient;
      timeouts.farewell = farewell;
      Coordinator coordinator(first, address, kSecret, timeouts, {of_first});
      coordinator.finish(kSweepDone);
      return 0;
    })};
    for (const auto& [nodes, secret] : workers)
      pids.push_back(in_background([&, nodes = nodes, secret = secret] {
        errors_to(directory / std::to_string(pids.size()));
        return run_worker(nodes, address, secret, {of_workers}, {"/bin/true"}, kPatient);
      }));
    std::vector<std::pair<int, std::string>> ends;
    for (std::size_t i = 0; i < pids.size(); ++i) {
      const int status = exit_status(pids[i]);
      ends.emplace_back(status, file_text(directory / std::to_string(i)));
    }
    return ends;
  }
};

constexpr int kThrown = 99;  ///< exit status of in_background after an exception

Case on_cpu() {
  Case c;
  c.device = "cpu", c.gpus = 2;
  return c;
}

}  // namespace

// None of these waits for a time limit: kPatient's are as long as a test may take.
TEST_CASE("Coordinator: processes of another number of processes end at once on both sides", "[together]") {
  Meeting meeting;
  meeting.workers = {{{1, 3, 0, "the test"}, kSecret}};
  const auto ends = meeting.run();
  const std::string why = "says that it is process 1 of 3, while process 0 says that there are 2";
  CHECK(ends[0].first == kThrown);
  CHECK(ends[0].second.ends_with("\na process at 127.0.0.1 " + why + "\n"));
  CHECK(ends[1].first == kThrown);
  CHECK(contains(ends[1].second, "process 1 of 3 cannot join process 0 at 127.0.0.1:"));
  CHECK(ends[1].second.ends_with(": it refused this process, which " + why + "\n"));
}

TEST_CASE("Coordinator: processes of another sweep end at once and both sides name the argument",
          "[together]") {
  Meeting meeting;
  meeting.first.count = 3;
  meeting.workers = {{{1, 3, 0, "the test"}, kSecret}, {{2, 3, 0, "the test"}, kSecret}};
  meeting.of_first = meeting.of_workers = on_cpu();
  meeting.of_workers.lr = 1;
  meeting.farewell = kHangGuard;  // ends as soon as both know
  for (const auto& [status, said] : meeting.run()) {
    INFO(said);
    CHECK(status == kThrown);
    CHECK(contains(said, ") has another sweep: --lr is 1 in process "));
    CHECK(said.ends_with(" and 0.0003 in process 0; start all processes with the same arguments\n"));
  }
}

TEST_CASE("Coordinator: of a number that two processes have one is refused at once", "[together]") {
  // Process 2 never comes: nobody can start.
  Meeting meeting;
  meeting.first.count = 3;
  meeting.workers = {{{1, 3, 0, "the test"}, kSecret}, {{1, 3, 0, "the test"}, kSecret}};
  for (const auto& [status, said] : meeting.run()) {
    INFO(said);
    CHECK(status == kThrown);
    CHECK(contains(said, "is the second that says it is process 1\n"));
  }
}

TEST_CASE("Coordinator: a process with a wrong secret ends at once and the others go on", "[together]") {
  const TempDirectory directory;
  const Address address = free_address();
  const pid_t first = in_background([&] {
    errors_to(directory / "0");
    Coordinator coordinator({0, 2, 0, "the test"}, address, kSecret, kPatient, {on_cpu()});
    coordinator.finish(kSweepDone);
    return 0;
  });
  const auto worker = [&](const std::string& name, const std::string& secret) {
    return in_background([&, name, secret] {
      errors_to(directory / name);
      return run_worker({1, 2, 0, "the test"}, address, secret, {on_cpu()}, {"/bin/true"}, kPatient);
    });
  };
  CHECK(exit_status(worker("wrong", "of other processes")) == kThrown);
  CHECK(file_text(directory / "wrong")
            .ends_with(": it refused this process, which does not know the secret (PRECBENCH_SECRET)\n"));
  CHECK(exit_status(worker("right", kSecret)) == 0);
  CHECK(exit_status(first) == 0);
  CHECK(contains(file_text(directory / "0"),
                 "precbench: refused: a process at 127.0.0.1 does not know the secret (PRECBENCH_SECRET)\n"));
}

TEST_CASE("Coordinator: processes say at once for whom and where they wait", "[together]") {
  const TempDirectory directory;
  const Address address = free_address();
  const pid_t worker = in_background([&] {
    errors_to(directory / "1");
    return run_worker({1, 6, 0, "the test"}, address, kSecret, {on_cpu()}, {"/bin/true"}, kPatient);
  });
  const std::string of_worker =
      fmt::format("precbench: process 1 of 6 is waiting for process 0 at {}\n", to_string(address));
  CHECK(eventually([&] { return file_text(directory / "1") == of_worker; }));
  const pid_t first = in_background([&] {
    errors_to(directory / "0");
    Coordinator({0, 6, 0, "the test"}, address, kSecret, kPatient, {on_cpu()});
    return 0;
  });
  const std::string of_first =
      fmt::format("precbench: process 0 of 6 is waiting for processes 1 to 5 at {}\n", to_string(address));
  CHECK(eventually([&] { return file_text(directory / "0") == of_first; }));
  for (const pid_t pid : {first, worker}) {
    kill(pid, SIGKILL);
    exit_status(pid);
  }
}

TEST_CASE("Coordinator: a process that comes after all have met is refused at once", "[together]") {
  Together sweep(2, {kHang}, 2, 0);
  REQUIRE(eventually([&] { return sweep.running(kHang, 2); }));
  const TempDirectory directory;
  const pid_t late = in_background([&] {
    errors_to(directory / "late");
    return run_worker({1, 2, 0, "the test"}, sweep.address(), kSecret, {on_cpu()}, {"/bin/true"}, kPatient);
  });
  CHECK(exit_status(late) == kThrown);
  CHECK(file_text(directory / "late").ends_with("which is the second that says it is process 1\n"));
  kill(sweep.pid(0), SIGTERM);
  CHECK(sweep.exit_status(0) == kSweepInterrupted);
}

TEST_CASE("Coordinator: an address of another host is refused in one line", "[together]") {
  const Nodes nodes = {0, 2, 0, "the test"};
  CHECK_THROWS_WITH(
      Coordinator(nodes, Address{"192.0.2.1", 29501}, ""),
      "NCCL_COMM_ID: process 0 cannot listen at 192.0.2.1:29501: Cannot assign requested address");
}
