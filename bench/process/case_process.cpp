// Starts, watches and ends the process of one case (Linux).
#include "bench/process/case_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "bench/process/standard_error.h"
#include "kernels/base/errors.h"

namespace precbench {
namespace {

constexpr std::size_t kLastBytes = 4096;  ///< bytes of the child's output that are kept
constexpr int kPollMs = 100;  ///< longest delay until a signal, or an exit unseen by the pipes, is noticed
constexpr std::chrono::seconds kLastWords(2);  ///< between SIGTERM and SIGKILL
constexpr int kTerminated = 128 + SIGTERM;     ///< exit status of a child that received SIGTERM
constexpr int kClosedPollMs = 1;  ///< the same once both pipes are closed: the child is about to end

/// Posted in a child by SIGTERM. Global, because a signal handler can reach nothing else. Waiting for a
/// blocked signal would not work: libraries start threads before main, and those would receive it.
sem_t end_requested;

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {
    if (fd < 0) throw std::system_error(errno, std::generic_category(), "cannot start a case");
  }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { close(); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

struct Pipe {
  Fd read, write;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    read = Fd(ends[0]);
    write = Fd(ends[1]);
    fcntl(read.get(), F_SETFL, O_NONBLOCK);
  }
};

/// Appends the available bytes to `text`. Returns false once the other end is closed.
bool drain(const Fd& fd, std::string& text, std::size_t keep) {
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t got = read(fd.get(), buffer.data(), buffer.size());
    if (got > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(got));
      if (text.size() > 2 * keep) text.erase(0, text.size() - keep);
    } else if (got == 0 || (errno != EINTR)) {
      return got != 0 && errno == EAGAIN;
    }
  }
}

/// Returns the number of processes killed by the kernel for lack of memory since boot; 0 if unknown.
long long kernel_oom_kills() {
  std::ifstream vmstat("/proc/vmstat");
  std::string key;
  for (long long value = 0; vmstat >> key >> value;)
    if (key == "oom_kill") return value;
  return 0;
}

/// Returns an anonymous file that contains `text`, positioned at its start. Not a pipe, because a child that
/// never reads could then block us.
Fd memory_file(const std::string& text) {
  Fd file(memfd_create("case", MFD_CLOEXEC));
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      lseek(file.get(), 0, SEEK_SET) != 0)
    throw std::system_error(errno, std::generic_category(), "cannot hand over a case");
  return file;
}

/// Spin count of GCC OpenMP threads that wait for work, some tens of microseconds. A thread that never spins
/// pays for a wake-up at every op, which slows down small models; one that spins for long occupies the core
/// of the thread it waits for when other programs run too.
constexpr const char* kSpinCount = "GOMP_SPINCOUNT=1000";

/// Returns execve's environment for a child: ours and the spin count.
std::vector<char*> child_environment() {
  std::vector<char*> variables;
  for (char** variable = environ; *variable; ++variable) variables.push_back(*variable);
  if (!std::getenv("OMP_WAIT_POLICY") && !std::getenv("GOMP_SPINCOUNT"))
    variables.push_back(const_cast<char*>(kSpinCount));
  variables.push_back(nullptr);
  return variables;
}

nlohmann::ordered_json task_to_json(const Case& c, const NodeShare& share) {
  return {{"case", case_to_json(c)},
          {"ranks",
           {{"world", share.world},
            {"first", share.first},
            {"local", share.local},
            {"first_gpu", share.first_gpu},
            {"beside_others", share.beside_others},
            {"nodes", share.nodes}}}};
}

NodeShare share_from_json(const nlohmann::ordered_json& json) {
  return {json.at("world").get<int>(),     json.at("first").get<int>(),          json.at("local").get<int>(),
          json.at("first_gpu").get<int>(), json.at("beside_others").get<bool>(), json.at("nodes").get<int>()};
}

/// Runs in the child between fork and exec: only async-signal-safe calls.
[[noreturn]] void become(char* const* argv, char* const* variables, pid_t parent, int input, int record,
                         int output) {
  setpgid(0, 0);
  signal(SIGPIPE, SIG_DFL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before prctl
  // Duplicates the descriptors first, because any of them could have a number that dup2 replaces.
  constexpr int kFree = kRecordFd + 1;
  const int out = fcntl(output, F_DUPFD_CLOEXEC, kFree), in = fcntl(input, F_DUPFD_CLOEXEC, kFree),
            rec = fcntl(record, F_DUPFD_CLOEXEC, kFree);
  if (in < 0 || rec < 0 || out < 0) {
    constexpr char message[] = "cannot start the case: Too many open files; the limit is that of ulimit -n\n";
    [[maybe_unused]] const ssize_t written = write(output, message, sizeof message - 1);
    _exit(127);
  }
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  dup2(rec, kRecordFd);
  execve(argv[0], argv, variables);
  constexpr char message[] = "cannot execute the program\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, message, sizeof message - 1);
  _exit(127);
}

/// Sends a line to the parent, ahead of the record.
void send_notice(const std::string& line) {
  const std::string text = line + '\n';
  [[maybe_unused]] const ssize_t written = write(kRecordFd, text.data(), text.size());
}

}  // namespace

