batch_size B=4 * seq_len T=1024 * num_processes=2 and total_batch_size=8192
device memory usage: 3511 MiB / 5930 MiB
step    1/100 | loss 4.251000 (+nanz)| norm 2.0000 (+nanz)| lr 3.00e-04 | 160.21 ms | -100.0% bf16 MFU | 51000 tok/s
step    2/100 | loss 4.252000 (+nanz)| norm 2.0000 (+nanz)| lr 3.00e-04 | 160.22 ms | -100.0% bf16 MFU | 51000 tok/s
step    3/100 | loss 4.253000 (+nanz)| norm 2.0000 (+nanz)| lr 3.00e-04 | 160.23 ms | -100.0% bf16 MFU | 51000 tok/s
step    4/100 | loss 4.254000 (+nanz)| norm 2.0000 (+nanz)| lr 3.00e-04 | 160.24 ms | -100.0% bf16 MFU | 51000 tok/s
step    5/100 | loss 4.255000 (+nanz)| norm 2.0000 (+nanz)| lr 3.00e-04 | 160.25 ms | -100.0% bf16 MFU | 51000 tok/s
step    6/100 | loss 4.256000 (+nanz)| norm 2.0000 (+nanz)| lr 3.00e-04 | 160.26 ms | -100.0% bf16 MFU | 51000 tok/s
step    7/100 | loss 4.257000 (+nanz)| norm 2.0000 (+nanz)| lr 3.00e-04 | 160.27 ms | -100.0% bf16 MFU | 51000 tok/s
s:0 trl:11.02 lr:0.000001 norm:14.9
