// Memory filled with NaN on the CPU.
#include "models/checks/nan_block.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "kernels/device/devices.h"
#include "kernels/testing/catch.h"

namespace precbench {

TEST_CASE("NanBlock: every byte is NaN's until it is written and blocks share none", "[checks]") {
  const auto device = make_cpu_device(1);
  const std::int64_t bytes = (std::int64_t{3} << 20) + 5;  // ends inside a page
  const checks::NanBlock first(*device, bytes);
  const auto values = [&](const checks::NanBlock& block) {
    return std::span(static_cast<std::byte*>(block.data()), static_cast<std::size_t>(bytes));
  };
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{2} << 20, bytes - 1})
    values(first)[static_cast<std::size_t>(at)] = std::byte{1};
  const auto count = [&](const checks::NanBlock& block) {
    const auto all = values(block);
    return std::count(all.begin(), all.end(), std::byte{0xFF});
  };
  CHECK(count(first) == bytes - 3);
  CHECK(count(checks::NanBlock(*device, bytes)) == bytes);
}

}  // namespace precbench
