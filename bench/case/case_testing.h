// Helper for tests: a case of which one field is set by its text, as on the command line.
#pragma once

#include <string>

#include "bench/case/case.h"

namespace precbench::testing {

inline Case case_with(const std::string& field, const std::string& text) {
  Case c;
  set_text(c, *find_field(field), text);
  return c;
}

}  // namespace precbench::testing
