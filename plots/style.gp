# Looks shared by all figures. Every script loads its data, then this; a figure is made from the repository's root by
#   gnuplot -e "data='FIGURE.dat'; output='FIGURE.svg'" plots/SCRIPT.gp
# FIGURE.dat is one of the data files that `precbench report --plots DIR` writes; output may also end in .png.
#
# Colours are those of Okabe and Ito without yellow (too light on paper). Every recipe keeps its line type in all
# figures of a report; line types differ in colour, point and dash, so no colour needs to be told apart.
if (!exists("width")) width = 560
if (!exists("height")) height = 430
if (strstrt(output, ".png") > 0) {
  set terminal pngcairo noenhanced size 2*width, 2*height fontscale 2 linewidth 2 pointscale 2 font "Helvetica,10"
} else {
  # `transparent` is for a page that has a background of its own.
  if (exists("transparent")) {
    set terminal svg noenhanced dynamic size width, height font "Helvetica,14"
  } else {
    set terminal svg noenhanced dynamic size width, height font "Helvetica,14" background rgb "white"
  }
}
set output output

line_colours = "#000000 #D55E00 #0072B2 #009E73 #CC79A7 #E69F00 #56B4E9 #D55E00 #0072B2 #009E73 #CC79A7 #E69F00 #56B4E9"
line_points = "7 5 9 11 13 15 6 4 8 10 12 14 1"
line_dashes = "1 1 1 1 1 1 1 2 2 2 2 2 2"
do for [i=1:13] {
  set linetype i lc rgb word(line_colours, i) pt int(word(line_points, i)) dt int(word(line_dashes, i)) lw 2 ps 0.9
}
# Parts of a bar: neighbours differ in lightness.
parts = "#0072B2 #56B4E9 #D55E00 #E69F00 #009E73 #F0E442 #CC79A7 #999999 #666666"

set border 3 lw 1 lc rgb "black"
set tics nomirror out scale 0.5
set grid back lt 1 lc rgb "#999999" lw 0.3
set key outside bottom center horizontal Left reverse maxcols 3 spacing 1.0 samplen 2.5
set title heading offset 0, -0.6
