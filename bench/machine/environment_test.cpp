// Threads and CPUs of this process as stored in records.
#include "bench/machine/environment.h"

#include <stdlib.h>

#include <optional>
#include <string>

#include "kernels/testing/catch.h"
#include "kernels/testing/one_cpu.h"

using namespace precbench;

namespace {

/// Sets OMP_NUM_THREADS during its lifetime; null unsets it.
class OmpThreads {
 public:
  explicit OmpThreads(const char* value) {
    if (const char* old = getenv(kName)) before_ = old;
    value ? setenv(kName, value, 1) : unsetenv(kName);
  }
  ~OmpThreads() { before_ ? setenv(kName, before_->c_str(), 1) : unsetenv(kName); }

 private:
  static constexpr const char* kName = "OMP_NUM_THREADS";
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("describe_environment: a process on one CPU has one thread and the record says both",
          "[environment]") {
  const OnOneCpu pinned;
  {
    const OmpThreads unset(nullptr);
    CHECK(openmp_threads() == 1);
    const Environment env = describe_environment(openmp_threads(), -1, 1);
    CHECK(env.threads == 1);
    CHECK(env.cpus == 1);
  }
  const OmpThreads two("2");
  const Environment env = describe_environment(openmp_threads(), -1, 1);
  CHECK(env.threads == 2);
  CHECK(env.cpus == 1);
  CHECK(env.nodes == 1);
}
