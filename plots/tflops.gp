# Model TFLOP/s per GPU against sequence length, a line per recipe. The right axis is the same as MFU:
# percent of `peak`, the dense BF16 peak in TFLOP/s, where that is known. The left axis is from `bottom` to `top`.
load data
load "plots/style.gp"
set logscale x 2
set xtics ()
do for [t in ticks] { set xtics add (t t + 0) }
set xrange [low : high]
set yrange [bottom : top]
set xlabel "sequence length (tokens)"
set ylabel "model TFLOP/s per GPU"
if (exists("peak")) {
  set border 11
  set y2range [100.0 * bottom / peak : 100.0 * top / peak]
  set y2tics nomirror
  set y2label "MFU (%)"
}
plot for [i=1:words(styles)] $series index i - 1 using 1:2 \
  with linespoints lt int(word(styles, i)) title columnheader(1)
