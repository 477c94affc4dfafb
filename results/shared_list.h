// A list that copies share until one of them changes. Most lists of a record are empty or equal to others.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <utility>
#include <vector>

#include "results/shared.h"

namespace precbench {

/// Used like std::vector<T>, with the size of a pointer.
template <class T>
class SharedList {
 public:
  using value_type = T;
  using const_iterator = typename std::vector<T>::const_iterator;
  using iterator = typename std::vector<T>::iterator;

  SharedList() = default;
  SharedList(std::vector<T> values) {
    if (!values.empty()) held_ = std::move(values);
  }
  SharedList(std::initializer_list<T> values) : SharedList(std::vector<T>(values)) {}
  operator const std::vector<T>&() const { return values(); }

  std::size_t size() const { return values().size(); }
  bool empty() const { return values().empty(); }
  const T& operator[](std::size_t i) const { return values()[i]; }
  const T& at(std::size_t i) const { return values().at(i); }
  const T& front() const { return values().front(); }
  const T& back() const { return values().back(); }
  const_iterator begin() const { return values().begin(); }
  const_iterator end() const { return values().end(); }

  T& operator[](std::size_t i) { return own()[i]; }
  T& front() { return own().front(); }
  T& back() { return own().back(); }
  iterator begin() { return own().begin(); }
  iterator end() { return own().end(); }
  void reserve(std::size_t count) {
    if (count > 0) own().reserve(count);
  }
  void push_back(T value) { own().push_back(std::move(value)); }
  void pop_back() { own().pop_back(); }
  void resize(std::size_t count) { own().resize(count); }
  void assign(std::size_t count, const T& value) { own().assign(count, T(value)); }
  template <class Iterator>
  void append(Iterator begin, Iterator end) {
    if (begin != end) own().insert(own().end(), begin, end);
  }
  void clear() { held_.reset(); }

  friend bool operator==(const SharedList& a, const SharedList& b) { return a.values() == b.values(); }

 private:
  const std::vector<T>& values() const {
    static const std::vector<T> kNone;
    return held_ ? *held_ : kNone;
  }
  std::vector<T>& own() { return held_ ? *held_ : held_.emplace(); }

  Shared<std::vector<T>> held_;
};

}  // namespace precbench
