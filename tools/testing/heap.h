// What the heap holds, counted by the test program's own operator new.
#pragma once

#include <cstddef>

namespace precbench {

/// Whether it is counted: not in a build with a sanitizer, whose own allocator takes no other's place.
bool heap_is_counted();

/// The most bytes that were alive at one time since the last reset, above those alive then.
std::size_t heap_peak();
void reset_heap_peak();

}  // namespace precbench
