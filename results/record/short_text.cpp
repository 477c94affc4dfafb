// Cuts off before classifying characters. See short_text.h.
#include "results/record/short_text.h"

#include "results/record/characters.h"
#include "results/record/printable.h"

namespace precbench {

std::string short_printable(std::string_view text, std::size_t most) {
  // No character has more than four bytes, so that what is cut off here would not be shown.
  constexpr std::size_t kMostBytes = 4;
  return shorten(printable(text.substr(0, kMostBytes * (most + 1))), most);
}

}  // namespace precbench
