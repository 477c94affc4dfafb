# Memory by segment, a bar per recipe below its name, in `unit`: measured, each segment at its own highest, so that a bar
# may be longer than the peak, which the marks show: predicted, and measured.
load data
body = 40 * rows
entries = entries + 2
longest = longest < 15 ? 15 : longest
load "plots/style.gp"
set yrange [rows + 0.6 : 0.4]
set xrange [0 : *]
unset ytics
set grid noytics xtics
set xlabel sprintf("memory per GPU (%s), each segment at its own highest", unit)
# Marks are dark with a light rim, for they lie on bars of every colour. In the legend they have the text's colour,
# which is light on a dark page.
dark = "#000001"
light = "#fffffe"
plot for [i=1:words(segments)] $bars index i - 1 using 1:3:1:2:($3 - 0.08):($3 + 0.4) \
    with boxxyerror lc rgb word(parts, int(word(segments, i))) lw 0.5 fs solid 1 border lc rgb "white" title columnheader(1), \
  $labels using (0):($1 - 0.28):2 with labels left offset 0.3, 0 notitle, \
  $predicted using 1:($2 + 0.16) with points pt 4 ps 1.4 * mark lw 4 lc rgb light notitle, \
  $predicted using 1:($2 + 0.16) with points pt 4 ps 1.4 * mark lw 2 lc rgb dark notitle, \
  $measured using 1:($2 + 0.16) with points pt 7 ps 0.9 * mark lc rgb light notitle, \
  $measured using 1:($2 + 0.16) with points pt 7 ps 0.6 * mark lc rgb dark notitle, \
  keyentry with points pt 4 ps 1.4 * mark lw 2 lc rgb "black" title "peak, predicted", \
  keyentry with points pt 7 ps 0.7 * mark lc rgb "black" title "peak, measured"
