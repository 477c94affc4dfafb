// A cache folder for tests.
#pragma once

#include <cstdlib>

#include "kernels/testing/temp_directory.h"

namespace precbench {

/// Points the cache at a temporary folder.
class CacheFolder {
 public:
  CacheFolder() { setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1); }
  ~CacheFolder() { unsetenv("XDG_CACHE_HOME"); }
  CacheFolder(const CacheFolder&) = delete;
  CacheFolder& operator=(const CacheFolder&) = delete;

 private:
  TempDirectory folder_;
};

}  // namespace precbench
