"""Official tokenizers: ids of raw `tokenizers` and llama.cpp; decoding and streaming."""

import ast
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers

from tests.models.tokenizer.test_tokenizer import segments
from tests.real.conftest import artifact_folder
from tiny_llm.models.gguf.reader import open_gguf
from tiny_llm.models.gguf.tokenizer import gguf_tokenizer
from tiny_llm.models.tokenizer.loader import open_tokenizer
from tools.real_artifacts import TOKENIZERS

NUM_TEXTS = 2000  # with --exhaustive; otherwise a quarter of them
EXAMPLE = "Hello  world\n\n 3.14"

# First and last code points of scripts and symbols.
SCRIPTS = (
    *((0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x3FF), (0x400, 0x52F), (0x590, 0x6FF)),
    *((0x900, 0xDFF), (0xE00, 0xEFF), (0x10A0, 0x13FF), (0x2000, 0x2BFF), (0x3040, 0x30FF)),
    *((0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0x1F300, 0x1FAFF), (0x20000, 0x200FF)),
)
SPACES = (" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\u00a0", "\u2028", "\u3000")
WORDS = ("don't", "I'LL", "naïve", "3.14", "1,000,000", "x_1", "http://a.b/c?d=1", "<|im_end|>")


@pytest.fixture(scope="module")
def texts(exhaustive: bool) -> list[str]:
    return all_texts()[:: 1 if exhaustive else 4]


@cache
def all_texts() -> list[str]:
    """Generated texts, and passages of the standard library's code."""
    random_ = random.Random(0)
    made = [EXAMPLE, "", " ", "a\0b", "\0", *(chr(code) for code in range(32))]
    made += ["- a: 1\n  b:\n    - 2\n    - [3, 4]\n" * n for n in range(1, 4)]
    while len(made) < NUM_TEXTS // 2:
        low, high = random_.choice(SCRIPTS)
        parts = []
        for _ in range(random_.randint(1, 12)):
            kind = random_.random()
            if kind < 0.5:
                length = random_.randint(1, 8)
                parts.append("".join(chr(random_.randint(low, high)) for _ in range(length)))
            elif kind < 0.7:
                parts.append(random_.choice(WORDS))
            elif kind < 0.8:
                parts.append(str(random_.randint(0, 10 ** random_.randint(1, 12))))
            elif kind < 0.85:
                parts.append(chr(random_.choice([*range(32), 0x7F, 0x200D, 0xFEFF, 0xFE0F])))
            parts.append(random_.choice(SPACES) if random_.random() < 0.7 else "")
        made.append("".join(parts))
    modules = sorted(Path(ast.__file__).parent.glob("*.py"))
    while len(made) < NUM_TEXTS:
        source = random_.choice(modules).read_text(encoding="utf-8", errors="replace")
        start = random_.randrange(max(1, len(source) - 400))
        made.append(source[start : start + random_.randint(1, 400)])
    return made


def check_texts(folder: Path, texts: list[str]) -> None:
    """Compares encoding, decoding and streaming with raw `tokenizers`."""
    ours, raw = open_tokenizer(folder, {}), load_raw(folder)
    # SmolLM2's vocabulary lacks some control characters.
    bytes_of = {ours.token_bytes(token) for token in range(len(ours))}
    is_lossless = raw.normalizer is None and bytes_of >= {bytes([byte]) for byte in range(128)}
    expected = raw.encode_batch(texts, add_special_tokens=False)
    strips = ours.detokenizer._strips_space
    for text, encoding in zip(texts, expected, strict=True):
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == encoding.ids, f"{text!r}: ids differ from tokenizer.json's"
        decoded = ours.decode(ids)
        assert decoded == raw.decode(ids, skip_special_tokens=False), f"{text!r}: text differs"
        streamed = "".join(segments(ours.detokenizer, ids))
        assert streamed == (decoded.removeprefix(" ") if strips else decoded), f"{text!r}"
        if is_lossless:
            assert b"".join(map(ours.token_bytes, ids)).decode() == text
    assert ours.encode(EXAMPLE) == raw.encode(EXAMPLE).ids


def load_raw(folder: Path) -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.no_truncation()
    raw.no_padding()
    return raw


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_are_those_of_tokenizer_json(name, texts):
    check_texts(artifact_folder(f"tokenizer-{name}"), texts)


def test_smollm2_from_gguf():
    """As in llama.cpp, a double line break is one token."""
    (file,) = artifact_folder("smollm2").iterdir()
    assert gguf_tokenizer(open_gguf(file)).encode(EXAMPLE)[2:4] == [905, 8866]


def assert_same_ids(ours: Any, raw: tokenizers.Tokenizer, texts: list[str]) -> None:
    for text, encoding in zip(texts, raw.encode_batch(texts), strict=True):
        assert ours.encode(text) == encoding.ids, repr(text)


def test_gemma3_from_gguf(tmp_path, texts):
    """Gemma 3's tokenizer, rebuilt from its GGUF file. llama.cpp has the same ids."""
    file = tmp_path / "gemma3.gguf"
    parts = [next(artifact_folder(f"gemma3-part{part}").iterdir()) for part in range(1, 5)]
    file.write_bytes(b"".join(part.read_bytes() for part in parts))
    ours, raw = gguf_tokenizer(open_gguf(file)), load_raw(artifact_folder("tokenizer-gemma3"))
    assert_same_ids(ours, raw, texts)


def test_gpt_oss_from_gguf(tmp_path, texts):
    """gpt-oss's tokenizer, rebuilt from metadata as llama.cpp's converter writes it."""
    folder = artifact_folder("tokenizer-gptoss")
    raw, model = load_raw(folder), json.loads((folder / "tokenizer.json").read_text())["model"]
    size = raw.get_vocab_size()
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "gpt-oss")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-4o")
    writer.add_token_list([raw.id_to_token(index) or f"[PAD{index}]" for index in range(size)])
    special = raw.get_added_tokens_decoder()
    writer.add_token_types([3 if index in special else 1 for index in range(size)])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    ours = gguf_tokenizer(open_gguf(tmp_path / "model.gguf"))
    assert_same_ids(ours, raw, texts)
    ends = {ours.decode([token]) for token in ours.eos_token_ids}
    assert ends == {"<|return|>", "<|call|>", "<|endoftext|>"}
