// A tensor is a view: a pointer, a dtype and a row-major contiguous [rows, cols] shape. It owns nothing;
// memory comes from an Arena (memory.h). On the dry device the pointer is an address that must not be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace precbench {

/// f16 is a storage format only (state_formats.h). Elements of e5m3, e4m4, e3m4 and e3m3 are stored as BF16,
/// which holds them exactly: no GPU multiplies them, and e5m3 and e4m4 have nine bits. grid: a byte that
/// numbers a value of the operand's own list (grid.h); grid4: half a byte, for lists of up to 16 values, two codes a byte as
/// in e2m1. ue5m3: an unsigned byte for scales (custom_format.h).
enum class DType : std::uint8_t {
  f32,
  bf16,
  e4m3,
  e5m2,
  e2m1,
  ue8m0,
  i32,
  f16,
  e5m3,
  e3m4,
  e3m3,
  e4m4,
  grid,
  grid4,
  ue5m3
};

constexpr bool is_grid(DType dtype) { return dtype == DType::grid || dtype == DType::grid4; }

/// Returns true if elements are stored in a wider dtype, BF16.
constexpr bool held_in_bf16(DType dtype) {
  return dtype == DType::e5m3 || dtype == DType::e4m4 || dtype == DType::e3m4 || dtype == DType::e3m3;
}

/// Returns the lower-case name used in records: "f32", "bf16", "e4m3", ...
const char* name_of(DType dtype);

constexpr int bits_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 32;
    case DType::bf16:
    case DType::f16:
    case DType::e5m3:
    case DType::e3m4:
    case DType::e3m3:
    case DType::e4m4:
      return 16;
    case DType::e2m1:
    case DType::grid4:
      return 4;
    default:
      return 8;
  }
}

constexpr std::int64_t bytes_of(DType dtype, std::int64_t count) { return (count * bits_of(dtype) + 7) / 8; }

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  std::int64_t size() const { return rows * cols; }
  std::int64_t bytes() const { return bytes_of(dtype, size()); }
  bool empty() const { return data == nullptr; }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }

  /// Returns rows [first, first + count) as a tensor. Rows must be whole bytes.
  Tensor slice_rows(std::int64_t first, std::int64_t count) const {
    return elements(first * cols, count * cols).reshape(count, cols);
  }

  /// Returns elements [first, first + count) of the flattened tensor as [1, count]. They must start at a
  /// whole byte. Throws std::out_of_range if they are not within the tensor.
  Tensor elements(std::int64_t first, std::int64_t count) const {
    if (first < 0 || count < 0 || first + count > size())
      throw std::out_of_range("elements of a tensor that it has not");
    return {static_cast<std::byte*>(data) + bytes_of(dtype, first), dtype, 1, count};
  }

  /// Returns the same elements as [new_rows, new_cols]; the sizes must agree.
  Tensor reshape(std::int64_t new_rows, std::int64_t new_cols) const {
    return {data, dtype, new_rows, new_cols};
  }
};

}  // namespace precbench
