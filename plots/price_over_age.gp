# Price over tokens per parameter, both on logarithmic axes, on which a power law is a line: `$series` has measured prices with a
# lower and an upper end, one index for each recipe and model; `$laws` has fitted laws as lines without points, one index for each
# line type of `law_styles`. Prices that are not above zero are left out, and an interval that reaches zero ends at the lower edge.
load data
load "plots/style.gp"
set xlabel "tokens per parameter"
set ylabel "loss minus that of bf16 (nats per token)"
stats $series using ($2 > 0 ? $2 : NaN) nooutput name "price"
bottom = (exists("price_min") && price_min > 0) ? price_min / 3 : 1e-6
set logscale xy
set yrange [bottom:*]
set format x "%g"
set format y "%g"
plot for [i=1:words(law_styles)] $laws index i - 1 using 1:2 with lines lt int(word(law_styles, i)) lw 0.7 notitle, \
  for [i=1:words(styles)] $series index i - 1 using 1:($2 > 0 ? $2 : NaN):($3 > bottom ? $3 : bottom):4 with yerrorbars \
    lt int(word(styles, i)) lw 1.4 title columnheader(1)
