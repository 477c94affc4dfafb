# Tokens/s of all GPUs together against sequence length, a line per recipe. The axis is from `bottom` to `top`.
load data
load "plots/style.gp"
set logscale x 2
set xtics ()
do for [t in ticks] { set xtics add (t t + 0) }
set xrange [low : high]
set yrange [bottom : top]
set format y "%.1s%c"
set xlabel "sequence length (tokens)"
set ylabel "tokens/s, all GPUs together"
plot for [i=1:words(styles)] $series index i - 1 using 1:2 \
  with linespoints lt int(word(styles, i)) title columnheader(1)
