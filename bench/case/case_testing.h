// Helpers for tests: cases from texts, as on the command line.
#pragma once

#include <sstream>
#include <string>

#include "bench/case/case.h"

namespace precbench::testing {

/// Returns a case of which one field is set by its text.
inline Case case_with(const std::string& field, const std::string& text) {
  Case c;
  set_text(c, *find_field(field), text);
  return c;
}

/// Returns the fields that flags such as "--gpus 2 --seq 64" set. Their values have no blanks.
inline Axes axes_of(const std::string& flags) {
  Axes axes;
  std::istringstream words(flags);
  for (std::string flag, value; words >> flag >> value;) axes[find_field(flag.substr(2))->name] = {value};
  return axes;
}

/// Returns the case with the fields that the flags set.
inline Case with_flags(Case c, const std::string& flags) {
  for (const auto& [name, words] : axes_of(flags)) set_text(c, *find_field(name), words.front());
  return c;
}

/// Returns the case of these flags, on the CPU unless they name another device.
inline Case case_of_flags(const std::string& flags) {
  Case c;
  c.device = "cpu";
  return with_flags(c, flags);
}

}  // namespace precbench::testing
