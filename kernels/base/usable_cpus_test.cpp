// Affinity masks of this process, and quotas in a made-up /proc and /sys.
#include "kernels/base/usable_cpus.h"

#include "kernels/testing/catch.h"
#include "kernels/testing/one_cpu.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;

TEST_CASE("usable_cpus: counts the CPUs of the affinity mask, not of the machine", "[usable-cpus]") {
  const TempDirectory root;
  const OnOneCpu pinned;
  CHECK(usable_cpus(root.path()).count == 1);
  CHECK(usable_cpus(root.path()).threads() == 1);
}

TEST_CASE("usable_cpus: reads the tightest quota of version 2", "[usable-cpus]") {
  const TempDirectory root;
  CHECK(!usable_cpus(root.path()).quota);
  root.write("proc/self/cgroup", "0::/job/step\n");
  CHECK(!usable_cpus(root.path()).quota);
  root.write("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  CHECK(!usable_cpus(root.path()).quota);
  root.write("sys/fs/cgroup/job/cpu.max", "50000 100000\n");
  CHECK(usable_cpus(root.path()).quota == 0.5);
  root.write("sys/fs/cgroup/job/step/cpu.max", "150000 100000\n");
  CHECK(usable_cpus(root.path()).quota == 0.5);
  root.write("sys/fs/cgroup/cpu.max", "20000 100000\n");
  CHECK(usable_cpus(root.path()).quota == 0.2);
}

TEST_CASE("usable_cpus: reads the quota of version 1 under either mount name", "[usable-cpus]") {
  for (const char* mount : {"cpu", "cpu,cpuacct"}) {
    INFO(mount);
    const TempDirectory root;
    const std::string group = std::string("sys/fs/cgroup/") + mount + "/docker/0123/";
    root.write("proc/self/cgroup", "5:memory:/\n4:cpu,cpuacct:/docker/0123\n0::/\n");
    root.write(group + "cpu.cfs_quota_us", "-1\n");
    root.write(group + "cpu.cfs_period_us", "100000\n");
    CHECK(!usable_cpus(root.path()).quota);
    root.write(group + "cpu.cfs_quota_us", "350000\n");
    CHECK(usable_cpus(root.path()).quota == 3.5);
  }
}

TEST_CASE("UsableCpus: threads fit the mask and the quota and are at least one", "[usable-cpus]") {
  CHECK(UsableCpus{8, std::nullopt}.threads() == 8);
  CHECK(UsableCpus{8, 3.5}.threads() == 3);
  CHECK(UsableCpus{2, 3.5}.threads() == 2);
  CHECK(UsableCpus{8, 0.5}.threads() == 1);
}
