// The reader's checks, applied by whoever writes a record.
#pragma once

#include "results/record.h"

namespace precbench {

/// Returns the record as readers will accept it. A value that the schema does not allow becomes null, and where it may not
/// be null so does the section that holds it; a warning in the record names the place, the value and what is wrong with
/// it. A record that contradicts itself (contradiction.h) keeps its values and gets a warning. A record that readers accept
/// as it is comes back unchanged. Throws InvalidInput, "this record cannot be read back: ...", where a value that no record
/// can do without is wrong.
Record readable_record(Record record);

}  // namespace precbench
