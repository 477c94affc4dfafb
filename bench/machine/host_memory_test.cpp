// Available memory of a host, with simulated /proc and /sys.
#include "bench/machine/host_memory.h"

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

std::string bytes(std::int64_t mib) { return std::to_string(mib * kMiB) + "\n"; }

}  // namespace

TEST_CASE("available_memory: this host reports free memory", "[host-memory]") {
  CHECK(available_memory().value_or(0) > kMiB);
}

TEST_CASE("available_memory: without control groups it is the kernel's MemAvailable", "[host-memory]") {
  const TempDirectory root;
  CHECK(!available_memory(root.path()));
  root.write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    2048 kB\n");
  CHECK(available_memory(root.path()) == 2 * kMiB);
}

TEST_CASE("available_memory: the tightest control group counts minus its use", "[host-memory]") {
  const TempDirectory root;
  root.write("proc/meminfo", "MemAvailable: 1048576 kB\n");
  SECTION("version 2") {
    root.write("proc/self/cgroup", "0::/job/step\n");
    root.write("sys/fs/cgroup/job/step/memory.max", "max\n");
    root.write("sys/fs/cgroup/job/step/memory.current", bytes(70));
    CHECK(available_memory(root.path()) == 1024 * kMiB);
    root.write("sys/fs/cgroup/job/memory.max", bytes(100));
    root.write("sys/fs/cgroup/job/memory.current", bytes(80));
    CHECK(available_memory(root.path()) == 20 * kMiB);
    root.write("sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file " + bytes(30));
    CHECK(available_memory(root.path()) == 50 * kMiB);
  }
  SECTION("version 1, in a container that does not see its path") {
    root.write("proc/self/cgroup", "5:cpu:/\n4:cpuset,memory:/docker/0123\n0::/\n");
    root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", bytes(100));
    root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", bytes(130));
    CHECK(available_memory(root.path()) == 0);
    root.write("sys/fs/cgroup/memory/memory.stat", "total_inactive_file " + bytes(70));
    CHECK(available_memory(root.path()) == 40 * kMiB);
  }
}
