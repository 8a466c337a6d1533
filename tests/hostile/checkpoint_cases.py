"""Malformed checkpoints, with words that the error must contain.

They are mistakes that people make: incomplete downloads, Git LFS pointers, files of different
models, edits by hand. Paths out of the folder are the exception.

`use` selects an operation on the folder: `load` loads it with both loaders, `dummy` with random
weights; `chat` also generates; `serve` reads its default sampling parameters.
"""

from dataclasses import dataclass

import mlx.core as mx

from tests.hostile.corruptions import (
    CONFIG,
    GENERATION,
    INDEX,
    NORM,
    PROGRAM,
    SETTINGS,
    TOKENIZER,
    UP,
    WEIGHTS,
    Corruption,
    combine,
    config,
    cut_to,
    file,
    moved,
    quantization,
    renamed,
    settings,
    sparse_weights,
    tensors,
    tokenizer,
    without,
)


@dataclass(frozen=True)
class Case:
    name: str
    corrupt: Corruption  # modifies a copy of a valid checkpoint
    words: tuple[str, ...]  # of the error message
    use: str


def case(name: str, corrupt: Corruption, *words: str, use: str = "load") -> Case:
    return Case(name, corrupt, words, use)


CODE = file("evil.py", PROGRAM)
UP_WEIGHT, UP_SCALES, UP_BIASES = (f"{UP}.{part}" for part in ("weight", "scales", "biases"))
NOT_SAFETENSORS = "is not a valid safetensors file"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132\n"

CODE_ROWS = [case("model_file", combine(CODE, config(model_file="evil.py")), "model_file", "code")]

PATH_ROWS = [
    case("weights above the folder", moved(f"../{WEIGHTS}"), "has no model*.safetensors"),
    case("weights with an absolute path", renamed("/etc/passwd"), "has no model*.safetensors"),
]

MISSING_ROWS = [
    case("no config", without(CONFIG), "has no config.json"),
    case("no weights", without(WEIGHTS, INDEX), "has no model*.safetensors"),
    case("no tokenizer", without(TOKENIZER), "has no tokenizer.json"),
    case("missing shard", renamed("model-2.safetensors"), "lacks model-2.safetensors"),
]

JSON_ROWS = [
    *(
        case(f"{name} is {what}", file(name, content), name.partition(".")[0])
        for name in (CONFIG, INDEX, SETTINGS, GENERATION)
        for what, content in {
            "empty": "",
            "truncated": '{"a": ',
            "not UTF-8": b'{"a": "\xff"}',
        }.items()
    ),
    *(
        case(f"{name} is a Git LFS pointer", file(name, POINTER), name, "run `git lfs pull`")
        for name in (CONFIG, INDEX, SETTINGS, GENERATION, TOKENIZER, WEIGHTS)
    ),
]

CONFIG_ROWS = [
    case("unknown model_type", config(model_type="gpt5"), "gpt5"),
    *(
        case(f"{name} {value!r:.40}", config(**{name: value}), name)
        for name, value in (
            ("hidden_size", ...),
            ("hidden_size", "64"),
            ("num_hidden_layers", 0),
            ("rms_norm_eps", "small"),
            ("rope_scaling", "yarn"),
            ("eos_token_id", "two"),
            ("quantization", "4bit"),
        )
    ),
    case("hidden_size mismatch", config(hidden_size=128), "64"),
    case("too many layers", config(num_hidden_layers=3), "model.layers.2"),
    case("too few layers", config(num_hidden_layers=1), "model.layers.1"),
    case("vocab_size mismatch", config(vocab_size=4201), "embed_tokens"),
    case("missing LM head", config(tie_word_embeddings=False), "lm_head"),
    case("indivisible key heads", config(num_key_value_heads=3), "expected a multiple of"),
    case("unknown mode", quantization(mode="q5_k"), "q5_k", "mode"),
    case("bits 7", quantization(bits=7), "bits"),
]

HEADER_ROWS = [
    case("empty weights file", cut_to(0), NOT_SAFETENSORS),
    case("weights truncated in the header", cut_to(100), "header is truncated"),
    case("weights truncated by a byte", cut_to(-1), "truncated"),
    case("weights that are a web page", file(WEIGHTS, "<!DOCTYPE html>" * 9), NOT_SAFETENSORS),
]

FLOATS_OF_64 = mx.zeros((64,), mx.float32)
TENSOR_ROWS = [
    case("norm of int32", tensors(**{NORM: FLOATS_OF_64.astype(mx.int32)}), NORM, "I32"),
    case("extra tensor", tensors(more=FLOATS_OF_64), "more", "is not a tensor of"),
    case("no scales", tensors(**{UP_SCALES: None}), UP),
    case("no norm", tensors(**{NORM: None}), NORM),
    case(
        "no tensors",
        file(WEIGHTS, b"\x02" + 7 * b"\0" + b"{}"),
        "and 19 more are missing from the checkpoint",
    ),
]

TOKENIZER_ROWS = [
    case("empty tokenizer file", file(TOKENIZER, ""), TOKENIZER),
    case("truncated tokenizer", file(TOKENIZER, '{"version": "1.0", "mo'), TOKENIZER),
    case("tokenizer without a model", tokenizer(model=...), TOKENIZER),
    case("tokenizer without a decoder", tokenizer(decoder=None), "decoder None"),
    case(
        "tokenizer of another model",
        settings(added_tokens_decoder={"7": {"content": "<|im_end|>"}}),
        "<|im_end|> has id 7",
        "same model",
    ),
    case("settings with a list as EOS token", settings(eos_token=["a"]), SETTINGS, "eos_token"),
    case("EOS token is a string", file(GENERATION, '{"eos_token_id": "x"}'), "eos_token_id"),
]

TEMPLATE_ROWS = [
    case("invalid template", settings(chat_template="{% if"), "template", use="chat"),
    case(
        "template that accesses Python internals",
        settings(chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}"),
        "unsafe",
        use="chat",
    ),
    case(
        "template that rejects the chat",
        settings(chat_template="{{ raise_exception('no thanks') }}"),
        "no thanks",
        use="chat",
    ),
]

SIZE_ROWS = [
    case("weights of 200 GB", sparse_weights(200 * 10**9), "this machine has"),
    *(
        case(f"random weights of {name} {value}", config(**{name: value}), words, use="dummy")
        for name, value, words in (
            ("hidden_size", 10**9, "this machine has"),
            ("num_hidden_layers", 10**9, "num_hidden_layers"),
            ("hidden_size", 65, "multiple of the group size"),
        )
    ),
]

DEFAULT_ROWS = [
    case(
        "temperature is a string",
        file(GENERATION, '{"temperature": "hot"}'),
        GENERATION,
        "'hot'",
        use="serve",
    ),
]

CASES = [
    *CODE_ROWS,
    *PATH_ROWS,
    *MISSING_ROWS,
    *JSON_ROWS,
    *CONFIG_ROWS,
    *HEADER_ROWS,
    *TENSOR_ROWS,
    *TOKENIZER_ROWS,
    *TEMPLATE_ROWS,
    *SIZE_ROWS,
    *DEFAULT_ROWS,
]
