// Rejects a CPU older than the compilation target before the first instruction that it lacks.
#pragma once

namespace precbench {

/// An instruction set that the program was compiled to use, and whether this CPU has it.
struct CpuFeature {
  const char* name;
  bool present;
};

/// Returns the first of `count` features that is missing; null if all are present.
const char* missing_feature(const CpuFeature* features, int count);

/// Ends the program with one line and exit status 2 on a CPU that lacks what -march requires. Runs
/// automatically before every static initializer; main calls it once more so that it is linked.
void refuse_old_cpu();

}  // namespace precbench
