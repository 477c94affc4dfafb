# Price over tokens per parameter, on a logarithmic axis: `$series` has measured prices with a lower and an upper end, one index
# for each recipe and model; `$laws` has fitted laws as lines without points, one index for each line type of `law_styles`.
load data
load "plots/style.gp"
set xlabel "tokens per parameter"
set ylabel "loss minus that of bf16 (nats per token)"
set logscale x
set xzeroaxis lt 1 lw 0.5
plot for [i=1:words(law_styles)] $laws index i - 1 using 1:2 with lines lt int(word(law_styles, i)) lw 0.7 notitle, \
  for [i=1:words(styles)] $series index i - 1 using 1:2:3:4 with yerrorbars lt int(word(styles, i)) lw 1.4 \
    title columnheader(1)
