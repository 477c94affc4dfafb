# Memory by segment, a bar per recipe, in `unit`: measured, each segment at its own highest; points: the peak, predicted
# and measured.
load data
load "plots/style.gp"
set yrange [rows + 0.6 : 0.4]
set xrange [0 : *]
set grid noytics xtics
set key maxcols 2
set xlabel sprintf("memory per GPU (%s)", unit)
plot $labels using (0):1:ytic(2) with points pt 0 ps 0 notitle, \
  for [i=1:words(segments)] $bars index i - 1 using 1:3:1:2:($3 - 0.36):($3 + 0.36) \
    with boxxyerror lc rgb word(parts, int(word(segments, i))) lw 0.5 fs solid 1 border lc rgb "white" title columnheader(1), \
  $predicted using 1:2 with points pt 4 ps 1.4 lw 2 lc rgb "black" title "peak, predicted", \
  $measured using 1:2 with points pt 7 ps 0.6 lc rgb "black" title "peak, measured"
