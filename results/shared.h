// An optional value that copies share until one of them is changed.
//
// Records are read by the hundred thousand, and most of what they say of a machine is the same in all of them; most
// sections that a failed case does not have would take their place as a std::optional all the same.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace precbench {

template <class T>
class Shared;

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
inline constexpr bool kIsOptional<Shared<T>> = true;
template <>
inline constexpr bool kIsOptional<std::nullopt_t> = true;

/// Used as a std::optional<T>, of the size of a pointer and a count. What is reached through a Shared that is not
/// const may be changed, so that it is copied first where others share it. Copies that share a value belong to one
/// thread.
template <class T>
class Shared {
 public:
  Shared() = default;
  Shared(std::nullopt_t) {}
  template <class U>
  requires(!kIsOptional<std::remove_cvref_t<U>> && std::is_convertible_v<U&&, T>) Shared(U&& value)
      : value_(std::make_shared<T>(std::forward<U>(value))) {}
  Shared(std::optional<T> value) {
    if (value) value_ = std::make_shared<T>(std::move(*value));
  }
  operator std::optional<T>() const { return value_ ? std::optional<T>(*value_) : std::nullopt; }

  explicit operator bool() const { return value_ != nullptr; }
  bool has_value() const { return value_ != nullptr; }

  const T& operator*() const { return *value_; }
  const T* operator->() const { return value_.get(); }
  T& operator*() { return own(); }
  T* operator->() { return &own(); }
  T value_or(T other) const { return value_ ? *value_ : other; }

  T& emplace() { return *(value_ = std::make_shared<T>()); }
  void reset() { value_.reset(); }

  friend bool operator==(const Shared& a, const Shared& b) {
    return a.value_ == b.value_ || (a && b && *a.value_ == *b.value_);
  }
  template <class U>
  requires(!kIsOptional<U>) friend bool operator==(const Shared& a, const U& b) {
    return a && *a.value_ == b;
  }

 private:
  T& own() {
    if (value_.use_count() > 1) value_ = std::make_shared<T>(*value_);
    return *value_;
  }

  std::shared_ptr<T> value_;
};

}  // namespace precbench
