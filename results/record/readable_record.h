// Applies the reader's checks before a record is written.
#pragma once

#include "results/record/record.h"

namespace precbench {

/// Returns the record in a form that readers accept. A value that the schema does not allow becomes null; if
/// it must not be null, the section that contains it does. A warning in the record names the place, the value
/// and the problem. A record that contradicts itself (contradiction.h) keeps its values and gets a warning.
/// Valid records are returned unchanged. Throws InvalidInput, "this record cannot be read back: ...", if an
/// indispensable value is wrong.
Record readable_record(Record record);

}  // namespace precbench
