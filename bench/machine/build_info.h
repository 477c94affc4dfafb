// Source and options of this build; tools/setup/build_info.cmake writes the values at every build.
#pragma once

namespace precbench {

struct BuildInfo {
  const char* commit;  ///< of the source, 40 hex digits; "" if not known
  bool dirty;          ///< the source had changes that are not in the commit
  const char* flags;   ///< build type, optimization and architecture: "Release -O3 -DNDEBUG -march=x86-64-v3"
  const char* compiler;  ///< "GNU 12.2.0"
};

const BuildInfo& build_info();

}  // namespace precbench
