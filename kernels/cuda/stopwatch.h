// Time of work on the device, for choosing among candidates.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/check.h"

namespace precbench {

/// A pair of events on a stream.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    PRECBENCH_CHECK(cudaEventCreate(&begin_));
    PRECBENCH_CHECK(cudaEventCreate(&end_));
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void begin() { PRECBENCH_CHECK(cudaEventRecord(begin_, stream_)); }
  /// Waits and returns the milliseconds of the work started since begin().
  float end() {
    PRECBENCH_CHECK(cudaEventRecord(end_, stream_));
    PRECBENCH_CHECK(cudaEventSynchronize(end_));
    float ms = 0;
    PRECBENCH_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return ms;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace precbench
