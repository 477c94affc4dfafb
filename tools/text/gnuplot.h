// Draws the figures of a document with gnuplot, which is another program and need not be there.
#pragma once

#include <string>

#include "tools/text/document.h"

namespace precbench {

/// Draws every figure as SVG for a page (Figure::svg; text and axes in the colour of the page's text). If
/// `folder` is not empty it also leaves there, for each, NAME.svg, NAME.png and NAME.dat, and names the SVG
/// in Figure::link, relative to the folder of `output`. Without gnuplot or a folder for temporary files, or where
/// gnuplot fails or leaves half a picture, a figure stays as it is and Document::notice says so. Returns whether all were
/// drawn, of more than 200 the first 200. Throws InvalidInput if `folder` cannot be written.
bool draw_figures(Document& document, const std::string& folder, const std::string& output);

/// gnuplot's SVG as a part of a page: without prolog, black as the page's text colour, and with ids that no
/// other figure on the page has.
std::string svg_for_page(const std::string& svg, const std::string& id, const std::string& caption);

}  // namespace precbench
