# Training loss, a line per recipe: EMA(0.9) of the mean over seeds. The band, where
# there are enough seeds for one, is where 95% of bf16's seeds would lie.
load data
load "plots/style.gp"
set xlabel "optimizer step"
set ylabel "loss (nats per token), EMA(0.9)"
if (exists("bandtitle")) {
  plot $band using 1:2:3 with filledcurves lc rgb "#999999" fs transparent solid 0.35 noborder title bandtitle, \
    for [i=1:words(styles)] $series index i - 1 using 1:2 \
      with linespoints lt int(word(styles, i)) lw 1.4 pointinterval every title columnheader(1)
} else {
  plot for [i=1:words(styles)] $series index i - 1 using 1:2 \
    with linespoints lt int(word(styles, i)) lw 1.4 pointinterval every title columnheader(1)
}
