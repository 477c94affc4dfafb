# Lines over a number, one for each recipe, whose meaning the data give: `xtext`, `ytext`, and where they stand `log_x`,
# `log_y` (logarithmic axes), `bars` (points have a lower and an upper end) and `floor` (a band around zero within which
# nothing is a difference).
load data
load "plots/style.gp"
set xlabel xtext
set ylabel ytext
if (exists("log_x")) { set logscale x } else { load "plots/wide_ticks.gp" }
if (exists("log_y")) { set logscale y }
if (exists("floor")) {
  set yrange [*<0:*]
  set xzeroaxis lt 1 lw 1
  set object 1 rectangle from graph 0, first -floor to graph 1, first floor behind fillcolor rgb "#dddddd" fillstyle solid noborder
}
low = exists("bars") ? 3 : 2
high = exists("bars") ? 4 : 2
plot for [i=1:words(styles)] $series index i - 1 using 1:2:low:high with yerrorbars lt int(word(styles, i)) lw 0.7 \
    notitle, \
  for [i=1:words(styles)] $series index i - 1 using 1:2 with linespoints lt int(word(styles, i)) lw 1.4 \
    title columnheader(1)
