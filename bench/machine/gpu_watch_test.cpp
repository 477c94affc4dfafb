// Telemetry of several GPUs combined into one.
#include "bench/machine/gpu_watch.h"

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("combine: telemetry of several GPUs becomes one", "[telemetry]") {
  GpuTelemetry a, b, c;
  a.sm_clock_mhz = 1900, b.sm_clock_mhz = 1500, c.sm_clock_mhz = 1980;
  a.sm_clock_min_mhz = 1700, b.sm_clock_min_mhz = 1200;
  a.sm_clock_max_mhz = 1950, b.sm_clock_max_mhz = 1980;
  a.power_w = 600, b.power_w = 500, c.power_w = 700;
  a.power_max_w = 650, b.power_max_w = 690;
  b.temperature_c = 71, c.temperature_c = 65;
  a.throttle_reasons = {"sw_power_cap"};
  b.throttle_reasons = {"sw_power_cap", "hw_thermal_slowdown"};
  a.ecc_errors = 1, b.ecc_errors = 2;
  Telemetry all = combine({a, b, c});
  CHECK(all.sm_clock_mhz == 1900);
  CHECK(all.sm_clock_min_mhz == 1200);
  CHECK(all.sm_clock_max_mhz == 1980);
  CHECK(!all.memory_clock_mhz.has_value());
  CHECK(all.power_w == 600);
  CHECK(all.power_max_w == 690);
  CHECK(all.temperature_c == 71);
  CHECK(all.throttle_reasons == std::vector<std::string>{"sw_power_cap", "hw_thermal_slowdown"});
  CHECK(!all.ecc_errors.has_value());  // the third GPU does not count them
  c.ecc_errors = 0;
  CHECK(combine({a, b, c}).ecc_errors == 3);
}

TEST_CASE("describe_links: names the NVLink type of GPU pairs", "[telemetry]") {
  CHECK(describe_links(2, {4}) == "2 GPUs, all pairs NV4");
  CHECK(describe_links(4, {18, 18, 18, 18, 18, 18}) == "4 GPUs, all pairs NV18");
  CHECK(describe_links(3, {0, 0, 0}) == "3 GPUs, no pair with NVLink");
  CHECK(describe_links(4, {4, 0, 0, 0, 0, 4}) == "4 GPUs, pairs: 2 NV4, 4 without NVLink");
}
