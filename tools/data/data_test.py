#!/usr/bin/env python3
"""Tests of the scripts that make token files and documents, with a tokenizer trained here on synthetic text.

Usage: tools/data/data_test.py [PRECBENCH, default build/precbench, which must read the scripts' output]

Skipped without the Python packages tokenizers, transformers and jinja2, as the program itself needs none.
"""
import array
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

try:
    import jinja2  # noqa: F401: transformers' chat templates need it
    import tokenizers
    import transformers  # noqa: F401
except ImportError as error:
    print(f"tools/data/data_test.py: skipped: {error} (tools/setup/python_packages.sh)")
    sys.exit(0)

HERE = pathlib.Path(__file__).resolve().parent
PRECBENCH = HERE.parents[1] / "build/precbench"
SEPARATOR = "<|endoftext|>"


def documents(count):
    words = "the a kernel\tlock page of waits for frees über schließt ε 🙂 while (i < n)\r\n { }".split(" ")
    chosen = random.Random(7)
    return [f"{i}: " + " ".join(chosen.choice(words) for _ in range(40)) for i in range(count)]


def run(script, *arguments):
    return subprocess.run([sys.executable, HERE / script, *map(str, arguments)], capture_output=True, text=True)


class Data(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        cls.documents = documents(120)
        (cls.path / "texts").mkdir()
        for i, text in enumerate(cls.documents):
            (cls.path / f"texts/{i:03}.txt").write_bytes(text.encode())
        (cls.path / "list").write_text("\n".join(str(path) for path in sorted((cls.path / "texts").iterdir())))
        cls.tokenizer = cls.path / "tokenizer.json"
        cls.train(cls.tokenizer)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def train(cls, out):
        trained = run("train_bpe.py", "--vocab", 320, "--out", out, f"@{cls.path}/list")
        assert trained.returncode == 0, trained.stderr

    def tokenize(self, name, *arguments):
        """Returns the manifest, and the bytes of the training and held-out files."""
        prefix = self.path / name
        done = run("tokenize_text.py", "--tokenizer", self.tokenizer, "--out", prefix, "--held-out", 0.2, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        manifest = json.loads(prefix.with_name(prefix.name + ".json").read_text())
        self.assertEqual(list(prefix.parent.glob("*.tmp")), [])
        return manifest, *((prefix.parent / manifest[part]["file"]).read_bytes() for part in ("training", "held_out"))

    def texts_of(self, data):
        tokens = array.array("H", data)
        if sys.byteorder == "big":
            tokens.byteswap()
        tokenizer = tokenizers.Tokenizer.from_file(str(self.tokenizer))
        texts, document = [], []
        for token in tokens:
            if token != tokenizer.token_to_id(SEPARATOR):
                document.append(token)
                continue
            texts.append(tokenizer.decode(document))
            document = []
        self.assertEqual(document, [], "the last document has its separator, too")
        return texts

    def refused(self, word, *arguments):
        done = run("tokenize_text.py", "--out", self.path / "refused", *arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        line = done.stderr.strip().splitlines()[-1]
        self.assertIn(word, line)
        self.assertNotIn("Traceback", done.stderr)

    def test_twice_gives_the_same_bytes(self):
        self.train(self.path / "again.json")
        self.assertEqual((self.path / "again.json").read_bytes(), self.tokenizer.read_bytes())
        self.assertEqual(self.tokenize("first/same", self.path / "texts"), self.tokenize("second/same", self.path / "texts"))

    def test_every_document_is_either_trained_on_or_held_out_and_comes_back(self):
        manifest, training, held_out = self.tokenize("corpus", self.path / "texts")
        trained, held = self.texts_of(training), self.texts_of(held_out)
        self.assertEqual(sorted(trained + held), sorted(self.documents))
        self.assertFalse(set(trained) & set(held))
        self.assertTrue(5 < len(held) < 60)  # a fifth of 120, by a hash
        self.assertEqual((manifest["training"]["documents"], manifest["held_out"]["documents"]), (len(trained), len(held)))
        self.assertEqual((manifest["training"]["tokens"], manifest["vocab"]), (len(training) // 2, 320))
        self.assertEqual(manifest["training"]["bytes"], sum(len(text.encode()) for text in trained))

    def test_the_same_documents_however_they_come(self):
        def write(name, text):
            (self.path / name).write_bytes(text.encode())
            return self.path / name
        expected = self.tokenize("folder", self.path / "texts")[1:]
        lines = "\n".join(json.dumps({"text": text, "id": 1}) for text in self.documents)
        self.assertEqual(self.tokenize("list", f"@{self.path}/list")[1:], expected)
        self.assertEqual(self.tokenize("lines", write("d.jsonl", lines + "\n\n"))[1:], expected)
        self.assertEqual(self.tokenize("one", write("one.txt", SEPARATOR.join(self.documents)))[1:], expected)

    def test_a_limit_ends_with_a_whole_document(self):
        _, whole, _ = self.tokenize("whole", self.path / "texts")
        _, part, _ = self.tokenize("part", "--tokens", 1000, self.path / "texts")
        self.assertTrue(whole.startswith(part))
        self.assertTrue(1000 <= len(part) // 2 < 1300)
        self.texts_of(part)

    def test_bytes_are_the_same_documents_as_text(self):
        manifest, training, held_out = self.tokenize("text", "--tokenizer", "bytes", self.path / "texts")
        tokenized, *expected = self.tokenize("corpus", self.path / "texts")
        for data, tokens in zip((training, held_out), expected):
            self.assertEqual(data.decode().split(SEPARATOR), self.texts_of(tokens) + [""])
        self.assertEqual(manifest["training"]["file"], "text.txt")
        self.assertEqual(manifest["training"]["documents"], tokenized["training"]["documents"])
        self.assertEqual(manifest["training"]["tokens"], len(training.replace(SEPARATOR.encode(), b"0")))
        self.refused("--separator </s>", "--tokenizer", "bytes", "--separator", "</s>", self.path / "texts")

    def test_a_large_vocabulary_takes_four_bytes(self):
        tokenizer = tokenizers.Tokenizer.from_file(str(self.tokenizer))
        tokenizer.add_tokens([f"<extra {i}>" for i in range(66000)])
        tokenizer.save(str(self.path / "large.json"))
        manifest, training, _ = self.tokenize("large", "--tokenizer", self.path / "large.json", self.path / "texts")
        self.assertEqual((manifest["training"]["file"], manifest["vocab"]), ("large.u32", 66320))
        self.assertEqual(len(training), 4 * manifest["training"]["tokens"])

    def test_what_a_tokenizers_file_carries_from_fine_tuning_changes_no_token(self):
        expected = self.tokenize("whole", self.path / "texts")[1:]

        def tokenized_with(carried, change):
            tokenizer = tokenizers.Tokenizer.from_file(str(self.tokenizer))
            change(tokenizer)
            tokenizer.save(str(self.path / "carries.json"))
            done = run("tokenize_text.py", "--tokenizer", self.path / "carries.json", "--out", self.path / "carried",
                       "--held-out", 0.2, self.path / "texts")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"switches on {carried}: not used", done.stderr)
            return (self.path / "carried.u16").read_bytes(), (self.path / "carried.eval.u16").read_bytes()

        def drop(tokenizer):
            tokenizer.model.dropout = 0.9

        def cut_and_fill(tokenizer):
            tokenizer.enable_truncation(max_length=8, stride=2)
            tokenizer.enable_padding(length=512, pad_id=1, pad_token="!")

        padding = {"pad_id": 1, "pad_token": "!"}
        self.assertEqual(tokenized_with("truncation", lambda t: t.enable_truncation(max_length=8)), expected)
        self.assertEqual(tokenized_with("padding", lambda t: t.enable_padding(length=512, **padding)), expected)
        self.assertEqual(tokenized_with("padding", lambda t: t.enable_padding(**padding)), expected)
        self.assertEqual(tokenized_with("truncation and padding", cut_and_fill), expected)
        self.assertEqual(tokenized_with("dropout", drop), expected)

    def test_sequences_can_begin_with_a_token(self):
        _, training, held_out = self.tokenize("plain", self.path / "texts")
        manifest, *documents = self.tokenize("begin", "--begin", SEPARATOR, "--seq", 48, self.path / "texts")
        first = tokenizers.Tokenizer.from_file(str(self.tokenizer)).token_to_id(SEPARATOR)
        for name, tokens, lines in zip(("training", "held_out"), (training, held_out), documents):
            expected, rows = list(array.array("H", tokens)), [json.loads(line) for line in lines.splitlines()]
            self.assertTrue(all(row["prompt"] == [first] and len(row["answer"]) == 48 for row in rows))
            joined = [token for row in rows for token in row["answer"]]
            self.assertEqual((joined, len(rows)), (expected[:len(joined)], len(expected) // 48))
            self.assertEqual(manifest[name]["tokens"], len(joined))
        self.refused("--begin and --seq need each other", "--tokenizer", self.tokenizer, "--seq", 48, self.path / "texts")
        self.refused("no token <bos>", "--tokenizer", self.tokenizer, "--begin", "<bos>", "--seq", 48, self.path / "texts")

    def test_bad_input_is_one_line(self):
        text = self.path / "texts/000.txt"
        (self.path / "bad.jsonl").write_text('{"text": "good"}\n{"text": 7}\n')
        self.refused("none.json: no such file", "--tokenizer", self.path / "none.json", text)
        self.refused("bad.jsonl:2: not a JSON object", "--tokenizer", self.tokenizer, self.path / "bad.jsonl")
        self.refused("none.txt: No such file", "--tokenizer", self.tokenizer, self.path / "none.txt")
        self.refused("no token </s>", "--tokenizer", self.tokenizer, "--separator", "</s>", text)
        self.refused("--held-out 1.0", "--tokenizer", self.tokenizer, "--held-out", 1, text)
        (self.path / "empty.txt").write_text("")
        self.refused("no document", "--tokenizer", self.tokenizer, self.path / "empty.txt")
        self.assertEqual(list(self.path.glob("refused*")), [])

    def test_precbench_trains_on_one_file_and_evaluates_on_the_other(self):
        if not PRECBENCH.exists():
            self.skipTest(f"{PRECBENCH} is not built")
        self.tokenize("read", self.path / "texts")
        model = self.path / "model.json"
        model.write_text(json.dumps({"layers": 1, "width": 64, "ffn": 128, "heads": 2, "vocab": 320}))
        done = subprocess.run([PRECBENCH, "sweep", "--model", model, "--device", "cpu", "--seq", "32", "--batch", "2",
                               "--steps", "3", "--data", self.path / "read.u16", "--eval-data", self.path / "read.eval.u16",
                               "--eval-tokens", "128", "--out", self.path / "out"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        records = [json.loads(line) for file in (self.path / "out").rglob("*.jsonl") for line in file.read_text().splitlines()]
        self.assertEqual([record["status"] for record in records], ["ok"])
        evaluation, = records[0]["training"]["evaluations"]
        self.assertEqual((evaluation["step"], evaluation["tokens"]), (3, 128))
        self.assertTrue(5 < evaluation["loss"] < 6.5)  # ln 320 = 5.77
        self.assertEqual(records[0]["definition"]["data"]["kind"], "u16")


CHAT_TEMPLATE = ("{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|endoftext|>' }}{% endfor %}"
                 "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")


class Chats(unittest.TestCase):
    """Documents of conversations, with the same tokenizer and a chat template."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        (self.path / "text.txt").write_text(" ".join(documents(120)))
        (self.path / "list").write_text(f"{self.path}/text.txt")
        self.model = self.path / "model"
        self.model.mkdir()
        trained = run("train_bpe.py", "--vocab", 320, "--out", self.model / "tokenizer.json", f"@{self.path}/list")
        self.assertEqual(trained.returncode, 0, trained.stderr)
        self.write_template(CHAT_TEMPLATE)

    def write_template(self, template):
        (self.model / "tokenizer_config.json").write_text(json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SEPARATOR, "chat_template": template}))

    def convert(self, rows, *arguments):
        (self.path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return run("tokenize_chats.py", "--tokenizer", self.model, "--out", self.path / "out/chats", *arguments,
                   self.path / "chats.jsonl")

    def read(self, name):
        return [json.loads(line) for line in (self.path / "out" / name).read_text().splitlines()]

    def test_the_answer_is_the_last_message(self):
        turns = [{"role": "user", "content": "lock the page"}, {"role": "assistant", "content": "wait"},
                 {"role": "user", "content": "why"}, {"role": "assistant", "content": "kernel frees"}]
        done = self.convert([{"messages": turns}, {"prompt": "the page", "answer": "a lock"}], "--held-out", 0)
        self.assertEqual(done.returncode, 0, done.stderr)
        tokenizer = tokenizers.Tokenizer.from_file(str(self.model / "tokenizer.json"))
        texts = [tuple(tokenizer.decode(document[part], skip_special_tokens=False) for part in ("prompt", "answer"))
                 for document in self.read("chats.jsonl")]
        self.assertEqual(texts, [("<|user|>lock the page<|endoftext|><|assistant|>wait<|endoftext|><|user|>why<|endoftext|>"
                                  "<|assistant|>", "kernel frees<|endoftext|>"),
                                 ("<|user|>the page<|endoftext|><|assistant|>", "a lock<|endoftext|>")])

    def test_truncation_and_padding_in_the_tokenizers_file_change_no_document(self):
        rows = [{"prompt": f"page {i} of the kernel waits for a lock", "answer": "lock " * (1 + i % 10)}
                for i in range(20)]
        self.assertEqual(self.convert(rows, "--held-out", 0).returncode, 0)
        expected = self.read("chats.jsonl")
        tokenizer = tokenizers.Tokenizer.from_file(str(self.model / "tokenizer.json"))
        tokenizer.enable_truncation(max_length=8)
        tokenizer.enable_padding(length=64, pad_id=1, pad_token="!")
        tokenizer.save(str(self.model / "tokenizer.json"))
        self.assertEqual(self.convert(rows, "--held-out", 0).returncode, 0)
        self.assertEqual(self.read("chats.jsonl"), expected)

    def test_documents_are_held_out_by_a_hash_and_long_ones_left_out(self):
        rows = [{"prompt": f"page {i}", "answer": "lock " * (i % 10)} for i in range(200)]
        done = self.convert(rows, "--held-out", 0.2, "--most", 40)
        self.assertEqual(done.returncode, 0, done.stderr)
        manifest = json.loads((self.path / "out/chats.json").read_text())
        trained, held = self.read("chats.jsonl"), self.read("chats.eval.jsonl")
        self.assertTrue(10 < len(held) < 80)
        self.assertTrue(manifest["left_out"] > 0 and manifest["longest"] <= 40)
        self.assertEqual(len(trained) + len(held) + manifest["left_out"], 200)
        self.assertEqual(manifest["training"]["answer_tokens"], sum(len(document["answer"]) for document in trained))

    def test_bad_input_is_one_line_and_leaves_no_file(self):
        def refused(word, rows):
            done = self.convert(rows)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(word, done.stderr.strip().splitlines()[-1])
            self.assertNotIn("Traceback", done.stderr)
            self.assertEqual([path.name for path in (self.path / "out").iterdir()], [])
        good = {"prompt": "the page", "answer": "a lock"}
        refused("chats.jsonl:2: neither messages nor texts", [good, {"text": "lock"}])
        refused("chats.jsonl:1: the last message is not the assistant's", [{"messages": [{"role": "user", "content": "a"}]}])
        refused("no document to train on", [])
        self.write_template("{% for message in messages %}{{ message.content }}{% endfor %}"
                            "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
        refused("the answer does not follow the prompt", [good])
        self.write_template("")
        refused("has no chat template", [good])

    def test_a_template_can_come_from_a_file(self):
        self.write_template("")
        (self.path / "template").write_text(CHAT_TEMPLATE)
        row = {"prompt": "the page", "answer": "a lock"}
        done = self.convert([row], "--held-out", 0, "--chat-template", self.path / "template")
        self.assertEqual(done.returncode, 0, done.stderr)
        tokenizer = tokenizers.Tokenizer.from_file(str(self.model / "tokenizer.json"))
        self.assertEqual(tokenizer.decode(self.read("chats.jsonl")[0]["answer"]), "a lock")
        self.assertIn("No such file", self.convert([row], "--chat-template", self.path / "none").stderr)

    def test_precbench_trains_on_the_documents(self):
        if not PRECBENCH.exists():
            self.skipTest(f"{PRECBENCH} is not built")
        done = self.convert([{"prompt": f"page {i}", "answer": "lock"} for i in range(100)], "--held-out", 0.2)
        self.assertEqual(done.returncode, 0, done.stderr)
        model = self.path / "model.json"
        model.write_text(json.dumps({"layers": 1, "width": 64, "ffn": 128, "heads": 2, "vocab": 320}))
        done = subprocess.run([PRECBENCH, "sweep", "--model", model, "--device", "cpu", "--seq", "32", "--batch", "2",
                               "--steps", "3", "--data", self.path / "out/chats.jsonl", "--eval-data",
                               self.path / "out/chats.eval.jsonl", "--eval-tokens", "128", "--out", self.path / "records"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        record, = (json.loads(line) for line in (self.path / "records/records.jsonl").read_text().splitlines())
        self.assertEqual((record["status"], record["definition"]["data"]["kind"]), ("ok", "jsonl"))
        self.assertTrue(any("padding" in warning for warning in record["warnings"]), record["warnings"])


if len(sys.argv) > 1:
    PRECBENCH = pathlib.Path(sys.argv.pop(1)).resolve()
unittest.main()
