[T] step     0 [  1.0%] | time:  5000 ms | norm   9.250000 | loss   8.500000 | tps 104850 | sol 58.0%
[T] step     1 [  1.0%] | time:  5001 ms | norm   9.250000 | loss   8.510000 | tps 104851 | sol 58.0%
[T] step     2 [  1.0%] | time:  5002 ms | norm   9.250000 | loss   8.520000 | tps 104852 | sol 58.0%
[T] step     3 [  1.0%] | time:  5003 ms | norm   9.250000 | loss   8.530000 | tps 104853 | sol 58.0%
[T] step     4 [  1.0%] | time:  5004 ms | norm   9.250000 | loss   8.540000 | tps 104854 | sol 58.0%
[T] step     5 [  1.0%] | time:  5005 ms | norm   9.250000 | loss   8.550000 | tps 104855 | sol 58.0%
[V] step     8 [  0.0%] | time:   100 ms | eval   8.400000 | train  8.500000 | tps  200k
