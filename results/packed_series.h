// The numbers of a curve, one per step. Most come from a device as floats, and hundreds of thousands of
// records are read at once.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <utility>
#include <variant>
#include <vector>

namespace precbench {

/// Used like std::vector<double>, to which it converts. pack() stores the values as floats if that is exact,
/// until they change.
class PackedSeries {
 public:
  using value_type = double;

  class const_iterator {
   public:
    using iterator_category = std::random_access_iterator_tag;
    using value_type = double;
    using difference_type = std::ptrdiff_t;
    using pointer = const double*;
    using reference = double;

    const_iterator() = default;
    const_iterator(const PackedSeries* series, difference_type at) : series_(series), at_(at) {}
    double operator*() const { return (*series_)[static_cast<std::size_t>(at_)]; }
    double operator[](difference_type i) const { return *(*this + i); }
    const_iterator& operator++() { return *this += 1; }
    const_iterator operator++(int) { return std::exchange(*this, *this + 1); }
    const_iterator& operator--() { return *this += -1; }
    const_iterator operator--(int) { return std::exchange(*this, *this + -1); }
    const_iterator& operator+=(difference_type n) {
      at_ += n;
      return *this;
    }
    const_iterator& operator-=(difference_type n) { return *this += -n; }
    friend const_iterator operator+(const_iterator i, difference_type n) { return i += n; }
    friend const_iterator operator+(difference_type n, const_iterator i) { return i += n; }
    friend const_iterator operator-(const_iterator i, difference_type n) { return i += -n; }
    friend difference_type operator-(const_iterator a, const_iterator b) { return a.at_ - b.at_; }
    friend bool operator==(const_iterator a, const_iterator b) { return a.at_ == b.at_; }
    friend auto operator<=>(const_iterator a, const_iterator b) { return a.at_ <=> b.at_; }

   private:
    const PackedSeries* series_ = nullptr;
    difference_type at_ = 0;
  };
  using iterator = std::vector<double>::iterator;

  PackedSeries() = default;
  PackedSeries(std::vector<double> values) : values_(std::move(values)) {}
  PackedSeries(std::initializer_list<double> values) : values_(std::vector<double>(values)) {}
  operator std::vector<double>() const { return {begin(), end()}; }

  std::size_t size() const {
    return std::visit([](const auto& held) { return held.size(); }, values_);
  }
  bool empty() const { return size() == 0; }
  double operator[](std::size_t i) const {
    const auto* floats = std::get_if<Floats>(&values_);
    return floats ? double{(*floats)[i]} : (*std::get_if<Doubles>(&values_))[i];
  }
  double front() const { return (*this)[0]; }
  double back() const { return (*this)[size() - 1]; }
  const_iterator begin() const { return {this, 0}; }
  const_iterator end() const { return {this, static_cast<std::ptrdiff_t>(size())}; }

  double& operator[](std::size_t i) { return own()[i]; }
  double& front() { return own().front(); }
  double& back() { return own().back(); }
  iterator begin() { return own().begin(); }
  iterator end() { return own().end(); }
  void reserve(std::size_t count) { own().reserve(count); }
  void push_back(double value) { own().push_back(value); }
  void resize(std::size_t count, double value = 0) { own().resize(count, value); }
  void assign(std::size_t count, double value) { own().assign(count, value); }
  void clear() { own().clear(); }

  /// Stores the values in the least memory that preserves every bit.
  void pack();

  /// NaN compares unequal, as usual.
  friend bool operator==(const PackedSeries& a, const PackedSeries& b) {
    return std::vector<double>(a) == std::vector<double>(b);
  }

 private:
  using Doubles = std::vector<double>;
  using Floats = std::vector<float>;

  Doubles& own();

  std::variant<Doubles, Floats> values_;
};

}  // namespace precbench
