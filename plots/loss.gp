# Training loss, a line per recipe: EMA(0.9) of the mean over seeds.
load data
load "plots/style.gp"
load "plots/wide_ticks.gp"
set xlabel "optimizer step"
set ylabel "loss (nats per token), EMA(0.9)"
# Each line has its marks at steps of its own: curves often lie on each other.
plot for [i=1:words(styles)] $series index i - 1 using 1:2 with lines lt int(word(styles, i)) lw 1.4 notitle, \
  for [i=1:words(styles)] $series index i - 1 every every::int((i - 0.5) * every / words(styles)) using 1:2 \
    with points lt int(word(styles, i)) notitle, \
  for [i=1:words(styles)] $series index i - 1 using 1:(NaN) \
    with linespoints lt int(word(styles, i)) lw 1.4 title columnheader(1)
