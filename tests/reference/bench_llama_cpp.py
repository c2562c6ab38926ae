#!/usr/bin/env python3
"""Prefill and decode speed of llama.cpp (llama-cpp-python from PyPI) on a GGUF file, one stream.

  python3 tests/reference/bench_llama_cpp.py MODEL.gguf [--threads 2] [--npp 128] [--ntg 64] [--repeat 3]

Prints one JSON line per repeat and their best, to stand beside `layercake bench MODEL --stages 1
--threads 2 --npp 128 --ntg 64 --npl 1` run right before and after. Tokens are random: only the
time counts. The sampling of llama.cpp is left out of its time (greedy costs it nothing to speak
of); ours is in.
"""
import argparse
import json
import random
import time

import llama_cpp


def measure(model, npp, ntg, seed):
    rng = random.Random(seed)
    vocabulary = model.n_vocab()
    model.reset()
    prompt = [rng.randrange(vocabulary // 2) for _ in range(npp)]
    start = time.perf_counter()
    model.eval(prompt)
    prefilled = time.perf_counter()
    for _ in range(ntg):
        model.eval([rng.randrange(vocabulary // 2)])
    end = time.perf_counter()
    return {"prefill_tok_s": npp / (prefilled - start), "decode_tok_s": ntg / (end - prefilled)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--npp", type=int, default=128)
    parser.add_argument("--ntg", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    model = llama_cpp.Llama(args.model, n_ctx=args.npp + args.ntg + 8, n_threads=args.threads,
                            n_threads_batch=args.threads, n_batch=512, n_gpu_layers=0,
                            logits_all=False, verbose=False)
    measure(model, 8, 4, 0)  # touches the memory, starts the threads
    runs = [measure(model, args.npp, args.ntg, seed) for seed in range(1, args.repeat + 1)]
    for run in runs:
        print(json.dumps(run))
    print(json.dumps({key: max(run[key] for run in runs) for key in runs[0]}
                     | {"best_of": args.repeat, "version": llama_cpp.__version__}))


if __name__ == "__main__":
    main()
