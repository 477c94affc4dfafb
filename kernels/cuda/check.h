// The one macro of the project: every call into CUDA, cuBLASLt, cuDNN and NCCL goes through PRECBENCH_CHECK,
// so that a failure names the operation, the call and the library's own words for what went wrong.
//
//   PRECBENCH_CHECK(cudaMemsetAsync(p, 0, bytes, stream()));
//
// A file that uses cuDNN or NCCL adds its own overload of check() in namespace precbench, so that this header
// does not need theirs.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <string>

namespace precbench {

/// Throws std::runtime_error: "<operation>: <text> (<library> <code>) in <call>", in one line. `operation` is
/// the enclosing function; a leading "do_" is dropped, so that a device's op has its own name.
[[noreturn]] void throw_library_error(const char* library, int code, const char* text, const char* call,
                                      const char* operation);

/// OutOfMemory for cudaErrorMemoryAllocation, else throw_library_error.
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
