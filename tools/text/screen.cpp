// Starts a pager. See screen.h.
#include "tools/text/screen.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tools/text/write_file.h"

namespace precbench {
namespace {

std::string pager_command() {
  const char* pager = std::getenv("PAGER");
  return pager ? pager : "less -RFX";
}

/// Ignores a signal as long as it lives.
class Ignored {
 public:
  explicit Ignored(int number) : number_(number), before_(signal(number, SIG_IGN)) {}
  ~Ignored() { signal(number_, before_); }
  Ignored(const Ignored&) = delete;
  Ignored& operator=(const Ignored&) = delete;

 private:
  int number_;
  void (*before_)(int);
};

/// Returns false if the pager could not be started.
bool shown_by(const std::string& command, const std::string& text) {
  fflush(stdout);
  FILE* pager = popen(command.c_str(), "w");
  if (!pager) return false;
  // After popen, whose child inherits them: the user may leave the pager early, or press Ctrl-C in it.
  const Ignored pipe(SIGPIPE), interrupt(SIGINT);
  fwrite(text.data(), 1, text.size(), pager);
  const int status = pclose(pager);
  constexpr int kNotFound = 127, kNotExecutable = 126;  // from the shell
  return !WIFEXITED(status) || (WEXITSTATUS(status) != kNotFound && WEXITSTATUS(status) != kNotExecutable);
}

}  // namespace

void page_text(const std::string& text) {
  const std::string command = pager_command();
  if (isatty(STDOUT_FILENO) && !command.empty() && command != "cat" && shown_by(command, text)) return;
  write_standard_output(text);
}

}  // namespace precbench
