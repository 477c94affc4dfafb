// Notices of slow scopes.
#include "kernels/base/slow_notice.h"

#include <semaphore>

#include "kernels/testing/catch.h"

using namespace precbench;
using namespace std::chrono_literals;

TEST_CASE("SlowNotice: says one line after a time and nothing before it", "[slow_notice]") {
  std::vector<std::string> lines;
  set_notice_sink([&](const std::string& line) { lines.push_back(line); });
  {
    const SlowNotice quick([] { return std::optional<std::string>("early"); }, 24h);
  }
  for (const std::optional<std::string>& words :
       {std::optional<std::string>(), std::optional<std::string>("late")}) {
    std::binary_semaphore asked(0);
    const SlowNotice slow(
        [&] {
          asked.release();
          return words;
        },
        1ms);
    asked.acquire();
  }
  CHECK(lines == std::vector<std::string>{"late"});
  set_notice_sink([](const std::string&) {});
}
