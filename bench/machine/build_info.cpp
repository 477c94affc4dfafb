// Only this file is compiled again when the commit changes. See build_info.h.
#include "bench/machine/build_info.h"

#include "bench/machine/build_info_text.h"

namespace precbench {

const BuildInfo& build_info() {
  static constexpr BuildInfo kInfo = {kBuildCommit, kBuildDirty, kBuildFlags, kBuildCompiler};
  return kInfo;
}

}  // namespace precbench
