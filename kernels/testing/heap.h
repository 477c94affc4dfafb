// Heap usage, counted by the test program's own operator new.
#pragma once

#include <cstddef>

namespace precbench {

/// Returns true if the heap is counted. False in sanitizer builds, whose allocator cannot be replaced.
bool heap_is_counted();

/// Returns the maximum number of bytes allocated since the last reset, above those allocated then.
std::size_t heap_peak();
void reset_heap_peak();

}  // namespace precbench
