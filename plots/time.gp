# Where the time of one optimizer step goes, a bar per recipe below its name: ms by class of operation.
load data
body = 40 * rows
load "plots/style.gp"
set yrange [rows + 0.6 : 0.4]
set xrange [0 : *]
unset ytics
set grid noytics xtics
set xlabel "time of one optimizer step (ms)"
plot for [i=1:words(segments)] $bars index i - 1 using 1:3:1:2:($3 - 0.08):($3 + 0.4) \
    with boxxyerror lc rgb word(parts, int(word(segments, i))) lw 0.5 fs solid 1 border lc rgb "white" title columnheader(1), \
  $labels using (0):($1 - 0.28):2 with labels left offset 0.3, 0 notitle
