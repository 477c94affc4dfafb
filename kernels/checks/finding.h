// Result of a check of one native path. Checks judge a device against the CPU device or an FP64 reference; tests
// assert on their findings, and `precbench doctor --run` prints them.
#pragma once

#include <string>
#include <vector>

namespace precbench::checks {

struct Finding {
  std::string path;      ///< native path that was judged (native_path.h), or "step rowwise", "all-reduce"
  std::string what;      ///< input and shape: "256 x 384 x 640 into f32, accumulated"
  std::string measured;  ///< "error 1.2e-04, bound 2.6e-04"; "3 of 98304 codes differ"
  bool agrees = false;
};
using Findings = std::vector<Finding>;

/// Appends the findings of a further check.
inline void append(Findings& all, Findings more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace precbench::checks
