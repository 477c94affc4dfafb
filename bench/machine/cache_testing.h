// A cache folder for tests.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include "kernels/testing/temp_directory.h"

namespace precbench {

/// Points the cache at a temporary folder, until it goes out of scope.
class CacheFolder {
 public:
  CacheFolder() {
    if (const char* cache = std::getenv("XDG_CACHE_HOME")) before_ = cache;
    setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
  }
  ~CacheFolder() {
    if (before_)
      setenv("XDG_CACHE_HOME", before_->c_str(), 1);
    else
      unsetenv("XDG_CACHE_HOME");
  }
  CacheFolder(const CacheFolder&) = delete;
  CacheFolder& operator=(const CacheFolder&) = delete;

 private:
  TempDirectory folder_;
  std::optional<std::string> before_;
};

}  // namespace precbench
