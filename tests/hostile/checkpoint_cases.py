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
    config,
    cut_to,
    directory,
    entry,
    header,
    index,
    link,
    moved,
    plain_integers,
    quantization,
    settings,
    sparse_weights,
    tensors,
)


@dataclass(frozen=True)
class Case:
    name: str
    corruption: Corruption  # of a copy of a valid checkpoint
    words: tuple[str, ...]  # of the error message
    use: str


def case(name: str, corruption: Corruption, *words: str, use: str = "load") -> Case:
    return Case(name, corruption, words, use)


CODE = {"evil.py": PROGRAM}
UP_WEIGHT, UP_SCALES, UP_BIASES = (f"{UP}.{part}" for part in ("weight", "scales", "biases"))
NOT_SAFETENSORS = "is not a valid safetensors file"
FLOATS_OF_64 = mx.zeros((64,), mx.float32)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132\n"

CASES = [
    case("model_file", CODE | config(model_file="evil.py"), "model_file", "code"),
    # paths
    *(
        case(f"weights named {name!r}", moved(name), "has no model*.safetensors")
        for name in (f"../{WEIGHTS}", f"model/../../{WEIGHTS}", f"model/{WEIGHTS}")
    ),
    *(
        case(f"weights named {name!r}", index(name), "has no model*.safetensors")
        for name in ("/etc/passwd", "..", "", "model\0.safetensors")
    ),
    case("weights that are a dangling link", {WEIGHTS: link}, WEIGHTS),
    case("weights that are a folder", {WEIGHTS: directory}, "cannot be opened"),
    case("config that is a folder", {CONFIG: directory}, "cannot be opened"),
    case("tokenizer that is a folder", {TOKENIZER: directory}, "cannot be opened"),
    # missing files
    case("no config", {CONFIG: None}, "has no config.json"),
    case("no weights", {WEIGHTS: None, INDEX: None}, "has no model*.safetensors"),
    case("no tokenizer", {TOKENIZER: None}, "has no tokenizer.json"),
    case("empty folder", {CONFIG: None, WEIGHTS: None, TOKENIZER: None}, "has no config.json"),
    case("missing shard", index("model-2.safetensors"), "lacks model-2.safetensors"),
    case(
        "many missing shards",
        index(*(f"model-{n}.safetensors" for n in range(50))),
        "lacks",
        "46 more",
    ),
    # JSON files
    *(
        case(f"{name} is {what}", {name: content}, name.partition(".")[0])
        for name in (CONFIG, INDEX, SETTINGS, GENERATION)
        for what, content in {
            "empty": "",
            "a list": "[]",
            "truncated": '{"a": ',
            "not UTF-8": b'{"a": "\xff"}',
        }.items()
    ),
    *(
        case(f"{name} is a Git LFS pointer", {name: POINTER}, name, "run `git lfs pull`")
        for name in (CONFIG, INDEX, SETTINGS, GENERATION, TOKENIZER, WEIGHTS)
    ),
    case("config of UTF-16", {CONFIG: '{"a": 1}'.encode("utf-16")}, "UTF-8"),
    case("template is not UTF-8", {"chat_template.jinja": b"\xff\xfe"}, "UTF-8"),
    case("index without a map", {INDEX: "{}"}, "weight_map"),
    case("empty index map", index(), "has no model*.safetensors"),
    # config.json
    case("missing model_type", config(model_type=...), "type"),
    case("unknown model_type", config(model_type="gpt5"), "gpt5"),
    *(
        case(f"{name} {value!r:.40}", config(**{name: value}), name)
        for name, value in (
            ("hidden_size", ...),
            ("hidden_size", "64"),
            ("hidden_size", None),
            ("num_hidden_layers", 0),
            ("vocab_size", 0),
            ("num_attention_heads", "2"),
            ("num_key_value_heads", -1),
            ("head_dim", 0),
            ("rms_norm_eps", "small"),
            ("rope_theta", "big"),
            ("rope_scaling", "yarn"),
            ("tie_word_embeddings", "yes"),
            ("eos_token_id", "two"),
            ("eos_token_id", [1, "b"]),
            ("quantization", "4bit"),
        )
    ),
    case("hidden_size mismatch", config(hidden_size=128), "64"),
    case("too many layers", config(num_hidden_layers=3), "model.layers.2"),
    case("too few layers", config(num_hidden_layers=1), "model.layers.1"),
    case("vocab_size mismatch", config(vocab_size=4201), "embed_tokens"),
    case("missing LM head", config(tie_word_embeddings=False), "lm_head"),
    case("indivisible key heads", config(num_key_value_heads=3), "expected a multiple of"),
    case("indivisible query heads", config(num_attention_heads=3), "q_proj"),
    case("head_dim 514", config(head_dim=514), "head_dim 514", "at most 512"),
    case("unknown mode", quantization(mode="q5_k"), "q5_k", "mode"),
    case("unknown mode of one layer", quantization(**{UP: {"mode": "new", "bits": 4}}), "new", UP),
    case("bits 7", quantization(bits=7), "bits"),
    case("bits is a string", quantization(bits="4"), "bits"),
    case("group_size 0", quantization(group_size=0), "group_size"),
    # headers of weights
    case("empty weights file", cut_to(0), NOT_SAFETENSORS),
    case("weights of 7 bytes", cut_to(7), NOT_SAFETENSORS),
    case("weights truncated in the header", cut_to(100), "header is truncated"),
    case("weights truncated by a byte", cut_to(-1), "truncated"),
    case("weights that are a web page", {WEIGHTS: "<!DOCTYPE html>" * 9}, NOT_SAFETENSORS),
    case("header that is not JSON", {WEIGHTS: b"\x08" + 7 * b"\0" + b"{nothing"}, NOT_SAFETENSORS),
    case("header of a list", header(lambda h: []), NOT_SAFETENSORS),
    case("entry without offsets", entry(NORM, data_offsets=...), NOT_SAFETENSORS),
    case("entry that is a number", header(lambda h: h | {NORM: 7}), NOT_SAFETENSORS),
    # tensors
    case("weight of int32", entry(UP_WEIGHT, dtype="I32"), UP_WEIGHT, "I32"),
    case("scales of int16", entry(UP_SCALES, dtype="I16"), UP_SCALES, "I16"),
    case("biases in another dtype", entry(UP_BIASES, dtype="F16"), UP_BIASES, "F16", "BF16"),
    case("norm of int32", tensors(**{NORM: FLOATS_OF_64.astype(mx.int32)}), NORM, "I32"),
    case("plain weights of int16", {WEIGHTS: plain_integers}, NORM, "U16"),
    case("extra tensor", tensors(more=FLOATS_OF_64), "more", "is not a tensor of"),
    case("extra bias", tensors(**{f"{UP}.bias": FLOATS_OF_64}), "is not a tensor of"),
    case("no scales", tensors(**{UP_SCALES: None}), UP),
    case("no biases", tensors(**{UP_BIASES: None}), UP_BIASES),
    case("no weight", tensors(**{UP_WEIGHT: None}), UP_WEIGHT),
    case("no norm", tensors(**{NORM: None}), NORM),
    case(
        "no tensors",
        {WEIGHTS: b"\x02" + 7 * b"\0" + b"{}"},
        "and 19 more are missing from the checkpoint",
    ),
    case("two-dimensional norm", tensors(**{NORM: mx.zeros((8, 8))}), NORM, "8×8"),
    case("one-dimensional weight", tensors(**{UP_WEIGHT: lambda a: a.reshape(-1)}), UP_WEIGHT),
    # tokenizers and their settings
    case("empty tokenizer file", {TOKENIZER: ""}, TOKENIZER),
    case("tokenizer is a list", {TOKENIZER: "[]"}, TOKENIZER),
    case("tokenizer is an empty object", {TOKENIZER: "{}"}, TOKENIZER),
    case("truncated tokenizer", {TOKENIZER: '{"version": "1.0", "mo'}, TOKENIZER),
    case("tokenizer is not UTF-8", {TOKENIZER: b'{"a": "\xff"}'}, TOKENIZER),
    case("tokenizer without a model", {TOKENIZER: {"model": ...}}, TOKENIZER),
    case("unknown tokenizer model type", {TOKENIZER: {"model": {"type": "New"}}}, TOKENIZER),
    case("tokenizer without a decoder", {TOKENIZER: {"decoder": None}}, "decoder None"),
    case(
        "tokenizer of another model",
        settings(added_tokens_decoder={"7": {"content": "<|im_end|>"}}),
        "<|im_end|> has id 7",
        "same model",
    ),
    case("settings with a list as EOS token", settings(eos_token=["a"]), SETTINGS, "eos_token"),
    case("settings with a pad token without content", settings(pad_token={"a": 1}), "pad_token"),
    case("settings with a number as extra tokens", settings(extra_special_tokens=5), SETTINGS),
    case("settings with a number as template", settings(chat_template=7), "chat_template"),
    case(
        "settings with an unnamed template",
        settings(chat_template=[{"template": "a"}]),
        "chat_template",
    ),
    case("EOS token is a string", {GENERATION: '{"eos_token_id": "x"}'}, "eos_token_id"),
    case("negative EOS token", {GENERATION: {"eos_token_id": [-1]}}, "eos_token_id"),
    # chat templates
    case("invalid template", settings(chat_template="{% if"), "template", use="chat"),
    case(
        "template that reads a file",
        settings(chat_template="{% include '/etc/passwd' %}"),
        "template",
        use="chat",
    ),
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
    case(
        "templates without a default",
        settings(chat_template=[{"name": "rag", "template": "a"}]),
        "named 'default', got rag",
        use="chat",
    ),
    # sizes
    case("weights of 200 GB", sparse_weights(200 * 10**9), "this machine has"),
    *(
        case(f"random weights of {name} {value}", config(**{name: value}), words, use="dummy")
        for name, value, words in (
            ("hidden_size", 10**9, "this machine has"),
            ("num_hidden_layers", 10**9, "num_hidden_layers"),
            ("num_attention_heads", 10**9, "q_proj has a dimension"),
            ("hidden_size", 65, "multiple of the group size"),
        )
    ),
    # default sampling parameters
    case("defaults are a list", {GENERATION: "[]"}, "JSON object", use="serve"),
    case(
        "temperature is a string",
        {GENERATION: '{"temperature": "hot"}'},
        GENERATION,
        "'hot'",
        use="serve",
    ),
]
