// Text of the doctor's lines. See line.h.
#include "bench/doctor/line.h"

#include <fmt/format.h>

#include <algorithm>

#include "results/text/lines.h"
#include "results/text/table.h"

namespace precbench {

const char* name_of(Health health) {
  static constexpr const char* kNames[] = {"ok", "warn", "FAIL", "unknown"};
  return kNames[static_cast<int>(health)];
}

std::string to_text(const HealthLines& lines, const Screen& screen) {
  constexpr std::size_t kHealth = 9;  // longest name and a space
  std::size_t width = 0;
  for (const HealthLine& line : lines) width = std::max(width, width_of(printable(line.subject)));
  const std::size_t column = std::min(kHealth + width + 2, screen.width / 2);
  const std::string margin(column, ' ');
  std::string text;
  for (const HealthLine& line : lines) {
    const std::string start = fmt::format("{:<{}}{}", name_of(line.health), kHealth, printable(line.subject));
    const bool beside = width_of(start) + 2 <= column;
    text += beside ? padded(start, column, true) : start + '\n' + margin;
    text += hanging(printable(line.text), column, screen) + '\n';
  }
  return text;
}

}  // namespace precbench
