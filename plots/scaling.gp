# Tokens/s of all GPUs together against their number, a line per recipe; thin: one GPU's rate times their number.
load data
load "plots/style.gp"
set xtics ()
do for [t in ticks] { set xtics add (t t + 0) }
set xrange [0 : high]
set yrange [0 : *]
set format y "%.0s%c"
set xlabel "number of GPUs"
set ylabel "tokens/s, all GPUs together"
plot for [i=1:words(styles)] $series index i - 1 using 1:3 \
    with lines lt int(word(styles, i)) dt 3 lw 0.8 notitle, \
  for [i=1:words(styles)] $series index i - 1 using 1:2 \
    with linespoints lt int(word(styles, i)) title columnheader(1)
