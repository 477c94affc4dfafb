#!/usr/bin/env python3
"""Trains a byte-level BPE tokenizer on text files, deterministically, and writes its tokenizer.json.

  tools/data/train_bpe.py --vocab 16384 --out tokenizer.json --megabytes 64 @LIST

Token 0 is <|endoftext|>. Training uses the first --megabytes of the files in LIST (one path per line), in
their order.

Needs: pip install tokenizers.
"""
import argparse
import pathlib
import sys

import tokenizers


def fail(message):
    print(f"{sys.argv[0]}: {message}", file=sys.stderr)
    sys.exit(2)


def texts(names, most):
    for name in names:
        try:
            text = pathlib.Path(name).read_bytes()[:most]
        except OSError as error:
            fail(f"{name}: {error.strerror}")
        most -= len(text)
        yield text.decode("utf-8", errors="replace")
        if most <= 0:
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", metavar="@LIST")
    parser.add_argument("--vocab", type=int, default=16384)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    try:
        names = pathlib.Path(arguments.list.lstrip("@")).read_text().splitlines()
    except OSError as error:
        fail(f"{arguments.list}: {error.strerror}")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=arguments.vocab, special_tokens=["<|endoftext|>"],
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
                                             show_progress=False)
    tokenizer.train_from_iterator(texts(names, arguments.megabytes << 20), trainer)
    tokenizer.save(arguments.out)


main()
