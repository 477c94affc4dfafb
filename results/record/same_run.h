// Tells the runs of one case apart.
#pragma once

#include "results/record/record.h"

namespace precbench {

/// Returns true if two records of one case are of one run: measured at one time, or imported from one run of one log. Logs without
/// times have that of their file, which files that were copied together share, and which another copy does not keep.
inline bool same_run(const Record& a, const Record& b) {
  if (a.source && b.source)
    return a.source->file_sha256 == b.source->file_sha256 && a.source->run == b.source->run;
  return a.created == b.created && a.source.has_value() == b.source.has_value();
}

}  // namespace precbench
