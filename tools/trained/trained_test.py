#!/usr/bin/env python3
"""Tests of the scripts that convert trained models: weights and loss compared with Transformers, words of the
tokenizers, and refusals.

Usage: tools/trained/trained_test.py [PRECBENCH, default build/precbench]

Needs gguf and tokenizers (tools/setup/python_packages.sh). Skipped without gguf, as the program itself needs no Python.
"""
import array
import io
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

try:
    import gguf
    import numpy as np
    import tokenizers
except ImportError as error:
    print(f"tools/trained/trained_test.py: skipped: {error} (tools/setup/python_packages.sh)")
    sys.exit(0)

import tiny_gguf

HERE = pathlib.Path(__file__).resolve().parent
PRECBENCH = HERE.parents[1] / "build/precbench"
GOLDEN = json.loads((HERE / "golden/losses.json").read_text())
T = 32
# Relative limit. Rounding to BF16 causes 0.0004; rows of q and k in llama.cpp's order cause 0.15 or more.
LOSS = 1e-3
TEXT = "I'll say DON'T 12345 times:\n\n  x += 1;\tüber 🙂  "
# Words of TEXT according to GPT-2, SmolLM2, Llama 3 and Qwen2.
WORDS = {
    "gpt-2": ["I", "'ll", " say", " DON", "'", "T", " 12345", " times", ":", "\n\n ", " x", " +=", " 1", ";", "\t", "über", " 🙂",
              "  "],
    "smollm": ["I", "'ll", " say", " DON", "'", "T", " ", "1", "2", "3", "4", "5", " times", ":", "\n\n ", " x", " +=", " ", "1", ";",
               "\t", "über", " 🙂", "  "],
    "llama-bpe": ["I", "'ll", " say", " DON", "'T", " ", "123", "45", " times", ":\n\n", " ", " x", " +=", " ", "1", ";", "\tüber", " 🙂",
                  "  "],
    "qwen2": ["I", "'ll", " say", " DON", "'T", " ", "1", "2", "3", "4", "5", " times", ":\n\n", " ", " x", " +=", " ", "1", ";",
              "\tüber", " 🙂", "  "],
}


def run(script, *arguments):
    return subprocess.run([sys.executable, HERE / script, *map(str, arguments)], capture_output=True, text=True)


def read_safetensors(path):
    """Returns the tensors of a file by name, as FP32."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__")
    assert max(entry["data_offsets"][1] for entry in header.values()) == len(data) - 8 - size
    result = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[entry["dtype"]]
        values = np.frombuffer(data[begin:end], kind)
        if entry["dtype"] == "BF16":
            values = (values.astype("<u4") << 16).view("<f4")
        result[name] = values.astype("<f4").reshape(entry["shape"])
    return result


def bpe_tokenizer(pre, size=tiny_gguf.VOCABULARY):
    """Returns a tokenizer as tiny_gguf.write takes it: the 256 bytes, some merges, one special token and
    one added token."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "t"), ("Ġt", "i"), ("Ġti", "m"), ("1", "2"), ("12", "3"), ("4", "5"), ("Ġ", "s"), ("Ġs", "a"), ("Ġsa", "y")]
    tokens = alphabet + ["".join(merge) for merge in merges] + ["<|endoftext|>", "<added>"]
    types = [1] * (len(tokens) - 2) + [3, 4]
    while len(tokens) < size:
        tokens.append(f"<unused {len(tokens)}>")
        types.append(5)
    return tokens, types, [" ".join(merge) for merge in merges], pre


