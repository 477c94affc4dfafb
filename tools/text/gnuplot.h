// Draws the figures of a document with gnuplot, an optional external program.
#pragma once

#include <string>

#include "tools/text/document.h"

namespace precbench {

/// Draws every figure as SVG for a page (Figure::svg), with text and axes in the page's text color. If
/// `folder` is not empty, also writes NAME.svg, NAME.png and NAME.dat there, and sets Figure::link to the
/// SVG, relative to the folder of `output`.
///
/// Returns true if all figures were drawn, or the first 200 if there are more. If gnuplot or a temporary
/// folder is missing, or if gnuplot fails or writes an incomplete picture, the figure stays undrawn and
/// Document::notice reports it. Throws InvalidInput if `folder` cannot be written.
bool draw_figures(Document& document, const std::string& folder, const std::string& output);

/// Converts gnuplot's SVG into a part of a page: without prolog, with black replaced by the page's text
/// color, and with ids that are unique on the page.
std::string svg_for_page(const std::string& svg, const std::string& id, const std::string& caption);

}  // namespace precbench
