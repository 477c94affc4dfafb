// What a plot script loads: assignments and data blocks in gnuplot's language.
#pragma once

#include <string>
#include <vector>

namespace precbench {

struct Point {
  double x = 0;
  std::vector<double> y;
};

/// One line of a figure.
struct Series {
  std::string title;
  int style = 1;  ///< line type of plots/style.gp
  std::vector<Point> points;
};

/// Only characters that gnuplot cannot take for anything but text: names come from foreign files.
std::string plot_safe(const std::string& text);

/// name = 'value'
std::string plot_text(const std::string& name, const std::string& value);
std::string plot_number(const std::string& name, double value);

/// The array `heading` of plots/style.gp: lines that fit the figure.
std::string plot_heading(const std::string& text);

/// A data block $series with one index per series that has a point, their titles in front, and the variables
/// `styles`, `entries` and `longest` (of the legend). Points with a value that is not finite are left out.
std::string plot_series(const std::vector<Series>& series);

/// A data block of rows of numbers; rows with a value that is not finite are left out.
std::string plot_block(const std::string& name, const std::vector<std::vector<double>>& rows);

/// Curves without titles or a legend: a data block `name` with one index for each that has a point. Points with a value that is
/// not finite are left out.
std::string plot_curves(const std::string& name, const std::vector<std::vector<Point>>& curves);

/// A vertical axis on which one can tell the series apart.
struct Axis {
  double bottom = 0;  ///< 0 unless all values are more than half of the highest
  double top = 1;

  /// The variables `bottom` and `top`.
  std::string plot() const;
  /// What a caption must say of it: nothing, or that it does not start at 0.
  std::string remark() const;
};

/// For the first values of the points.
Axis axis_of(const std::vector<Series>& series);

/// Stacked horizontal bars: `values[bar][part]`, finite. Makes $bars (one index per part that one can see in
/// some bar: half a percent of the longest), $labels, and the variables `segments` (which parts those are,
/// from 1), `rows`, and `entries` and `longest` (of the legend).
std::string plot_bars(const std::vector<std::string>& labels, const std::vector<std::string>& parts,
                      const std::vector<std::vector<double>>& values);

}  // namespace precbench
