// What a report looks at of a record, so that a million of them fit into memory.
#pragma once

#include "results/record.h"

namespace precbench {

// Takes from the record what nothing is made of: a report of reduced records is that of the whole ones.

/// No section, no column and no figure, nor a line of the CSV.
void reduce_for_table(Record& record);
/// The same, but for the CSV, which has every single value of a record.
void reduce_for_report(Record& record);

}  // namespace precbench
