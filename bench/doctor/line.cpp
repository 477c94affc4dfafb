// Text of the doctor's lines. See line.h.
#include "bench/doctor/line.h"

#include <fmt/format.h>

#include <algorithm>

namespace precbench {

const char* name_of(Health health) {
  static constexpr const char* kNames[] = {"ok", "warn", "FAIL", "unknown"};
  return kNames[static_cast<int>(health)];
}

std::string to_text(const HealthLine& line, std::size_t width) {
  return fmt::format("{:<8} {:<{}}  {}\n", name_of(line.health), line.subject, width, line.text);
}

std::string to_text(const HealthLines& lines) {
  std::size_t width = 0;
  for (const HealthLine& line : lines) width = std::max(width, line.subject.size());
  std::string text;
  for (const HealthLine& line : lines) text += to_text(line, width);
  return text;
}

}  // namespace precbench
