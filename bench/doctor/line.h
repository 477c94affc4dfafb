// One line of the doctor's answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "results/text/screen.h"

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

/// Returns "FAIL     GPU 0 ECC  text" for each line, with aligned subjects and wrapped texts.
std::string to_text(const HealthLines& lines, const Screen& screen);

}  // namespace precbench
