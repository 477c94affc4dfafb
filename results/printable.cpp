// What of a text is shown. See printable.h.
#include "results/printable.h"

#include <cstddef>

namespace precbench {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

struct Character {
  char32_t code = kReplacement;
  std::size_t bytes = 1;
};

/// The character that `text`, which is not empty, starts with; of bytes that are no UTF-8 (cut off, longer than
/// needed, half of a surrogate pair, beyond Unicode) the first one as U+FFFD.
Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const std::size_t bytes = byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : 2;
  if (byte(0) < 0xC2 || byte(0) > 0xF4 || text.size() < bytes) return {};
  char32_t code = byte(0) & (0xFFu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  const bool too_long = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (too_long || surrogate || code > 0x10FFFF) return {};
  return {code, bytes};
}

/// Whether a terminal or an editor acts on the character instead of showing it.
bool acts(char32_t code) {
  const bool control = code < 0x20 || (code >= 0x7F && code <= 0x9F);
  const bool line_end = code == 0x2028 || code == 0x2029;
  const bool direction = code == 0x061C || code == 0x200E || code == 0x200F ||
                         (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
  return control || line_end || direction;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_of(text);
    const bool none = character.code == kReplacement || character.code == 0xFFFE || character.code == 0xFFFF;
    if (acts(character.code))
      result += ' ';
    else if (none)
      result += "\xEF\xBF\xBD";
    else
      result += text.substr(0, character.bytes);
    text.remove_prefix(character.bytes);
  }
  return result;
}

}  // namespace precbench
