// Lines at the bottom of a terminal that are overwritten: one for each running case.
#pragma once

#include <string>
#include <vector>

namespace precbench {

struct StatusLine {
  std::string text;    ///< shortened if the line is too long
  std::string tail{};  ///< kept
};

class StatusLines {
 public:
  /// Returns what removes the lines shown and leaves the cursor where they began.
  std::string clear();
  /// Returns what replaces the lines shown by these, each shorter than `width`, and leaves the cursor behind the
  /// last; the first few of many.
  std::string show(const std::vector<StatusLine>& lines, std::size_t width);

 private:
  std::size_t shown_ = 0;
};

}  // namespace precbench
