// A part that few records have: used like std::optional, with the size of a pointer, since hundreds of thousands of records
// are read at once.
#pragma once

#include <memory>
#include <utility>

namespace precbench {

template <class T>
class OptionalPart {
 public:
  OptionalPart() = default;
  OptionalPart(T value) : part_(std::make_unique<T>(std::move(value))) {}
  OptionalPart(const OptionalPart& other) : part_(other.part_ ? std::make_unique<T>(*other.part_) : nullptr) {}
  OptionalPart(OptionalPart&&) noexcept = default;
  OptionalPart& operator=(OptionalPart other) noexcept {
    part_ = std::move(other.part_);
    return *this;
  }
  ~OptionalPart() = default;

  explicit operator bool() const { return part_ != nullptr; }
  bool has_value() const { return part_ != nullptr; }
  T& operator*() { return *part_; }
  const T& operator*() const { return *part_; }
  T* operator->() { return part_.get(); }
  const T* operator->() const { return part_.get(); }
  T& emplace() { return *(part_ = std::make_unique<T>()); }
  void reset() { part_.reset(); }

 private:
  std::unique_ptr<T> part_;
};

}  // namespace precbench
