// The only macro for library calls: every call into CUDA, cuBLASLt, cuDNN and NCCL goes through
// PRECBENCH_CHECK, so that a failure names the operation, the call and the library's own message.
//
//   PRECBENCH_CHECK(cudaMemsetAsync(p, 0, bytes, stream()));
//
// A file that uses cuDNN or NCCL adds its own overload of check() in namespace precbench, so that this header
// does not depend on them.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <string>

namespace precbench {

/// Throws std::runtime_error: "<operation>: <text> (<library> <code>) in <call>", in one line. `operation` is
/// the calling function; a leading "do_" is dropped, which leaves the name of a device's op.
[[noreturn]] void throw_library_error(const char* library, int code, const char* text, const char* call,
                                      const char* operation);

/// Throws OutOfMemory for cudaErrorMemoryAllocation, else like throw_library_error.
[[noreturn]] void throw_cuda_error(cudaError_t status, const char* call, const char* operation);

inline void check(cudaError_t status, const char* call, const char* operation) {
  if (status != cudaSuccess) throw_cuda_error(status, call, operation);
}

inline void check(cublasStatus_t status, const char* call, const char* operation) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw_library_error("cuBLASLt", status, cublasLtGetStatusString(status), call, operation);
}

}  // namespace precbench

#define PRECBENCH_CHECK(call) ::precbench::check((call), #call, __func__)
