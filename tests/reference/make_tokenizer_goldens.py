#!/usr/bin/env python3
"""Writes token ids by Hugging Face's `tokenizers` for vocabularies that lie in GGUF files.

Usage: make_tokenizer_goldens.py --out goldens/tokenizer.json NAME=FILE.gguf [NAME=FILE.gguf ...]
NAME is one of smollm2, qwen2, llama-bpe, gpt-2; it chooses normaliser and pre-tokenizer as the
model's own tokenizer.json has them. Needs: gguf, tokenizers.
"""

import json
import pathlib
import random
import sys

from gguf import GGUFReader
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

SEED = 20261129
RANDOM_TEXTS = 160

WORDS_BY_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def configure(name, tokenizer):
    if name == "smollm2":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ])
    elif name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = split_then_bytes(WORDS_BY_CONTRACTION % "")
    elif name == "llama-bpe":
        tokenizer.pre_tokenizer = split_then_bytes(WORDS_BY_CONTRACTION % "{1,3}")
    elif name == "gpt-2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        sys.exit(f"unknown vocabulary {name!r}")


def strings(reader, key):
    field = reader.fields[key]
    return [bytes(field.parts[i]).decode("utf-8") for i in field.data]


def load(name, path):
    reader = GGUFReader(path)
    tokens = strings(reader, "tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ", 1)) for m in strings(reader, "tokenizer.ggml.merges")]
    vocab = {}
    for i, token in enumerate(tokens):
        vocab.setdefault(token, i)
    tokenizer = Tokenizer(BPE(vocab, merges, ignore_merges=name == "llama-bpe"))
    configure(name, tokenizer)
    return tokenizer


FIXED = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r\n\r\n", "\t", "\t\t", " \n", "\n ", "a\r\nb\r\n", "a \t b",
    "Hello", " Hello", "Hello world", "Hello, world!", "HELLO WORLD", "hello  world   twice", "trailing space ",
    "I'm you're he'll we've it's she'd don't", "I'M YOU'RE HE'LL WE'VE IT'S SHE'D DON'T", "'RE 'Ve 'lL 'S 'T",
    "’s typographic ’re", "'", "''", "'s", "s'", "rock'n'roll", "O'Neil's",
    "0", "12", "123", "1234", "12345", "333333333", "3.14159", "1,000,000.00", "v1.2.3-rc4", "0x1F", "1e-10",
    "१२३४", "٣٤٥", "ⅣⅧ", "½ ¾ ²³", "①②③", "ied 4 ½ months", "(x):\n", "->", "=>", "!=", "<=>", "::", "...", "!!!!!!",
    "--", "__init__", "snake_case_name", "camelCaseName", "PascalCase", "SCREAMING_CASE", "a_b-c.d",
    "def f(x):\n    return x + 1\n", "int main() { return 0; }\n", "for (i=0;i<10;++i){\n\t\tx[i]+=1;\n\t}\n",
    "#include <vector>\n\n#define X(a) #a\n", "SELECT * FROM t WHERE a = 'b';", "{\"a\": [1, 2.5, null], \"b\": \"c\\n\"}",
    "<div class=\"x\">text</div>", "```python\nprint('hi')\n```", "https://example.org/a/b?c=d&e=f#g", "user@example.org",
    "$HOME/.cache", "C:\\Users\\x", "a+b=c", "x²+y²=z²", "100%", "€5 £6 ¥7", "§ 4 ¶ 2", "~/^|`",
    "Äpfel", "naïve café", "e\u0301", "é", "cafe\u0301 au lait", "A\u030A Å \u212B", "o\u0302\u0323 ộ", "q\u0307\u0323 q\u0323\u0307",
    "\u1100\u1161\u11a8 각", "\u0958 क़", "\ufb01 ligature", "Ω \u2126", "\u0344", "\u0f73", "a\u0315\u0300\u05ae\u0062",
    "नमस्ते दुनिया", "สวัสดีชาวโลก", "Cửa Việt", " Việt", "нещо на Български", "Ελληνικά κείμενο", "שלום עולם", "مرحبا بالعالم",
    "កាន់តែពិសេស", "ქართული", "Հայերեն", "አማርኛ", "日本語のテキスト", "한국어 텍스트", "我想在apple工作1314151天～", "中文，标点。「引号」",
    "𠮷野家", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "ﬁ ﬂ", "Ａｂｃ１２３",
    "😀", "🚀🚀", "😶‍🌫️", "👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "1️⃣", "❤️", "text 🦙 text", "✅ done", "☕️.",
    "a\u00a0b", "a\u2003b", "a\u3000b", "a\u2028b\u2029c", "a\u0085b", "a\u200bb", "a\u180eb", "\ufeffbom", "soft\u00adhyphen", "\u200f\u202e",
    "\x00", "\x01\x02", "\x7f", "\x1b[31mred\x1b[0m", "a\x0bb\x0cc", "bell\x07", "nul\x00mid", "missing \x04 byte", " \x04!", "\x06\x13\x14\x16",
    "<|im_start|>user\nHi<|im_end|>\n", "<|endoftext|>", "<|begin_of_text|>x", "<s></s>", "[INST] x [/INST]",
    "A" * 100, "_" * 70, "=" * 80, " " * 65, "\n" * 40, "ab" * 60, "^" * 33, "中" * 40, "." * 32, "-" * 64, "\t" * 20 + "x", " " * 31 + "x", "🙂" * 12,
    "The quick brown fox jumps over the lazy dog. " * 2, "Lorem ipsum dolor sit amet, consectetur adipiscing elit.",
]

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", "      ", "\n\r\t ", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "'s't're've'm'll'd'S'RE", "äöüßéèêñçøåœ", "\u0300\u0301\u0302\u0308\u0323\u0327", "абвгдежз", "αβγδε", "你好世界中文", "かなカナ", "안녕하세요",
    "\u0915\u093f\u0924\u094d\u092f", "😀🚀✨👍❤\u200d\ufe0f", "½²٣Ⅳ", "\u00a0\u2003\u3000",
]


def random_text(rng):
    parts = []
    for _ in range(rng.randint(2, 14)):
        alphabet = rng.choice(ALPHABETS)
        parts.append("".join(rng.choice(alphabet) for _ in range(rng.randint(1, 6))))
        if rng.random() < 0.4:
            parts.append(" ")
    return "".join(parts)


def main():
    if len(sys.argv) < 4 or sys.argv[1] != "--out":
        sys.exit(__doc__)
    rng = random.Random(SEED)
    texts = FIXED + [random_text(rng) for _ in range(RANDOM_TEXTS)]
    ids = {}
    for argument in sys.argv[3:]:
        name, path = argument.split("=", 1)
        tokenizer = load(name, path)
        ids[name] = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    out = pathlib.Path(sys.argv[2])
    lines = ["{", '"texts": [']
    lines += [",\n".join(json.dumps(text) for text in texts), "],", '"ids": {']
    lines.append(",\n".join(
        json.dumps(name) + ": [\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]"
        for name, rows in ids.items()))
    lines.append("}}")
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{out}: {len(texts)} texts, {', '.join(ids)}")


if __name__ == "__main__":
    main()
