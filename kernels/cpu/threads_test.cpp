// Every op of the CPU device gives the same bits with 1, 2 and 3 threads.
#include <algorithm>

#include "kernels/cpu/every_op_testing.h"
#include "kernels/device/devices.h"
#include "kernels/testing/catch.h"

using namespace precbench;
using namespace precbench::testing;

TEST_CASE("CPU device: results of every op do not depend on the thread count", "[cpu][threads]") {
  for (const OpGroup& op : every_op()) {
    OpRun one;
    op.run(*make_cpu_device(1), one);
    for (int threads : {2, 3}) {
      OpRun many;
      op.run(*make_cpu_device(threads), many);
      REQUIRE(one.outputs().size() == many.outputs().size());
      for (std::size_t i = 0; i < one.outputs().size(); ++i) {
        INFO(op.name << " output " << i << " with " << threads << " threads");
        const Tensor& out = one.outputs()[i];
        CHECK(checks::same_bits(out, many.outputs()[i]));
        // Memory starts as all ones; an unchanged output was never written.
        const auto* bytes = static_cast<const std::uint8_t*>(out.data);
        CHECK(!std::all_of(bytes, bytes + out.bytes(), [](std::uint8_t byte) { return byte == 0xFF; }));
      }
    }
  }
}
