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

/// Returns the screen of standard output. `color`: "auto", "always" or "never"; auto means colors on a
/// terminal, unless the environment variable NO_COLOR is set or TERM is dumb.
Screen standard_screen(const std::string& color);

/// Writes to standard output, through a pager if it is a terminal: the environment variable PAGER, else
/// `less -RFX`. An empty PAGER, or `cat`, or a pager that cannot be started, means none.
void page_text(const std::string& text);

}  // namespace precbench
