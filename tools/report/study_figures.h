// Figures of a study's cards, shared by several sections.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/report/sections.h"
#include "tools/text/figure_data.h"

namespace precbench {

using StudyCards = std::span<const StudyCard>;

/// Visits the cards study by study; each study has one model and machine.
template <class Visit>
void for_each_study(StudyCards cards, const Visit& visit) {
  const auto key = [](const StudyCard& card) { return std::tie(card.model, card.study, card.machine); };
  while (!cards.empty()) {
    const auto other = std::find_if(cards.begin(), cards.end(),
                                    [&](const StudyCard& card) { return key(card) != key(cards.front()); });
    const auto count = static_cast<std::size_t>(other - cards.begin());
    visit(cards.first(count));
    cards = cards.subspan(count);
  }
}

/// Builds figures of a study's cards, with one line per recipe.
struct StudyFigures {
  const ReportInput& input;
  StudyCards cards;
  std::vector<Figure>& figures;

  /// Adds a figure of the points that `points` returns for each card; omits empty lines and empty figures.
  template <class Points>
  void add(const std::string& name, const std::string& caption, const std::string& axes,
           const Points& points) const {
    std::vector<Series> series;
    for (const StudyCard& card : cards)
      if (std::vector<Point> own = points(card); !own.empty())
        series.push_back({card.verdict.recipe, input.styles.at(card.verdict.recipe), std::move(own)});
    if (series.empty()) return;
    const StudyCard& first = cards.front();
    figures.push_back({file_name(fmt::format("study-{} {}", name, first.model)), "lines",
                       fmt::format("{}, forks of {} steps, {}", first.model, first.fork_steps, first.machine),
                       caption, axes + plot_series(series)});
  }
};

/// Returns the gnuplot statements that label the axes.
inline std::string study_axes(const char* x, const char* y) {
  return plot_text("xtext", x) + plot_text("ytext", y);
}

}  // namespace precbench
