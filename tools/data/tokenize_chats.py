#!/usr/bin/env python3
"""Converts conversations to documents of prompt and answer for `precbench --data FILE.jsonl`: token ids, by the chat
template of the model's own tokenizer. PREFIX.jsonl has those to train on, PREFIX.eval.jsonl held-out ones for --eval-data,
PREFIX.json describes both.

  tools/data/tokenize_chats.py --tokenizer FOLDER --out PREFIX INPUT.jsonl...

A row of INPUT has `messages`, a list of objects with `role` and `content`, as chat templates take them. The last message
must be the assistant's: it is the answer, and what precedes it is the prompt. A row with `prompt` and `answer`, two texts,
stands for a message of the user and one of the assistant. FOLDER is that of a Hugging Face model or tokenizer, or a name on
the hub if there is a network. Tokenizers of base models have no template: --chat-template names a Jinja file with one. With
--most N, documents of more than N tokens are left out and counted; for --seq T, N is T + 1. A hash of the conversation
decides whether it is held out. Equal input gives equal bytes.

Needs: pip install transformers jinja2.
"""
import argparse
import json
import os
import pathlib

from output_files import OutputFile, add_held_out, check_held_out, document_line, fail, is_held_out


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", metavar="INPUT")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True, metavar="PREFIX")
    add_held_out(parser)
    parser.add_argument("--chat-template", metavar="FILE", help="Jinja template instead of the tokenizer's own")
    parser.add_argument("--most", type=int, metavar="N", help="leave out documents of more than N tokens")
    arguments = parser.parse_args()
    check_held_out(arguments.held_out)
    return arguments


def load_tokenizer(name, template):
    try:
        from transformers import AutoTokenizer
    except ImportError:
        fail("needs the Python packages transformers and jinja2: pip install transformers jinja2")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # the library raises many kinds
        fail(f"--tokenizer {name}: {str(error).splitlines()[0]}")
    if template:
        try:
            tokenizer.chat_template = pathlib.Path(template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            fail(f"--chat-template {template}: {getattr(error, 'strerror', None) or error}")
    if not tokenizer.chat_template:
        fail(f"--tokenizer {name}: has no chat template; --chat-template FILE gives one")
    return tokenizer


def messages_of(row):
    """Returns a row's messages, or a string that says what is wrong with it."""
    if not isinstance(row, dict):
        return "not a JSON object"
    messages = row.get("messages")
    if messages is None and isinstance(row.get("prompt"), str) and isinstance(row.get("answer"), str):
        messages = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["answer"]}]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return "neither messages nor texts named prompt and answer"
    if not messages or messages[-1].get("role") != "assistant":
        return "the last message is not the assistant's"
    return messages


def rows_of(inputs):
    """Yields where a row stands and its messages."""
    for path in inputs:
        try:
            with open(path, encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    if not line.strip():
                        continue
                    try:
                        messages = messages_of(json.loads(line))
                    except ValueError:
                        messages = "not JSON"
                    if isinstance(messages, str):
                        fail(f"{path}:{number}: {messages}")
                    yield f"{path}:{number}", messages
        except OSError as error:
            fail(f"{path}: {error.strerror}")


def document_of(tokenizer, place, messages):
    """Returns the ids of prompt and answer."""
    try:
        prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
        whole = tokenizer.apply_chat_template(messages, return_dict=False)
    except Exception as error:  # templates raise errors of their own
        fail(f"{place}: the chat template refuses it: {error}")
    if whole[:len(prompt)] != prompt or len(whole) == len(prompt):
        fail(f"{place}: in the chat template's text the answer does not follow the prompt")
    return prompt, whole[len(prompt):]


class DocumentFile(OutputFile):
    def __init__(self, path):
        super().__init__(path)
        self.documents, self.tokens, self.answers = 0, 0, 0

    def add(self, prompt, answer):
        self.write(document_line(prompt, answer))
        self.documents += 1
        self.tokens += len(prompt) + len(answer)
        self.answers += len(answer)

    def finish(self):
        return super().finish() | {"documents": self.documents, "tokens": self.tokens, "answer_tokens": self.answers}


def main():
    arguments = parse_arguments()
    tokenizer = load_tokenizer(arguments.tokenizer, arguments.chat_template)
    rows = rows_of(arguments.inputs)
    try:
        pathlib.Path(arguments.out).parent.mkdir(parents=True, exist_ok=True)
        training, held_out = DocumentFile(arguments.out + ".jsonl"), DocumentFile(arguments.out + ".eval.jsonl")
    except OSError as error:
        fail(f"--out {arguments.out}: {error.strerror}")
    longest, left_out = 0, 0
    try:
        for place, messages in rows:
            prompt, answer = document_of(tokenizer, place, messages)
            size = len(prompt) + len(answer)
            if arguments.most is not None and size > arguments.most:
                left_out += 1
                continue
            longest = max(longest, size)
            (held_out if is_held_out(json.dumps(messages, sort_keys=True), arguments.held_out) else training).add(prompt, answer)
        if training.documents == 0:
            fail("the input has no document to train on")
    except SystemExit:
        training.discard(), held_out.discard()
        raise
    manifest = {"tokenizer": os.path.basename(os.path.normpath(arguments.tokenizer)), "vocab": len(tokenizer),
                "longest": longest, "left_out": left_out, "training": training.finish(), "held_out": held_out.finish()}
    text = json.dumps(manifest, indent=2) + "\n"
    pathlib.Path(arguments.out + ".json").write_text(text)
    print(text, end="")


main()
