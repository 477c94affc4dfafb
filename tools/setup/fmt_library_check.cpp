// Linked by CMake with fmt_library.cpp to check that it suits the installed version of fmt.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

int main(int count, char** words) {
  const std::vector<std::string> list(words, words + count);
  const double real = 1.5 * count;
  fmt::print(stderr, "{} {:>{}} {:.3f} {:g} {:a} {} {:L} {:#x} {} {:%Y}\n", list, *words, 9, real, real, real,
             static_cast<float>(real), count, count, fmt::join(list, ", "), fmt::gmtime(std::time(nullptr)));
  return fmt::to_string(real).empty() || fmt::format("{}{}", 'c', true).empty();
}
