# Looks shared by all figures. Every script loads its data, then this; a figure is made from the repository's root by
#   gnuplot -e "data='FIGURE.dat'; output='FIGURE.svg'" plots/SCRIPT.gp
# FIGURE.dat is one of the data files that `precbench report --plots DIR` writes; output may also end in .png.
#
# Data say how many entries the legend has (`entries`), how many letters the longest (`longest`), and what stands above
# the figure (`heading`, a line per element). Sizes here are pixels of the SVG. They do not depend on what a terminal
# believes a text's width to be, so that every terminal makes the same figure.
width = 440
font = 13
line = 18                # height of a line of text
letter = 0.56 * font     # width of a letter, a little more than Helvetica's average
column = letter * longest + 62  # of the legend
if (!exists("body")) body = 240
columns = int((width - 3) / column)
columns = columns < 1 ? 1 : columns > 3 ? 3 : columns
columns = columns > entries ? entries : columns
keyrows = (entries + columns - 1) / columns
below = 60 + line * keyrows
# gnuplot drops entries of a legend that is taller than the axes.
body = body < line * (keyrows + 1) ? line * (keyrows + 1) : body
above = 14
if (exists("heading")) { above = 20 + line * |heading| }
height = above + body + below

# Terminals differ in how high (`spread`) and wide (`narrow`) they believe letters to be, and in the size of points.
if (strstrt(output, ".png") > 0) {
  spread = 1.2
  narrow = -1
  raise = 0
  mark = 0.9
  set terminal pngcairo noenhanced size 2*width, 2*height fontscale 2 linewidth 2 pointscale 2 \
    font sprintf("Helvetica,%g", 0.75 * font)
} else {
  spread = line / (1.5 * font)
  narrow = (column - 0.6 * font * longest - 81) / (0.6 * font)
  raise = 0.6
  mark = 0.65
  # `transparent` is for a page that has a background of its own.
  if (exists("transparent")) {
    set terminal svg noenhanced dynamic size width, height font sprintf("Helvetica,%d", font)
  } else {
    set terminal svg noenhanced dynamic size width, height font sprintf("Helvetica,%d", font) background rgb "white"
  }
}
set output output

# Colours are those of Okabe and Ito without yellow (too light on paper). Every recipe keeps its line type in all
# figures of a report: 13 looks that differ in colour, point and dash, so no colour needs to be told apart. A recipe
# that is applied otherwise (with another gather, say) keeps its colour, has another dash, and its point hollow where
# it was filled or filled where it was hollow: 13 or 26 on.
line_colours = "#000000 #D55E00 #0072B2 #009E73 #CC79A7 #E69F00 #56B4E9 #D55E00 #0072B2 #009E73 #CC79A7 #E69F00 #56B4E9"
line_points = "7 5 9 11 13 15 6 4 8 10 12 14 1"
line_dashes = "1 1 1 1 1 1 1 2 2 2 2 2 2"
other(i) = int(word("6 4 8 10 12 14 7 5 9 11 13 15 2", i))
do for [i=1:13] {
  do for [way=0:2] {
    set linetype i + 13 * way lc rgb word(line_colours, i) pt way == 0 ? int(word(line_points, i)) : other(i) \
      dt way == 0 ? int(word(line_dashes, i)) : 3 + way lw 2 ps mark
  }
}
# Parts of a bar: neighbours differ in lightness.
parts = "#0072B2 #56B4E9 #D55E00 #E69F00 #009E73 #F0E442 #CC79A7 #999999 #666666"

set border 3 lw 1 lc rgb "black"
set tics nomirror out scale 0.5
set xlabel offset 0, raise
set grid back lt 1 lc rgb "#999999" lw 0.3
if (exists("heading")) {
  do for [i=1:|heading|] {
    set label i heading[i] at screen 0.5, screen 1 - (line * i - 2.0) / height center
  }
}
set tmargin at screen 1 - real(above) / height
set bmargin at screen real(below) / height
set key at screen 12.0 / width, screen 4.0 / height bottom left vertical maxrows keyrows Left reverse \
  spacing spread samplen 2.5 width narrow
