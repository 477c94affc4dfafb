// Refuses a CPU older than the one that the program was compiled for, before the first instruction that it lacks.
#pragma once

namespace precbench {

/// An instruction set that the program was compiled to use, and whether this CPU has it.
struct CpuFeature {
  const char* name;
  bool present;
};

/// The first of `count` features that is not there; null: all are.
const char* missing_feature(const CpuFeature* features, int count);

/// Ends the program with one line and exit status 2 on a CPU without what -march promised. It runs by itself before
/// every static initializer; main calls it once more, which is what links it.
void refuse_old_cpu();

}  // namespace precbench
