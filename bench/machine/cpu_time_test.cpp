// Tests CPU time and waiting time from files of scheduling statistics.
#include "bench/machine/cpu_time.h"

#include <cmath>
#include <filesystem>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"

using namespace precbench;

TEST_CASE("read_cpu_time: sums the waiting time of all threads, those that began later included",
          "[cpu_time]") {
  const TempDirectory tasks;
  const auto thread = [&](const std::string& id, const std::string& statistics) {
    std::filesystem::create_directories(tasks / id);
    tasks.write(id + "/schedstat", statistics);
  };
  const std::string folder = tasks.path().string();
  thread("11", "5000000 1000000000 7\n");
  thread("12", "5000000 2000000000 7\n");
  const CpuTime begin = read_cpu_time(folder);
  thread("11", "6000000 1500000000 8\n");
  thread("13", "6000000 250000000 8\n");
  std::filesystem::remove_all(tasks / "12");
  const CpuTimeSpent spent = cpu_time_between(begin, read_cpu_time(folder));
  REQUIRE(spent.waited_s);
  CHECK(std::abs(*spent.waited_s - 0.75) < 1e-9);
  CHECK(spent.used_s >= 0);
}

TEST_CASE("read_cpu_time: without scheduling statistics the waiting time is unknown", "[cpu_time]") {
  const TempDirectory tasks;
  std::filesystem::create_directories(tasks / "11");
  const std::string folder = tasks.path().string();
  CHECK_FALSE(cpu_time_between(read_cpu_time(folder), read_cpu_time(folder)).waited_s);
  CHECK_FALSE(cpu_time_between({}, read_cpu_time(folder + "/none")).waited_s);
}
