# Fewer numbers under an axis of steps where they are long: gnuplot would let those of thousands touch each other.
stats $series using 1 nooutput name "axis"
if (exists("axis_max") && axis_max >= 5000) {
  power = 10.0 ** floor(log10(axis_max / 5))
  share = axis_max / 5 / power
  set xtics power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10)
}
