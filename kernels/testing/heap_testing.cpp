// Counts allocated heap memory. See heap.h.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "kernels/testing/heap.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PRECBENCH_COUNTS_HEAP 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PRECBENCH_COUNTS_HEAP 0
#endif
#endif
#ifndef PRECBENCH_COUNTS_HEAP
#define PRECBENCH_COUNTS_HEAP 1
#endif

namespace {

std::atomic<std::ptrdiff_t> allocated{0}, peak{0}, start{0};

}  // namespace

namespace precbench {

bool heap_is_counted() { return PRECBENCH_COUNTS_HEAP == 1; }

std::size_t heap_peak() { return static_cast<std::size_t>(peak - start); }

void reset_heap_peak() {
  start = allocated.load();
  peak = allocated.load();
}

}  // namespace precbench

#if PRECBENCH_COUNTS_HEAP

void* operator new(std::size_t size) {
  void* const block = std::malloc(size == 0 ? 1 : size);
  if (!block) throw std::bad_alloc();
  const auto bytes = static_cast<std::ptrdiff_t>(malloc_usable_size(block));
  const std::ptrdiff_t now = allocated.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::ptrdiff_t most = peak.load(std::memory_order_relaxed);
  while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
  return block;
}

void operator delete(void* block) noexcept {
  if (!block) return;
  allocated.fetch_sub(static_cast<std::ptrdiff_t>(malloc_usable_size(block)), std::memory_order_relaxed);
  std::free(block);
}

void operator delete(void* block, std::size_t) noexcept { operator delete(block); }

#endif
