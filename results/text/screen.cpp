// Finds out about the terminal. See screen.h.
#include "results/text/screen.h"

#include <unistd.h>

#include <cstdlib>

#include "kernels/base/terminal.h"

namespace precbench {
namespace {

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value;
}

}  // namespace

Screen standard_screen(const std::string& color) {
  const char* term = std::getenv("TERM");
  const bool able = isatty(STDOUT_FILENO) && !is_set("NO_COLOR") && !(term && std::string(term) == "dumb");
  return {terminal_width(STDOUT_FILENO), true, color == "always" || (color == "auto" && able)};
}

Screen plain_screen(int descriptor) { return {terminal_width(descriptor), true, false}; }

}  // namespace precbench
