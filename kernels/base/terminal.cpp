// Asks a terminal for its width. See terminal.h.
#include "kernels/base/terminal.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cstdlib>

namespace precbench {

std::size_t terminal_width(int descriptor) {
  constexpr long kDefault = 100, kLeast = 40, kMost = 1000;
  winsize size{};
  long columns = 0;  // some terminals do not know their width and say 0
  if (ioctl(descriptor, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
  if (const char* text = std::getenv("COLUMNS"); columns == 0 && text)
    columns = std::strtol(text, nullptr, 10);
  return static_cast<std::size_t>(columns <= 0 ? kDefault : std::clamp(columns, kLeast, kMost));
}

}  // namespace precbench
