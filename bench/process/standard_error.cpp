// Writes to standard error without exceptions and without blocking. See standard_error.h.
#include "bench/process/standard_error.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>

#include "results/record/printable.h"

namespace precbench {
namespace {

constexpr int kPatienceMs = 1000;

/// True if the last call waited kPatienceMs in vain.
std::atomic<bool> reader_is_stuck = false;

bool writable() {
  using namespace std::chrono;
  const auto end = steady_clock::now() + milliseconds(reader_is_stuck ? 0 : kPatienceMs);
  pollfd error_stream = {STDERR_FILENO, POLLOUT, 0};
  int ready = -1;
  do {  // retries after a signal, which is handled elsewhere: without POLLOUT a write may block forever
    const auto left = duration_cast<milliseconds>(end - steady_clock::now());
    ready = poll(&error_stream, 1, std::max(0, static_cast<int>(left.count())));
  } while (ready < 0 && errno == EINTR);
  reader_is_stuck = ready == 0;
  return ready > 0;
}

}  // namespace

void log_text(std::string_view text) {
  while (!text.empty() && writable()) {
    // A writable pipe accepts this many bytes at once.
    const ssize_t written = write(STDERR_FILENO, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (written > 0)
      text.remove_prefix(static_cast<std::size_t>(written));
    else if (errno != EINTR)
      return;
  }
}

void log_line(std::string_view line) { log_text(printable(line) + '\n'); }

void keep_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // open() takes the lowest free number, which is this one.
    [[maybe_unused]] const int null = open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void survive_broken_pipes() { signal(SIGPIPE, SIG_IGN); }

void survive_file_limits() { signal(SIGXFSZ, SIG_IGN); }

}  // namespace precbench
