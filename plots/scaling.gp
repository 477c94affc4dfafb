# Tokens/s per GPU against the number of GPUs, a line per recipe; thin and dotted: the rate with the fewest
# GPUs, on which a line stays that loses nothing. The axis is from `bottom` to `top`.
load data
load "plots/style.gp"
set logscale x 2
set xtics ()
do for [t in ticks] { set xtics add (t t + 0) }
set xrange [low : high]
set yrange [bottom : top]
set format y "%.1s%c"
set xlabel "number of GPUs"
set ylabel "tokens/s per GPU"
plot for [i=1:words(styles)] $series index i - 1 using 1:3 \
    with lines lt int(word(styles, i)) dt 3 lw 1 notitle, \
  for [i=1:words(styles)] $series index i - 1 using 1:2 \
    with linespoints lt int(word(styles, i)) title columnheader(1)
