# Where the time of one optimizer step goes, a bar per recipe: ms by class of operation.
load data
load "plots/style.gp"
set yrange [rows + 0.6 : 0.4]
set xrange [0 : *]
set grid noytics xtics
set key maxcols 2
set xlabel "time of one optimizer step (ms)"
plot $labels using (0):1:ytic(2) with points pt 0 ps 0 notitle, \
  for [i=1:words(segments)] $bars index i - 1 using 1:3:1:2:($3 - 0.36):($3 + 0.36) \
    with boxxyerror lc rgb word(parts, int(word(segments, i))) lw 0.5 fs solid 1 border lc rgb "white" title columnheader(1)
