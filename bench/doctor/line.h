// One line of the doctor's answer.
#pragma once

#include <string>
#include <vector>

namespace precbench {

enum class Health : std::uint8_t { ok, warn, fail, unknown };
/// Returns "ok", "warn", "FAIL" or "unknown".
const char* name_of(Health health);

struct HealthLine {
  Health health = Health::ok;
  std::string subject;  ///< "GPU 0 power limit"
  std::string text;     ///< what was found, and what to do about it
};
using HealthLines = std::vector<HealthLine>;

/// Returns "FAIL     GPU 0 ECC  text", subjects aligned at `width`.
std::string to_text(const HealthLine& line, std::size_t width);
/// Returns all lines, with aligned subjects.
std::string to_text(const HealthLines& lines);

}  // namespace precbench
