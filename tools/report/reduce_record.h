// Drops the parts of a record that a report does not use, to limit the memory of large record files.
#pragma once

#include "results/record/record.h"

namespace precbench {

// A report made from reduced records equals that of the complete ones.

/// Drops everything that no section, column, figure or CSV line uses.
void reduce_for_table(Record& record);
/// Drops more: data that only the CSV uses, which contains every scalar of a record.
void reduce_for_report(Record& record);

}  // namespace precbench
