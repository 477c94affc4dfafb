// Small texts that several outputs need.
#include "tools/text/text.h"

#include <fmt/format.h>

namespace precbench {

std::string plural(std::size_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string file_name(const std::string& text) {
  std::string result;
  for (char c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool kept = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.';
    if (kept || (!result.empty() && result.back() != '-')) result += kept ? c : '-';
  }
  while (!result.empty() && result.back() == '-') result.pop_back();
  return result;
}

}  // namespace precbench
