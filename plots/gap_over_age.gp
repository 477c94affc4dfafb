# Loss gap in percent of BF16's loss over age in tokens per parameter. Both axes are logarithmic, so a power law is a
# line. `$series` has measured gaps with a lower and an upper end, one index for each recipe and model. `$laws` has
# fitted laws as lines without points, one index for each line type of `law_styles`. Gaps that are not above zero are
# left out, and an interval that reaches zero ends at the lower edge.
load data
load "plots/style.gp"
set xlabel "age (tokens per parameter)"
set ylabel "loss gap (% of BF16's loss)"
stats $series using ($2 > 0 ? $2 : NaN) nooutput name "gap"
bottom = (exists("gap_min") && gap_min > 0) ? gap_min / 3 : 1e-6
set logscale xy
set yrange [bottom:*]
# Without exponents: terminals would print "10^{-3}" as it stands, and "1e+05".
decimals(x) = x >= 1 || x <= 0 ? 0 : ceil(-log10(x) - 1e-9)
decade(x) = gprintf(sprintf("%%.%df", decimals(x)), x)
stats $series using 1 nooutput name "age"
set xtics () ; set ytics ()
if (exists("age_min") && age_min > 0) {
  do for [i = int(floor(log10(age_min))):int(ceil(log10(age_max)))] { set xtics add (decade(10.0 ** i) 10.0 ** i) }
}
if (exists("gap_min") && gap_min > 0) {
  do for [i = int(floor(log10(bottom))):int(ceil(log10(gap_max)))] { set ytics add (decade(10.0 ** i) 10.0 ** i) }
}
plot for [i=1:words(law_styles)] $laws index i - 1 using 1:2 with lines lt int(word(law_styles, i)) lw 0.7 notitle, \
  for [i=1:words(styles)] $series index i - 1 using 1:($2 > 0 ? $2 : NaN):($3 > bottom ? $3 : bottom):4 with yerrorbars \
    lt int(word(styles, i)) lw 1.4 title columnheader(1)
