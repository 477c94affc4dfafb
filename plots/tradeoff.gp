# Speed against loss: what a recipe gains in tokens/s over bf16, and what it costs in loss, with the confidence
# interval where there is one.
load data
load "plots/style.gp"
set xlabel "speed-up over bf16 (ratio of tokens/s)"
set ylabel "loss - bf16's (nats per token)"
set xzeroaxis lt 1 lw 1
set offsets graph 0.08, graph 0.15, graph 0.1, graph 0.1
plot for [i=1:words(styles)] $series index i - 1 using 1:2:3:4 \
  with yerrorbars lt int(word(styles, i)) ps 1.4 * mark title columnheader(1)