CaseProcessResult run_case_process(const std::vector<std::string>& command, const Case& c,
                                   const NodeShare& share, double timeout_s,
                                   const std::function<bool()>& stop, const Say& say) {
  using Clock = std::chrono::steady_clock;
  Fd input = memory_file(task_to_json(c, share).dump());
  Pipe record, output;
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const std::vector<char*> variables = child_environment();

  // If our own parent ignores SIGCHLD, our children would leave no status.
  signal(SIGCHLD, SIG_DFL);
  const long long oom_kills_before = kernel_oom_kills();
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "cannot start a case");
  if (pid == 0)
    become(argv.data(), variables.data(), parent, input.get(), record.write.get(), output.write.get());
  setpgid(pid, pid);  // in both processes, so that neither can be too late
  record.write.close();
  output.write.close();

  CaseProcessResult result;
  const StopsWithUs stops_with_us(pid);
  RunningTime running;
  std::array<pollfd, 2> polled = {pollfd{record.read.get(), POLLIN, 0}, pollfd{output.read.get(), POLLIN, 0}};
  std::string notice;  // the child's last one
  int status = 0;
  std::optional<Clock::time_point> end_asked;  // when it was asked to end
  const auto ended = [&] {
    const pid_t found = waitpid(pid, &status, WNOHANG);
    if (found < 0 && errno != EINTR)
      throw std::system_error(errno, std::generic_category(), "cannot wait for a case");
    return found == pid;
  };
  // A record has no line breaks; lines before it are notices.
  const auto read_record = [&] {
    const bool open = drain(record.read, result.record, std::string::npos / 2);
    for (std::size_t end = 0; (end = result.record.find('\n')) != std::string::npos;) {
      notice = result.record.substr(0, end);
      result.record.erase(0, end + 1);
      say ? say(notice) : log_line("precbench: " + notice);
    }
    return open;
  };
  while (!ended()) {
    const bool closed = polled[0].fd < 0 && polled[1].fd < 0;
    poll(polled.data(), polled.size(), closed ? kClosedPollMs : kPollMs);
    if (polled[0].fd >= 0 && !read_record()) polled[0].fd = -1;
    if (polled[1].fd >= 0 && !drain(output.read, result.last_lines, kLastBytes)) polled[1].fd = -1;
    const auto now = Clock::now();
    if (end_asked) {
      if (now > *end_asked + kLastWords) kill(-pid, SIGKILL);
      continue;
    }
    const double seconds = running.seconds();  // must be called in every round
    const bool late = timeout_s > 0 && seconds > timeout_s;
    if (!interrupted() && !late && !(stop && stop())) continue;
    // A child that ended by itself before anybody looked, such as while this process was stopped, was in
    // time.
    if (late && !interrupted() && ended()) break;
    result.end = interrupted() ? CaseProcessResult::End::interrupted
                 : late        ? CaseProcessResult::End::timed_out
                               : CaseProcessResult::End::stopped;
    kill(-pid, SIGTERM);
    end_asked = now;
  }
  kill(-pid, SIGKILL);  // and any processes that it left behind
  result.stopped_s = stops_with_us.seconds();
  read_record();
  drain(output.read, result.last_lines, kLastBytes);
  while (result.last_lines.ends_with('\n')) result.last_lines.pop_back();
  result.out_of_memory = kernel_oom_kills() > oom_kills_before;
  if (result.end != CaseProcessResult::End::exited) {
    if (result.last_lines.empty()) result.last_lines = notice;
    return result;
  }
  if (WIFSIGNALED(status)) result.end = CaseProcessResult::End::signalled;
  result.code = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

int child_main(Record (*run)(const Case&, const NodeShare&, StepBoard&),
               std::chrono::milliseconds slow_after) {
  static StepBoard board;  // the thread below may outlive this function
  set_notice_sink(send_notice);
  sem_init(&end_requested, 0, 0);
  signal(SIGTERM, [](int) { sem_post(&end_requested); });
  std::thread([] {
    while (sem_wait(&end_requested) != 0) continue;
    if (const auto words = board.describe()) log_text(*words + "\n");
    _exit(kTerminated);
  }).detach();
  try {
    const std::string input(std::istreambuf_iterator<char>(std::cin), {});
    const nlohmann::ordered_json task = nlohmann::ordered_json::parse(input);
    Record record;
    {
      const SlowNotice notice(
          [slow_after]() -> std::optional<std::string> {
            const std::optional<std::string> words = board.missing_first_step();
            if (!words) return std::nullopt;
            return fmt::format("no step after {:g} s: {}", std::chrono::duration<double>(slow_after).count(),
                               *words);
          },
          slow_after);
      record = run(case_from_json(task.at("case")), share_from_json(task.at("ranks")), board);
    }
    record.durations = board.durations();
    const nlohmann::ordered_json json = record;
    // Names of hosts and processors need not be UTF-8.
    const std::string line = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    for (std::size_t done = 0; done < line.size();) {
      const ssize_t wrote = write(kRecordFd, line.data() + done, line.size() - done);
      if (wrote < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "the record");
      if (wrote > 0) done += static_cast<std::size_t>(wrote);
    }
    return 0;
  } catch (const InvalidInput& error) {
    log_text(error.what() + std::string("\n"));
    return kBadInputExit;
  } catch (const std::exception& error) {
    log_text(error.what() + std::string("\n"));
    return 1;
  }
}

}  // namespace precbench
