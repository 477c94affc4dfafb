// An optional value that copies share until one of them changes.
//
// Hundreds of thousands of records are read at once. Most describe the same machine, and a std::optional
// would reserve space for every section that a failed case lacks.
#pragma once

#include <atomic>
#include <cstdint>
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

/// Used like std::optional<T>, with the size of a pointer. Access through a non-const Shared may change the
/// value, so it copies a shared value first. Copies that share a value must be used by one thread at a time.
template <class T>
class Shared {
 public:
  Shared() = default;
  Shared(std::nullopt_t) {}
  template <class U>
  requires(!kIsOptional<std::remove_cvref_t<U>> && std::is_convertible_v<U&&, T>) Shared(U&& value)
      : held_(new Held{std::forward<U>(value)}) {}
  Shared(std::optional<T> value) {
    if (value) held_ = new Held{std::move(*value)};
  }
  Shared(const Shared& other) : held_(other.held_) {
    if (held_) held_->users.fetch_add(1, std::memory_order_relaxed);
  }
  Shared(Shared&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  Shared& operator=(Shared other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  ~Shared() { reset(); }
  operator std::optional<T>() const { return held_ ? std::optional<T>(held_->value) : std::nullopt; }

  explicit operator bool() const { return held_ != nullptr; }
  bool has_value() const { return held_ != nullptr; }

  const T& operator*() const { return held_->value; }
  const T* operator->() const { return &held_->value; }
  T& operator*() { return own(); }
  T* operator->() { return &own(); }
  T value_or(T other) const { return held_ ? held_->value : other; }

  T& emplace() {
    *this = Shared(T{});
    return held_->value;
  }
  void reset() {
    Held* const held = std::exchange(held_, nullptr);
    if (held && held->users.fetch_sub(1, std::memory_order_acq_rel) == 1) delete held;
  }

  friend bool operator==(const Shared& a, const Shared& b) {
    return a.held_ == b.held_ || (a && b && *a == *b);
  }
  template <class U>
  requires(!kIsOptional<U>) friend bool operator==(const Shared& a, const U& b) { return a && *a == b; }

 private:
  struct Held {
    T value;
    std::atomic<std::uint32_t> users = 1;
  };

  T& own() {
    if (held_->users.load(std::memory_order_acquire) > 1) *this = Shared(T(held_->value));
    return held_->value;
  }

  Held* held_ = nullptr;
};

}  // namespace precbench
