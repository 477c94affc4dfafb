// Compiled without -march (bench/CMakeLists.txt). Uses nothing of the standard library, because the linker
// could take an inline function from a file that was compiled with -march.
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
  // There is nowhere to report a failure.
  if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

}  // namespace

void refuse_old_cpu() {
  __builtin_cpu_init();
  // x86-64-v3 features that every compiler can query; CPUs that have these have all others, too.
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

// 101 is the first priority that is not reserved for the compiler. Not set on refuse_old_cpu itself, because
// GCC drops the priority after a declaration without it.
[[gnu::constructor(101)]] static void refuse_at_start() { refuse_old_cpu(); }
#else
void refuse_old_cpu() {}
#endif

}  // namespace precbench
