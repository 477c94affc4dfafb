// Data of plot scripts: assignments and data blocks in gnuplot's language.
#pragma once

#include <string>
#include <vector>

namespace precbench {

struct Point {
  double x = 0;
  std::vector<double> y;
};

/// One curve of a figure.
struct Series {
  std::string title;
  int style = 1;  ///< line type in plots/style.gp
  std::vector<Point> points;
};

/// Replaces all characters that could be gnuplot syntax, and those that are not visible (printable.h), since names come
/// from untrusted files.
std::string plot_safe(const std::string& text);

/// Returns the statement: name = 'value'
std::string plot_text(const std::string& name, const std::string& value);
std::string plot_number(const std::string& name, double value);

/// Returns the array `heading` of plots/style.gp: lines that fit the figure's width.
std::string plot_heading(const std::string& text);

/// Returns a data block $series with one index per non-empty series, preceded by its title, and the variables
/// `styles`, and `entries` and `longest` of the legend. Omits points with a non-finite value.
std::string plot_series(const std::vector<Series>& series);

/// Returns a data block of rows of numbers. Omits rows with a non-finite value.
std::string plot_block(const std::string& name, const std::vector<std::vector<double>>& rows);

/// Returns a data block `name` of curves without titles or legend, one index per non-empty curve. Omits points
/// with a non-finite value.
std::string plot_curves(const std::string& name, const std::vector<std::vector<Point>>& curves);

/// Range of a vertical axis on which the series are distinguishable.
struct Axis {
  double bottom = 0;  ///< 0 unless all values exceed half the highest
  double top = 1;

  /// Returns the variables `bottom` and `top`.
  std::string plot() const;
  /// Returns a remark for the caption if the axis does not start at 0, else nothing.
  std::string remark() const;
};

/// Returns an axis for the first values of the points.
Axis axis_of(const std::vector<Series>& series);

/// Returns stacked horizontal bars; `values[bar][part]` must be finite. Consists of $bars (one index per part
/// that exceeds 0.5% of the longest bar in some bar), $labels, and the variables `segments` (indices of those
/// parts, from 1), `rows`, and `entries` and `longest` of the legend.
std::string plot_bars(const std::vector<std::string>& labels, const std::vector<std::string>& parts,
                      const std::vector<std::vector<double>>& values);

}  // namespace precbench