class Trained(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def write(self, case="q4_1", **options):
        path = self.path / f"{case}.gguf"
        tiny_gguf.write(path, case, **options)
        return path

    def convert(self, case, *flags, **options):
        """Converts a case and returns the folder, by default without a tokenizer."""
        done = run("gguf_checkpoint.py", self.write(case, **options), "--out", self.path / case,
                   *(flags or ([] if "tokenizer" in options else ["--no-tokenizer"])))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(list((self.path / case).glob("*.tmp")), [])
        return self.path / case

    def refused(self, words, *arguments, script="gguf_checkpoint.py"):
        """Checks that the script ends with status 2 and one line containing `words`, and leaves nothing."""
        out = self.path / "refused"
        done = run(script, *arguments, "--out", out)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(words, done.stderr)
        self.assertEqual(list(self.path.glob("refused*")), [])

    def step(self, model, weights, tokens):
        """Returns the loss of one BF16 step over all windows of the tokens."""
        (self.path / "tokens.u16").write_bytes(np.array(tokens, "<u2").tobytes())
        done = subprocess.run([PRECBENCH, "run", "--device", "cpu", "--model", model, "--init-from", weights, "--data",
                               self.path / "tokens.u16", "--seq", str(T), "--batch", str(len(tokens) // T), "--steps", "1"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["training"]["loss"][0]

    def need_precbench(self):
        if not PRECBENCH.exists():
            self.skipTest(f"{PRECBENCH} is not built")

    def test_weights_of_every_type_and_architecture_equal_those_of_transformers(self):
        for case in tiny_gguf.CASES:
            with self.subTest(case):
                tensors = read_safetensors(self.convert(case) / "model.safetensors")
                self.assertEqual(tiny_gguf.digest(tensors), GOLDEN[case]["weights"])

    def test_loss_of_every_type_and_architecture_is_that_of_transformers(self):
        self.need_precbench()
        for case in tiny_gguf.CASES:
            with self.subTest(case):
                folder, golden = self.convert(case), GOLDEN[case]
                loss = self.step(folder / "config.json", folder / "model.safetensors", golden["tokens"])
                self.assertLess(abs(loss / golden["loss"] - 1), LOSS, f"{loss} is not {golden['loss']}")
                for wrong in {"unpermuted", "one_added"} & set(golden):
                    self.assertGreater(abs(golden[wrong] / golden["loss"] - 1), 100 * LOSS)

    def test_float_types_stay_as_they_are(self):
        for case, dtype in ("f32", "F32"), ("f16", "F16"), ("bf16", "BF16"), ("q4_1", "F32"):
            data = (self.convert(case) / "model.safetensors").read_bytes()
            header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
            self.assertEqual(header["model.layers.0.mlp.up_proj.weight"]["dtype"], dtype)
            self.assertEqual(header["model.norm.weight"]["dtype"], "F32")

    def test_config_has_the_scaling_of_rope(self):
        config = lambda case: json.loads((self.convert(case) / "config.json").read_text())
        self.assertNotIn("rope_scaling", config("f32"))
        self.assertEqual(config("linear_rope")["rope_scaling"], {"rope_type": "linear", "factor": 4.0})
        self.assertEqual(config("llama3_rope")["rope_scaling"],
                         {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 8192})
        self.assertEqual(config("qwen3")["head_dim"], 64)
        self.assertTrue(config("tied")["tie_word_embeddings"])

    def test_gemma3_has_its_windows_and_two_ropes(self):
        config = json.loads((self.convert("gemma3") / "config.json").read_text())
        self.assertEqual(config["layer_types"], ["sliding_attention"] * 5 + ["full_attention"])
        self.assertEqual((config["rope_theta"], config["rope_local_base_freq"]), (1e6, 1e4))
        self.assertEqual((config["sliding_window"], config["query_pre_attn_scalar"]), (12, 64))

    def test_a_folder_of_hugging_face_files_trains_as_it_is(self):
        self.need_precbench()
        golden, folder = GOLDEN["bf16"], self.convert("bf16")
        expected = self.step(folder / "config.json", folder / "model.safetensors", golden["tokens"])
        self.assertEqual(self.step(folder / "config.json", folder, golden["tokens"]), expected)
        self.shard(folder)
        self.assertEqual(self.step(folder / "config.json", folder, golden["tokens"]), expected)

    def shard(self, folder):
        """Splits a folder's model.safetensors into two files with alternating tensors, and an index."""
        tensors = read_safetensors(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        names, weight_map = sorted(tensors), {}
        for part in range(2):
            file, header, data = f"model-0000{part + 1}-of-00002.safetensors", {}, b""
            for name in names[part::2]:
                values = tensors[name].tobytes()
                header[name] = {"dtype": "F32", "shape": tensors[name].shape, "data_offsets": [len(data), len(data) + len(values)]}
                data += values
                weight_map[name] = file
            text = json.dumps(header).encode()
            (folder / file).write_bytes(len(text).to_bytes(8, "little") + text + data)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    def test_words_of_a_pre_tokenizer_are_those_of_its_model(self):
        for pre, words in WORDS.items():
            with self.subTest(pre):
                folder = self.convert("q4_1", tokenizer=bpe_tokenizer(pre))
                tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
                pieces = [TEXT[begin:end] for _, (begin, end) in tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)]
                self.assertEqual(pieces, words)

    def test_tokens_are_merged_and_come_back_as_text(self):
        folder = self.convert("q4_1", tokenizer=bpe_tokenizer("smollm"))
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.assertEqual(tokenizer.encode(" say times<|endoftext|>").tokens, ["Ġsay", "Ġtim", "e", "s", "<|endoftext|>"])
        self.assertEqual(tokenizer.encode("123<added>").tokens, ["1", "2", "3", "<added>"])
        self.assertEqual(tokenizer.decode(tokenizer.encode(TEXT).ids), TEXT)
        llama3 = self.convert("q4_1", tokenizer=bpe_tokenizer("llama-bpe"))
        tokenizer = tokenizers.Tokenizer.from_file(str(llama3 / "tokenizer.json"))
        self.assertEqual(tokenizer.encode("12345").tokens, ["123", "45"])

    def test_the_chat_template_comes_along(self):
        template = "{% for message in messages %}{{ message.content }}{% endfor %}"
        plain = self.convert("q4_1", tokenizer=bpe_tokenizer("smollm"))
        self.assertFalse((plain / "tokenizer_config.json").exists())
        def change(writer):
            writer.add_chat_template(template)
            writer.add_eos_token_id(3)
            writer.add_bos_token_id(tiny_gguf.VOCABULARY)  # beyond the vocabulary: left out
        folder = self.convert("q4_1", tokenizer=bpe_tokenizer("smollm"), change=change)
        tokens = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        self.assertEqual(json.loads((folder / "tokenizer_config.json").read_text()),
                         {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template,
                          "eos_token": next(token for token, number in tokens.items() if number == 3)})

    def test_definitions_are_questions_and_answers(self):
        if not shutil.which("dpkg-deb"):
            self.skipTest("no dpkg-deb")
        root = self.path / "wordnet"
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN/control").write_text("Package: w\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: d\n")
        files = root / "usr/share/wordnet"
        files.mkdir(parents=True)
        (files / "data.noun").write_text('  1 license\n00001740 03 n 02 laying_waste 0 ruin 0 001 @ 00209943 n 0000 | a | b; "c"  \n')
        (files / "data.adj").write_text("00001741 00 s 01 alight(p) 0 000 | on fire  \n")
        (files / "index.noun").write_text("ignored\n")
        package = self.path / "w.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", root, package], check=True, capture_output=True)
        done = run("debian_texts.py", "definitions", package, "--out", self.path / "words")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line) for line in (self.path / "words.jsonl").read_text().splitlines()]
        self.assertEqual(sorted((row["prompt"], row["answer"]) for row in rows),
                         [('What does the adjective "alight" mean?', "on fire"),
                          ('What does the noun "laying waste" mean?', 'a | b; "c"')])
        nothing = run("debian_texts.py", "prose", package, "--out", self.path / "nothing")
        self.assertEqual((nothing.returncode, nothing.stderr.count("\n")), (2, 1), nothing.stderr)

    def test_code_is_the_c_sources_of_linuxs_core(self):
        if not shutil.which("dpkg-deb"):
            self.skipTest("no dpkg-deb")
        files = {"kernel/fork.c": "int fork;\n", "mm/deep/slab.c": "int slab; /* \u00fc */\n",
                 "drivers/net/a.c": "int a;\n", "kernel/fork.h": "int header;\n", "lib/table.c": "0," * (256 << 10),
                 "tools/lib/b.c": "int b;\n", "Documentation/x.rst": "words\n",
                 "Documentation/translations/de/x.rst": "Worte\n"}
        root = self.path / "linux"
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN/control").write_text("Package: l\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\n"
                                             "Description: d\n")
        (root / "usr/src").mkdir(parents=True)
        with tarfile.open(root / "usr/src/linux-source-6.1.tar.xz", "w:xz", preset=0) as tar:
            for name, text in files.items():
                member = tarfile.TarInfo("linux-source-6.1/" + name)
                member.size = len(text.encode())
                tar.addfile(member, io.BytesIO(text.encode()))
        package = self.path / "l.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", root, package], check=True,
                       capture_output=True)
        for kind, names in ("code", ["kernel/fork.c", "mm/deep/slab.c"]), ("documentation", ["Documentation/x.rst"]):
            done = run("debian_texts.py", kind, package, "--out", self.path / kind)
            self.assertEqual(done.returncode, 0, done.stderr)
            written = [pathlib.Path(line) for line in (self.path / f"{kind}.list").read_text().splitlines()]
            self.assertEqual(sorted(str(path.relative_to(self.path / kind)) for path in written), names)
            for path in written:
                self.assertEqual(path.read_text(), files[str(path.relative_to(self.path / kind))])

    def test_text_is_tokenized_for_the_model(self):
        folder = self.convert("q4_1", tokenizer=bpe_tokenizer("smollm"))
        (self.path / "text.txt").write_text(TEXT * 20)
        done = run("../data/tokenize_text.py", "--tokenizer", folder, "--held-out", 0, "--out", self.path / "t", self.path / "text.txt")
        self.assertEqual(done.returncode, 0, done.stderr)
        tokens = array.array("H", (self.path / "t.u16").read_bytes())
        self.assertEqual(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).decode(list(tokens)), TEXT * 20)

    def test_a_tokenizer_larger_than_the_models_vocabulary_is_refused(self):
        folder = self.convert("q4_1", tokenizer=bpe_tokenizer("smollm"))
        config = json.loads((folder / "config.json").read_text())
        (self.path / "text.txt").write_text(TEXT)
        (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 300}))
        script = "../data/tokenize_text.py"
        self.refused("320 tokens, the model of", "--tokenizer", folder, self.path / "text.txt", script=script)
        self.refused("320 tokens, the model of", "--tokenizer", folder / "tokenizer.json", "--model", folder / "config.json",
                     self.path / "text.txt", script=script)
        (folder / "config.json").write_text("{}")
        self.refused("vocab_size", "--tokenizer", folder, self.path / "text.txt", script=script)

    def test_a_tokenizer_that_does_not_match_the_vocabulary_is_refused(self):
        convert = lambda tokenizer: self.write("q4_1", tokenizer=tokenizer)
        self.refused("300 tokens, its embedding 320", convert(bpe_tokenizer("smollm", 300)))
        self.refused("321 tokens, its embedding 320", convert(bpe_tokenizer("smollm", 321)))
        tokens, types, merges, pre = bpe_tokenizer("smollm")
        self.refused("merges 'Ġ' and 'zz', which are not tokens", convert((tokens, types, merges + ["Ġ zz"], pre)))
        self.refused("a token twice", convert((tokens[:-1] + ["<|endoftext|>"], types, merges, pre)))
        self.refused("pre-tokenizer 'tekken' is not known", convert((tokens, types, merges, "tekken")))
        self.refused("has no tokenizer", self.write("q4_1"))
        self.refused("of kind 'bert', not byte-level or SentencePiece's BPE",
                     self.write("q4_1", change=lambda writer: writer.add_tokenizer_model("bert")))

    def test_sentencepiece_joins_the_neighbours_of_the_highest_score(self):
        pieces = ["<unk>", "<bos>", "</s>", "\n\n", "   ", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "c", "bc", "ab",
                  "abc", "▁a"]
        types = [3, 3, 4, 4, 4, *[6] * 256, *[1] * 8]
        pieces += [f"<unused {i}>" for i in range(tiny_gguf.VOCABULARY - len(pieces))]
        types += [3] * (tiny_gguf.VOCABULARY - len(types))
        scores = [-1000.0] * 5 + [0.0] * 256 + [-10.0, -11.0, -12.0, -13.0, -1.0, 0.0, -2.0, -3.0]
        scores += [-1000.0] * (tiny_gguf.VOCABULARY - len(scores))

        def change(writer, space=False, scores=scores):
            writer.add_tokenizer_model("llama")
            writer.add_token_list(pieces)
            writer.add_token_types(types)
            writer.add_token_scores(scores)
            writer.add_unk_token_id(0)
            writer.add_bos_token_id(1)
            writer.add_add_space_prefix(space)
        folder = self.convert("gemma3", "--out", self.path / "gemma3", change=change)
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        # "ab" has a higher score than "bc" and than "▁a". Pieces added to the vocabulary stay whole, and unknown letters are bytes.
        for text, tokens in {"abc": ["abc"], "ab abb": ["ab", "▁", "ab", "b"], "a   b\n\n": ["a", "   ", "b", "\n\n"],
                             "é": ["<0xC3>", "<0xA9>"], "<bos></s>a": ["<bos>", "</s>", "a"]}.items():
            self.assertEqual(tokenizer.encode(text).tokens, tokens)
        self.assertEqual(tokenizer.decode(tokenizer.encode("ab  é c").ids), "ab  é c")
        self.assertEqual(json.loads((folder / "tokenizer_config.json").read_text()),
                         {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>"})
        self.refused("puts a space before the text", self.write("gemma3", change=lambda writer: change(writer, space=True)))
        self.refused("320 tokens and 319 scores", self.write("gemma3", change=lambda writer: change(writer, scores=scores[1:])))

    def test_another_architecture_is_refused(self):
        path = self.path / "other.gguf"
        writer = gguf.GGUFWriter(path, "gemma2")
        writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
        writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
        self.refused("other.gguf: architecture 'gemma2' is not supported; known: llama, qwen2, qwen3, gemma3", path)

    def test_an_unknown_quantization_is_refused(self):
        block = np.zeros((1, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.IQ4_NL][1]), np.uint8)
        path = self.write(change=lambda writer: writer.add_tensor("extra", block, raw_dtype=gguf.GGMLQuantizationType.IQ4_NL))
        self.refused("tensor extra is IQ4_NL, which is not supported; known: F32, F16, BF16, Q4_0", path, "--no-tokenizer")
        data = bytearray(self.write().read_bytes())
        at = data.index(b"blk.0.attn_q.weight") + len("blk.0.attn_q.weight") + 4 + 2 * 8
        self.assertEqual(data[at:at + 4], b"\3\0\0\0")  # Q4_1
        data[at] = 250
        (self.path / "unknown.gguf").write_bytes(data)
        self.refused("a tensor is of type 250, which the gguf library does not know", self.path / "unknown.gguf", "--no-tokenizer")

    def test_what_cannot_be_expressed_is_refused(self):
        def with_key(change):
            return self.write(change=change), "--no-tokenizer"
        self.refused("llama.expert_count = 8: not supported", *with_key(lambda writer: writer.add_expert_count(8)))
        self.refused("llama.rope.scaling.type = yarn", *with_key(
            lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)))
        self.refused("llama.rope.dimension_count is not the head dimension", *with_key(
            lambda writer: writer.add_rope_dimension_count(16)))
        self.refused("one of 3 parts", *with_key(lambda writer: writer.add_uint16("split.count", 3)))
        vector = lambda name, value: lambda writer: writer.add_tensor(name, np.full(16, value, np.float32))
        self.refused("rope_freqs.weight: not the factors", *with_key(vector("rope_freqs.weight", 2.0)))
        self.refused("tensor blk.0.attn_q.bias: not known", *with_key(vector("blk.0.attn_q.bias", 0.0)))
        gemma = self.write("gemma3", change=lambda writer: writer.add_final_logit_softcapping(30.0))
        self.refused("gemma3.final_logit_softcapping = 30.0: not supported", gemma, "--no-tokenizer")
        self.refused("llama.attention.sliding_window = 9: not supported", *with_key(lambda writer: writer.add_sliding_window(9)))

    def test_a_damaged_length_is_refused_at_once(self):
        data = bytearray(self.write(tokenizer=bpe_tokenizer("smollm")).read_bytes())
        at = data.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 4 + 4
        self.assertEqual(int.from_bytes(data[at:at + 8], "little"), tiny_gguf.VOCABULARY)
        data[at:at + 8] = (2**40).to_bytes(8, "little")
        (self.path / "damaged.gguf").write_bytes(data)
        self.refused("damaged.gguf: truncated or damaged: the file has", self.path / "damaged.gguf")

    def test_a_truncated_file_is_refused_wherever_it_ends(self):
        data = self.write(tokenizer=bpe_tokenizer("smollm")).read_bytes()
        path = self.path / "short.gguf"
        tensors = data.index(b"token_embd.weight")
        # The counts, the keys, the list of tensors, the data.
        for size in 0, 3, 4, 10, 30, 200, 5000, tensors + 5, tensors + 200, len(data) // 2, len(data) - 64:
            with self.subTest(size):
                path.write_bytes(data[:size])
                self.refused("short.gguf: not a GGUF file" if size < 4 else "short.gguf: truncated or damaged", path)
        self.refused("none.gguf: No such file or directory", self.path / "none.gguf")

    def test_tensors_of_a_pytorch_file_are_those_that_were_saved(self):
        folder = self.pytorch_folder()
        done = run("pytorch_checkpoint.py", folder, "--out", self.path / "new")
        self.assertEqual(done.returncode, 0, done.stderr)
        counting = np.arange(24, dtype=np.float32).reshape(4, 6) / 8
        expected = {"f32": counting, "f16": counting, "bf16": counting, "transposed": counting.T, "slice": counting[1:3, ::2],
                    "tied": counting, "parameter": counting + 1}
        tensors = read_safetensors(self.path / "new/model.safetensors")
        self.assertEqual(set(tensors), set(expected))
        for name, values in expected.items():
            np.testing.assert_array_equal(tensors[name], values, name)
        self.assertEqual((self.path / "new/config.json").read_text(), "{}")

    def pytorch_folder(self):
        folder = self.path / "pytorch"
        folder.mkdir(exist_ok=True)
        (folder / "pytorch_model.bin").write_bytes((HERE / "golden/torch_save.bin").read_bytes())
        (folder / "config.json").write_text("{}")
        return folder

    def test_a_damaged_pytorch_file_is_refused(self):
        folder, script = self.pytorch_folder(), "pytorch_checkpoint.py"
        file = folder / "pytorch_model.bin"
        data = file.read_bytes()
        for size in 0, 100, len(data) // 2, len(data) - 1:
            file.write_bytes(data[:size])
            self.refused("pytorch_model.bin: truncated, or not written by torch.save", folder, script=script)
        file.unlink()
        self.refused("pytorch_model.bin: No such file or directory", folder, script=script)

    def test_code_in_a_pytorch_file_is_not_run(self):
        folder, marker = self.pytorch_folder(), self.path / "ran"

        class Hostile:
            def __reduce__(self):
                return pathlib.Path.touch, (marker,)
        with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps({"a": Hostile()}))
        self.refused("which is not supported; known: tensors", folder, script="pytorch_checkpoint.py")
        self.assertFalse(marker.exists())

    def pytorch_file(self, shape, strides, offset=0, elements=4, compression=zipfile.ZIP_STORED):
        """Writes a pytorch_model.bin with one tensor, a view of a storage of FP32 elements. Returns its folder."""
        folder = self.pytorch_folder()
        # A pickle by hand: torch._utils._rebuild_tensor_v2(storage, offset, shape, strides, False, OrderedDict()).
        number = lambda value: pickle.dumps(value, 2)[2:-1]
        rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n"
        storage = (b"(" + number("storage") + b"ctorch\nFloatStorage\n" + number("0") + number("cpu") +
                   number(elements) + b"tQ")
        call = (rebuild + b"(" + storage + number(offset) + number(tuple(shape)) + number(tuple(strides)) + b"\x89" +
                b"ccollections\nOrderedDict\n)R" + b"tR")
        with zipfile.ZipFile(folder / "pytorch_model.bin", "w", compression) as archive:
            archive.writestr("archive/data.pkl", b"\x80\x02}" + number("a") + call + b"s.")
            archive.writestr("archive/data/0", b"\0\0\x80\x3f" * elements)
        return folder

    def test_a_pytorch_tensor_is_no_larger_than_its_data(self):
        script = "pytorch_checkpoint.py"
        self.assertEqual(run(script, self.pytorch_file((2, 2), (2, 1)), "--out", self.path / "new").returncode, 0)
        self.assertEqual(read_safetensors(self.path / "new/model.safetensors")["a"].shape, (2, 2))
        for shape, strides, offset in [((200000, 200000), (0, 0), 0), ((5,), (1,), 0), ((2, 2), (2, 1), 1),
                                       ((2**62, 4), (0, 0), 0)]:
            with self.subTest(shape=shape, strides=strides, offset=offset):
                self.refused("lies outside its data", self.pytorch_file(shape, strides, offset), script=script)
        for shape, strides, offset in [((-2, 2), (2, 1), 0), ((1.5, 2), (2, 1), 0), ((2, 2), (-2, 1), 0), ((2, 2), (2,), 0),
                                       ((2, 2), (2, 1), -1), ((True, 2), (2, 1), 0), (("2",), (1,), 0)]:
            with self.subTest(shape=shape, strides=strides, offset=offset):
                self.refused("are no whole numbers of elements", self.pytorch_file(shape, strides, offset),
                             script=script)
        self.refused("a tensor of 40 dimensions", self.pytorch_file((1,) * 40, (1,) * 40), script=script)
        self.refused("its data are compressed",
                     self.pytorch_file((1000,), (1,), elements=1000, compression=zipfile.ZIP_DEFLATED), script=script)

    def test_the_index_of_a_pytorch_folder_stays_in_the_folder(self):
        folder = self.pytorch_folder()
        (folder / "pytorch_model.bin").rename(self.path / "outside.bin")
        for name in "../outside.bin", str(self.path / "outside.bin"), "..", "", 7, None:
            with self.subTest(name):
                (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
                self.refused("gives no plain file name as the part of tensor 'a'", folder,
                             script="pytorch_checkpoint.py")

    def test_rounded_weights_are_those_of_the_gguf_type(self):
        # A file that was quantized: rounding it to its own type again changes nothing.
        folder = self.convert("q4_1")
        original = read_safetensors(folder / "model.safetensors")
        done = run("round_checkpoint.py", folder, "--out", self.path / "again", "--embedding", "Q4_1")
        self.assertEqual(done.returncode, 0, done.stderr)
        again = read_safetensors(self.path / "again/model.safetensors")
        self.assertEqual(set(again), set(original))
        for name, values in original.items():
            # FP16 rounds the block's minimum and step, so that not every value comes back to the last bit.
            np.testing.assert_allclose(again[name], values, atol=2e-3 * np.abs(values).max(), err_msg=name)
        self.assertEqual((self.path / "again/config.json").read_bytes(), (folder / "config.json").read_bytes())
        # Weights that were never quantized: matrices move by up to half a step of their block, vectors not at all.
        folder = self.convert("f32")
        done = run("round_checkpoint.py", folder, "--out", self.path / "rounded", "--type", "Q4_1", "--embedding", "Q8_0")
        self.assertEqual(done.returncode, 0, done.stderr)
        original, rounded = read_safetensors(folder / "model.safetensors"), read_safetensors(self.path / "rounded/model.safetensors")
        for name, values in original.items():
            if values.ndim == 1:
                np.testing.assert_array_equal(rounded[name], values, name)
                continue
            blocks, new = values.reshape(-1, 32), rounded[name].reshape(-1, 32)
            span = blocks.max(1, keepdims=True) - blocks.min(1, keepdims=True)
            step = 2 * np.abs(blocks).max(1, keepdims=True) / 254 if "embed" in name or "lm_head" in name else span / 15
            self.assertTrue((np.abs(new - blocks) <= 0.51 * step + 1e-3 * np.abs(blocks).max()).all(), name)
            self.assertGreater(np.abs(new - blocks).max(), 0.3 * step.min(), name)

    def test_a_checkpoint_that_cannot_be_rounded_is_refused(self):
        folder, script = self.convert("f32"), "round_checkpoint.py"
        file = folder / "model.safetensors"
        data = file.read_bytes()
        for size in 0, 4, 100, len(data) - 1:
            file.write_bytes(data[:size])
            self.refused("model.safetensors: truncated, or not a safetensors file", folder, script=script)
        text = json.dumps({"a": {"dtype": "F32", "shape": [2, 24], "data_offsets": [0, 192]}}).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(192))
        self.refused("tensor a: rows of 24 values cannot be divided into blocks of Q4_1", folder, script=script)
        file.unlink()
        self.refused("model.safetensors: No such file or directory", folder, script=script)

    def test_bases_of_three_precisions_are_studied_alike(self):
        self.need_precbench()
        out = self.path / "out"
        shutil.copytree(self.convert("f32"), out / "model")
        random = np.random.default_rng(1)
        for name, size in ("text.u16", 4000), ("text.eval.u16", 400):
            (out / name).write_bytes(random.integers(0, 300, size).astype("<u2").tobytes())
        config = self.path / "study.toml"
        config.write_text('[work]\nrecipe = ["rowwise"]\n[trunk]\ntrunks = 1\nages = [2]\nwarmup = 0\nlr = 1e-3\n'
                          '[fork]\nsteps = 12\nwarmup = 0\n[fidelity]\nbatches = 0\n[ladder]\noutlier_ffn = []\n'
                          'learning_rate = []\nbits = 0\n[control]\napart = []\nbreak = []\n')
        flags = ["--device", "cpu", "--seq", "32", "--batch", "2", "--eval-tokens", "320"]
        def compare(**settings):
            environment = {**os.environ, "PYTHON": sys.executable, "PRECBENCH": str(PRECBENCH), "STEPS": "12",
                           "CONFIG": str(config), **settings}
            return subprocess.run([HERE / "base_precision.sh", out, *flags], capture_output=True, text=True,
                                  timeout=300, env=environment)
        done = compare(TEXT="text")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = dict(line.split(": ", 1) for line in done.stdout.splitlines()[-3:])
        self.assertEqual(list(lines), ["as-is", "Q4_1", "Q8_0"])
        losses = {name: float(line.split(",")[0]) for name, line in lines.items()}
        # The control: Q4_1 moves the weights, and with them BF16's own loss, more than Q8_0.
        self.assertGreater(abs(losses["Q4_1"] - losses["as-is"]), abs(losses["Q8_0"] - losses["as-is"]))
        # The step that reads the base's loss moves no weight: that loss is the one with which the 500 steps ended.
        trained = json.loads((out / "base/train/records.jsonl").read_text())["training"]["evaluations"][-1]["loss"]
        self.assertAlmostEqual(losses["as-is"], trained, 3)
        for line in lines.values():
            self.assertRegex(line, r"^\d+\.\d{4}, \d+\.\d{4}; rowwise [+-]\d\.\d{5}, [+-]\d\.\d{5}, [+-]\d\.\d{5}$")
        weights = {name: read_safetensors(out / "base" / name / "model.safetensors") for name in lines}
        matrix = "model.layers.0.mlp.down_proj.weight"
        moved = {name: np.abs(values[matrix] - weights["as-is"][matrix]).max() for name, values in weights.items()}
        self.assertGreater(moved["Q4_1"], 4 * moved["Q8_0"])
        self.assertGreater(moved["Q8_0"], 0)
        again = compare(TEXT="text")  # nothing runs twice
        self.assertEqual((again.returncode, again.stdout.splitlines()[-3:]), (0, done.stdout.splitlines()[-3:]))
        missing = compare(TEXT="prose")
        self.assertEqual((missing.returncode, missing.stderr.count("\n")), (2, 1), missing.stderr)
        self.assertIn("prose.u16, .u32 and .jsonl do not exist", missing.stderr)

    def test_rowwise_f32_differs_from_rowwise_in_its_scales_alone(self):
        self.need_precbench()
        def printed(recipe):
            done = subprocess.run([PRECBENCH, "list", "recipes", "--recipe", recipe], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)
        ours, rowwise = printed(HERE / "causes/rowwise_f32.json"), printed("rowwise")
        for gemm in "fprop", "dgrad", "wgrad":
            for operand in "a", "b":
                self.assertEqual((ours[gemm][operand].pop("scale"), rowwise[gemm][operand].pop("scale")),
                                 ("f32", "f32_pow2"))
        for recipe in ours, rowwise:
            del recipe["name"], recipe["reference"]
        self.assertEqual(ours, rowwise)

    def test_every_study_file_plans_a_study(self):
        self.need_precbench()
        folder = self.convert("q4_1")
        (self.path / "text.u16").write_bytes(bytes(2 * 140_000))
        names = "ten_minutes", "trained_study", "lora_study"
        files = [*HERE.glob("causes/*.toml"), *HERE.glob("sizes/*.toml"), *(HERE / f"{name}.toml" for name in names)]
        self.assertGreaterEqual(len(files), 11)
        recipe = {"ten_minutes": ["--recipe", "rowwise"]}  # its command names them
        for file in files:
            with self.subTest(file.name):
                flags = ["--config", file, "--model", folder, "--init-from", folder, "--data", self.path / "text.u16",
                         "--eval-data", self.path / "text.u16", "--seq", str(T), "--batch", "2",
                         *recipe.get(file.stem, [])]
                done = subprocess.run([PRECBENCH, "study", "--device", "cuda", "--dry-run", "--json", *flags],
                                      capture_output=True, text=True, cwd=HERE.parents[1])
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertGreater(json.loads(done.stdout)["parts"][-1]["cases"], 10)

    def test_an_output_that_cannot_be_written_is_refused(self):
        (self.path / "file").write_text("")
        done = run("gguf_checkpoint.py", self.write(), "--no-tokenizer", "--out", self.path / "file")
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
        self.assertIn("File exists", done.stderr)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        PRECBENCH = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
