#!/bin/sh
# Records llama-tp4-b4-i16-o129-jax-tpu again and prints its metrics.
set -eu
tw collect --mesh tp=4 --model llama --batch 4 --input-length 16 --output-length 129 --layers 2 --hosts 1 --dtype float32 --seed 0 --device cpu --backend jax -o captures
tw ingest captures
tw metrics values
