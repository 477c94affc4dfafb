// Builds gnuplot statements. See figure_data.h.
#include "tools/text/figure_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

#include "results/record/printable.h"
#include "tools/text/table.h"

namespace precbench {
namespace {

// Numbers of characters that fit the width of plots/style.gp.
constexpr std::size_t kHeadingLetters = 54;
constexpr std::size_t kLegendLetters = 48;
constexpr std::size_t kBarLetters = 56;

bool finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

std::string numbers(const std::vector<double>& values) {
  std::string line;
  for (double value : values) line += fmt::format("{}{:.10g}", line.empty() ? "" : " ", value);
  return line + '\n';
}

/// Returns a line for every point whose values are finite.
std::string lines_of(const std::vector<Point>& points) {
  std::string lines;
  for (const Point& point : points) {
    std::vector<double> values = {point.x};
    values.insert(values.end(), point.y.begin(), point.y.end());
    if (finite(values)) lines += numbers(values);
  }
  return lines;
}

/// Returns the legend's size, which determines its columns.
std::string legend_size(const std::vector<std::string>& titles) {
  std::size_t longest = 1;
  for (const std::string& title : titles) longest = std::max(longest, title.size());
  return plot_number("entries", static_cast<double>(titles.size())) +
         plot_number("longest", static_cast<double>(longest));
}

std::string legend_title(const std::string& text) { return shorten(plot_safe(text), kLegendLetters); }

}  // namespace

std::string plot_safe(const std::string& text) {
  static const std::string allowed = " .,_-+:/()=%<>";
  std::string result;
  for (const char c : printable(text)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool word =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || byte >= 0x80;
    result += word || allowed.find(c) != std::string::npos ? c : '_';
  }
  return result;
}

std::string plot_text(const std::string& name, const std::string& value) {
  return fmt::format("{} = '{}'\n", name, plot_safe(value));
}

std::string plot_number(const std::string& name, double value) {
  return fmt::format("{} = {:.10g}\n", name, value);
}

std::string plot_heading(const std::string& text) {
  std::istringstream items(plot_safe(text));
  std::vector<std::string> lines;
  for (std::string item; std::getline(items >> std::ws, item, ',');) {
    item = shorten(item, kHeadingLetters);
    if (lines.empty() || lines.back().size() + 2 + item.size() > kHeadingLetters)
      lines.push_back(item);
    else
      lines.back() += ", " + item;
  }
  return fmt::format("array heading[{}] = ['{}']\n", lines.size(), fmt::join(lines, "', '"));
}

std::string plot_series(const std::vector<Series>& series) {
  std::string styles, block;
  std::vector<std::string> titles;
  for (const Series& one : series) {
    const std::string lines = lines_of(one.points);
    if (lines.empty()) continue;
    styles += fmt::format("{} ", one.style);
    titles.push_back(legend_title(one.title));
    block += fmt::format("\"{}\"\n{}\n\n", titles.back(), lines);
  }
  return plot_text("styles", styles) + legend_size(titles) + "$series << END\n" + block + "END\n";
}

std::string plot_block(const std::string& name, const std::vector<std::vector<double>>& rows) {
  std::string text = fmt::format("${} << END\n", name);
  for (const auto& row : rows)
    if (finite(row)) text += numbers(row);
  return text + "END\n";
}

std::string plot_curves(const std::string& name, const std::vector<std::vector<Point>>& curves) {
  std::string text = fmt::format("${} << END\n", name);
  for (const std::vector<Point>& curve : curves)
    if (const std::string lines = lines_of(curve); !lines.empty()) text += lines + "\n\n";
  return text + "END\n";
}

std::string Axis::plot() const { return plot_number("bottom", bottom) + plot_number("top", top); }

std::string Axis::remark() const { return bottom > 0 ? " The vertical axis does not start at 0." : ""; }

Axis axis_of(const std::vector<Series>& series) {
  constexpr double kPadding = 0.12;   // margins above and below, relative to the range
  constexpr double kLeastSpan = 0.1;  // relative to the highest value; less would magnify noise
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const Series& one : series)
    for (const Point& point : one.points)
      if (!point.y.empty() && std::isfinite(point.y.front())) {
        low = std::min(low, point.y.front());
        high = std::max(high, point.y.front());
      }
  if (high <= 0) return {};
  if (low < high / 2) return {0, high * (1 + kPadding)};
  const double span = std::max(high - low, kLeastSpan * high), middle = (low + high) / 2;
  return {middle - (0.5 + kPadding) * span, middle + (0.5 + kPadding) * span};
}

std::string plot_bars(const std::vector<std::string>& labels, const std::vector<std::string>& parts,
                      const std::vector<std::vector<double>>& values) {
  constexpr double kVisible = 0.005;  // relative to the longest bar
  double longest = 0;
  for (const auto& bar : values) longest = std::max(longest, std::accumulate(bar.begin(), bar.end(), 0.0));
  std::string blocks, colours;
  std::vector<std::string> titles;
  std::vector<double> begins(labels.size(), 0);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    std::string lines;
    bool any = false;
    for (std::size_t b = 0; b < labels.size(); ++b) {
      const double value = std::max(values[b][p], 0.0);
      lines += numbers({begins[b], begins[b] + value, static_cast<double>(b + 1)});
      any = any || value > kVisible * longest;
    }
    if (!any) continue;
    for (std::size_t b = 0; b < labels.size(); ++b) begins[b] += std::max(values[b][p], 0.0);
    colours += fmt::format("{} ", p + 1);
    titles.push_back(legend_title(parts[p]));
    blocks += fmt::format("\"{}\"\n{}\n\n", titles.back(), lines);
  }
  std::string names;
  for (std::size_t b = 0; b < labels.size(); ++b)
    names += fmt::format("{} \"{}\"\n", b + 1, shorten(plot_safe(labels[b]), kBarLetters));
  return plot_text("segments", colours) + plot_number("rows", static_cast<double>(labels.size())) +
         legend_size(titles) + "$bars << END\n" + blocks + "END\n$labels << END\n" + names + "END\n";
}

}  // namespace precbench
