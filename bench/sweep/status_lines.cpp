// Control sequences of status lines. See status_lines.h.
#include "bench/sweep/status_lines.h"

#include <fmt/format.h>

#include <algorithm>

#include "results/record/characters.h"
#include "results/record/printable.h"

namespace precbench {
namespace {

constexpr std::size_t kMostLines = 10;  ///< a terminal that is lower cannot move its cursor to the first

std::string fitted(const StatusLine& line, std::size_t width) {
  constexpr std::size_t kLeast = 10;
  const std::string tail = printable(line.tail);
  return shorten(printable(line.text), std::max(kLeast, width - std::min(width, width_of(tail)))) + tail;
}

}  // namespace

std::string StatusLines::clear() {
  if (shown_ == 0) return "";
  std::string text = "\r\033[K";
  for (; shown_ > 1; --shown_) text += "\033[A\033[K";
  shown_ = 0;
  return text;
}

std::string StatusLines::show(const std::vector<StatusLine>& lines, std::size_t width) {
  std::vector<StatusLine> some = lines;
  if (lines.size() > kMostLines) {
    some.resize(kMostLines - 1);
    some.push_back({fmt::format("... and {} more", lines.size() - some.size()), lines.back().tail});
  }
  std::string text = clear();
  const std::size_t begin = text.size();
  // A character in the last column would let some terminals begin another line.
  for (const StatusLine& line : some) text += (text.size() == begin ? "" : "\n") + fitted(line, width - 1);
  shown_ = some.size();
  return text;
}

}  // namespace precbench
