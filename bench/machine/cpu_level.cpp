// Compiled without -march (bench/CMakeLists.txt). Nothing of the standard library is used here: the linker could take an
// inline function of it from a file that was compiled with.
#include "bench/machine/cpu_level.h"

#include <string.h>
#include <unistd.h>

namespace precbench {
const char* missing_feature(const CpuFeature* features, int count) {
  for (int i = 0; i < count; ++i)
    if (!features[i].present) return features[i].name;
  return nullptr;
}

#ifdef PRECBENCH_NEEDS_X86_64_V3
namespace {

constexpr int kOldCpuExit = 2;  // bad input, as everywhere

void say(const char* text) {
  // Nobody is left to hear it if this fails.
  if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

}  // namespace

void refuse_old_cpu() {
  __builtin_cpu_init();
  // What came with x86-64-v3 and can be asked for by every compiler; no CPU has these and lacks the others.
  const CpuFeature features[] = {{"AVX2", __builtin_cpu_supports("avx2") != 0},
                                 {"FMA", __builtin_cpu_supports("fma") != 0},
                                 {"BMI2", __builtin_cpu_supports("bmi2") != 0}};
  const char* missing = missing_feature(features, sizeof features / sizeof *features);
  if (!missing) return;
  say("precbench: this CPU has no ");
  say(missing);
  say(", and the program was compiled for x86-64-v3; build it here with -DPRECBENCH_CPU_ARCH=\n");
  _exit(kOldCpuExit);
}

// 101: the first priority that is not the compiler's own. Not on refuse_old_cpu itself: after a declaration without it
// GCC drops the priority.
[[gnu::constructor(101)]] static void refuse_at_start() { refuse_old_cpu(); }
#else
void refuse_old_cpu() {}
#endif

}  // namespace precbench
