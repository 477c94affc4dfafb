// Width of a terminal, a file and an odd environment.
#include "kernels/base/terminal.h"

#include <pty.h>
#include <unistd.h>

#include <cstdlib>

#include "kernels/testing/catch.h"

namespace precbench {
namespace {

/// Sets COLUMNS as long as it lives; null: unset.
class Columns {
 public:
  explicit Columns(const char* text) {
    if (const char* before = std::getenv("COLUMNS")) before_ = before;
    text ? setenv("COLUMNS", text, 1) : unsetenv("COLUMNS");
  }
  ~Columns() { before_.empty() ? unsetenv("COLUMNS") : setenv("COLUMNS", before_.c_str(), 1); }

 private:
  std::string before_;
};

TEST_CASE("terminal_width: a terminal says its width and COLUMNS counts without one", "[terminal]") {
  winsize size{};
  size.ws_row = 24, size.ws_col = 132;
  int own = -1, other = -1;
  REQUIRE(openpty(&own, &other, nullptr, nullptr, &size) == 0);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  {
    const Columns columns("80");
    CHECK(terminal_width(other) == 132);
    CHECK(terminal_width(ends[1]) == 80);
  }
  for (const char* none : {static_cast<const char*>(nullptr), "", "wide", "0", "-5"}) {
    const Columns columns(none);
    CHECK(terminal_width(ends[1]) == 100);
  }
  for (const auto& [text, width] : {std::pair("1", 40), std::pair("99999999999999999999", 1000)}) {
    const Columns columns(text);
    CHECK(terminal_width(ends[1]) == static_cast<std::size_t>(width));
  }
  for (const int descriptor : {own, other, ends[0], ends[1]}) close(descriptor);
}

}  // namespace
}  // namespace precbench
