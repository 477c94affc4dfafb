// What a report looks at of a record, so that a million of them fit into memory.
#pragma once

#include "results/record.h"

namespace precbench {

/// Takes from the record what no section, no column and no figure of a report is made of: a report of reduced records is
/// that of the whole ones.
void reduce_for_report(Record& record);

}  // namespace precbench
