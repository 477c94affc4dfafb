// Data of figures as gnuplot statements.
#include "tools/figure_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace precbench {
namespace {

bool finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

std::string numbers(const std::vector<double>& values) {
  std::string line;
  for (double value : values) line += fmt::format("{}{:.10g}", line.empty() ? "" : " ", value);
  return line + '\n';
}

}  // namespace

std::string plot_safe(const std::string& text) {
  static const std::string allowed = " .,_-+:/()=%<>";
  std::string result;
  for (char c : text) {
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

std::string plot_series(const std::vector<Series>& series) {
  std::string styles, block;
  for (const Series& one : series) {
    std::string lines;
    for (const Point& point : one.points) {
      std::vector<double> values = {point.x};
      values.insert(values.end(), point.y.begin(), point.y.end());
      if (finite(values)) lines += numbers(values);
    }
    if (lines.empty()) continue;
    styles += fmt::format("{} ", one.style);
    block += fmt::format("\"{}\"\n{}\n\n", plot_safe(one.title), lines);
  }
  return plot_text("styles", styles) + "$series << END\n" + block + "END\n";
}

std::string plot_block(const std::string& name, const std::vector<std::vector<double>>& rows) {
  std::string text = fmt::format("${} << END\n", name);
  for (const auto& row : rows)
    if (finite(row)) text += numbers(row);
  return text + "END\n";
}

std::string plot_bars(const std::vector<std::string>& labels, const std::vector<std::string>& parts,
                      const std::vector<std::vector<double>>& values) {
  constexpr double kFrame = 220, kBar = 24;  // units of the drawing
  constexpr double kVisible = 0.005;         // of the longest bar
  double longest = 0;
  for (const auto& bar : values) longest = std::max(longest, std::accumulate(bar.begin(), bar.end(), 0.0));
  std::string blocks, colours;
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
    blocks += fmt::format("\"{}\"\n{}\n\n", plot_safe(parts[p]), lines);
  }
  std::string names;
  for (std::size_t b = 0; b < labels.size(); ++b)
    names += fmt::format("{} \"{}\"\n", b + 1, plot_safe(labels[b]));
  return plot_text("segments", colours) + plot_number("rows", static_cast<double>(labels.size())) +
         plot_number("height", kFrame + kBar * static_cast<double>(labels.size())) + "$bars << END\n" +
         blocks + "END\n$labels << END\n" + names + "END\n";
}

}  // namespace precbench
