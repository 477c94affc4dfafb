// Rendering for a terminal: tables and text that fit its width, and colors for verdicts.
#pragma once

#include <cstddef>
#include <string>

namespace precbench {

struct Screen {
  std::size_t width = 110;
  /// No line is longer than `width`: tables lose columns. Otherwise only text is wrapped.
  bool fitted = false;
  bool color = false;
};

/// Returns the screen of standard output: the width of the terminal, else of COLUMNS (terminal_width in
/// kernels/base/terminal.h). `color`: "auto", "always" or "never"; auto means colors on a terminal, unless the
/// environment variable NO_COLOR is set or TERM is dumb.
Screen standard_screen(const std::string& color);

/// Returns the screen behind a file descriptor, with its width and without colors.
Screen plain_screen(int descriptor);

}  // namespace precbench
