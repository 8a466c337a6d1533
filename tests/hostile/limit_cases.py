"""Checkpoints that exceed limits on memory or size, or contain special files."""

import json
from pathlib import Path
from typing import Any

from tests.hostile.case import CONFIG, LONG, SETTINGS, TOKENIZER, case
from tests.hostile.corruptions import (
    INDEX,
    WEIGHTS,
    Corruption,
    chat_templates,
    config,
    file,
    link,
    pipe,
    quantization,
    settings,
    sparse_weights,
    tokenizer,
)


def replacement(text: str, by: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": by}


def sequence(name: str, component: dict[str, Any], number: int) -> dict[str, Any]:
    """A normalizer, pre-tokenizer or decoder that repeats a component."""
    return {"type": "Sequence", name: [component] * number}


def bpe(**new: Any) -> Corruption:
    """Sets fields of the BPE model; a function computes them from the old value."""

    def corrupt(folder: Path) -> None:
        content = json.loads((folder / TOKENIZER).read_text())
        model = content["model"]
        model |= {
            key: value(model[key]) if callable(value) else value for key, value in new.items()
        }
        (folder / TOKENIZER).write_text(json.dumps(content))

    return corrupt


def template(*parts: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer post-processor that builds its output from `parts`."""
    pair = [{"Sequence": {"id": id, "type_id": 0}} for id in "AB"]
    return {"type": "TemplateProcessing", "single": parts, "pair": pair, "special_tokens": {}}


TEXT_A = {"Sequence": {"id": "A", "type_id": 0}}
MIXTURE = {"model_type": "qwen3_moe", "num_experts_per_tok": 2, "moe_intermediate_size": 64}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
INVALID_JSON = "invalid JSON at line 1"
TEXT_GROWTH = "times longer"
MANY_TOKENS = {f"{i:06}{'x' * 180}": i for i in range(480_000)}

KERNEL_FILE_ROWS = [
    *(
        case(f"{name} is the kernel log", link(name, "/proc/kmsg"), name, words, quick=quick)
        for name, words, quick in (
            (CONFIG, INVALID_JSON, 1),
            (WEIGHTS, "fewer than 8 bytes", 0),
            (INDEX, INVALID_JSON, 0),
            (TOKENIZER, INVALID_JSON, 0),
            (SETTINGS, INVALID_JSON, 0),
            ("generation_config.json", INVALID_JSON, 0),
        )
    ),
    case("config is a page map", link(CONFIG, "/proc/self/pagemap"), INVALID_JSON),
    case(
        "special tokens file is a pipe, for mlx_lm",
        pipe("special_tokens_map.json"),
        "not a regular file",
        use="load",
    ),
    case(
        "added tokens file is the kernel log, for mlx_lm",
        link("added_tokens.json", "/proc/kmsg"),
        "is empty",
        use="load",
    ),
]

SIZE_ROWS = [
    case("weights of 200 GB", sparse_weights(200 * 10**9), "this machine has", quick=1),
    case("weights of 200 GB for mlx_lm", sparse_weights(200 * 10**9), "this machine", use="load"),
    *(
        case(f"random weights of {name} {value}", config(**{name: value}), words, use="dummy")
        for name, value, words in (
            ("hidden_size", 10**9, "this machine has"),
            ("intermediate_size", 10**9, "this machine has"),
            ("vocab_size", 2 * 10**9, "this machine has"),
            ("num_hidden_layers", 10**9, "num_hidden_layers"),
            ("num_attention_heads", 10**9, "q_proj has a dimension"),
            ("hidden_size", 65, "multiple of the group size"),
            ("torch_dtype", ["bfloat16"], "dtype"),
        )
    ),
    case(
        "random weights of 10**9 experts",
        config(**MIXTURE, num_experts=10**9),
        "num_experts",
        use="dummy",
        quick=1,
    ),
    case(
        "mixture of experts with 2 * 10**9 layers",
        config(**MIXTURE, num_hidden_layers=2 * 10**9),
        "layers",
    ),
    case(
        "mlp_only_layers with 700,000 entries",
        config(mlp_only_layers=[0] * 700_000),
        "700,000 entries",
    ),
    case(
        "mlp_only_layers with 10,000 entries",
        config(**MIXTURE, num_experts=4, mlp_only_layers=[2**31 - 1] * 10_000),
        "mlp.gate",
    ),
    case(
        "layer_types with 100,000 entries", config(layer_types=["a"] * 100_000), "100,000 entries"
    ),
    case("layer_types with lists", config(layer_types=[[1]]), "layer_types [[1]]"),
    case("layer_types is a number", config(layer_types=5), "layer_types 5"),
    case("layer_types is a long string", config(layer_types=LONG), "layer_types"),
    case("500,000 end tokens", config(eos_token_id=[1] * 500_000), "500,000 entries"),
    case(
        "quantization of 200,000 layers",
        quantization(**{f"a{i}": {} for i in range(200_000)}),
        "200,003 entries",
        quick=1,
    ),
    case("head_dim 512", config(head_dim=512), "head_dim 512", "at most 256", quick=1),
    case("head_dim 33", config(head_dim=33), "head_dim 33", "even"),
    case(
        "indivisible key-value heads",
        config(num_attention_heads=3, num_key_value_heads=2),
        "num_attention_heads 3",
        "num_key_value_heads, 2",
        quick=1,
    ),
    case(
        "20,000 added tokens, for mlx_lm",
        file("added_tokens.json", json.dumps(dict.fromkeys(map(str, range(20_000)), 0))),
        "'added_tokens.json' with 20,000 entries",
        use="load",
    ),
    case(
        "20,000 special tokens",
        settings(additional_special_tokens=["a"] * 20_000),
        "20,000 entries",
    ),
]

LARGE_TOKENIZER_ROWS = [
    case(
        "normalizer that doubles the text 40 times",
        tokenizer(normalizer=sequence("normalizers", replacement("a", "aa"), 40)),
        TEXT_GROWTH,
        quick=1,
    ),
    case(
        "untyped normalizer that doubles the text 40 times",
        tokenizer(normalizer=sequence("normalizers", {**replacement("a", "aa"), "type": None}, 40)),
        "normalizer",
        use="text",
    ),
    case(
        "normalizer with a long replacement",
        tokenizer(normalizer=replacement("a", "b" * 9999)),
        TEXT_GROWTH,
    ),
    case(
        "normalizer with a long prefix",
        tokenizer(normalizer={"type": "Prepend", "prepend": LONG}),
        TEXT_GROWTH,
    ),
    case(
        "byte-level pre-tokenizer applied 40 times",
        tokenizer(pre_tokenizer=sequence("pretokenizers", BYTE_LEVEL, 40)),
        TEXT_GROWTH,
    ),
    case(
        "decoder that doubles the text 40 times",
        tokenizer(decoder=sequence("decoders", replacement("a", "aa"), 40)),
        TEXT_GROWTH,
    ),
    case(
        "post-processor of 100,000 parts",
        tokenizer(post_processor=template(*[TEXT_A] * 100_000)),
        "values in its post_processor",
        quick=1,
    ),
    case(
        "post-processors that multiply the text",
        tokenizer(post_processor=sequence("processors", template(*[TEXT_A] * 10), 30)),
        "post-processor",
        use="text",
    ),
    case("a vocabulary of 95 MB", bpe(vocab=MANY_TOKENS), "bytes"),
    case(
        "a vocabulary of 600,000 tokens",
        bpe(vocab=dict.fromkeys(map(str, range(600_000)), 0)),
        "tokens",
    ),
    case("a token of 2000 characters", bpe(vocab=lambda old: old | {LONG[:2000]: 4197}), "2,000"),
    case(
        "500,000 merges of unknown tokens",
        bpe(merges=[["q", f"w{i}"] for i in range(500_000)]),
        "out of vocabulary",
        max_bytes=450_000_000,
    ),
    case("2,000,000 merges", bpe(merges=["a b"] * 2_000_000), "merges"),
    case(
        "tokenizer of many small lists", file(TOKENIZER, f"[{'[],' * 10**7}0]"), "lists and objects"
    ),
    case("tokenizer of many numbers", file(TOKENIZER, f"[{'0,' * 10**7}0]"), "values"),
    case("tokenizer with a duplicate model", file(TOKENIZER, '{"model": 1, "model": 2}'), "twice"),
    case("subword prefix that panics", bpe(continuing_subword_prefix="xxxxxxxx"), TOKENIZER),
    case("unpaired surrogate as a token", bpe(vocab={"\ud800": 0}), "surrogate"),
    case(
        "unpaired surrogate as the end token", settings(eos_token="\ud800"), SETTINGS, "surrogate"
    ),
    case(
        "WordLevel model without its unknown token",
        tokenizer(model={"type": "WordLevel", "unk_token": "b", "vocab": {"a": 0}}),
        "cannot encode",
        use="text",
    ),
    case(
        "500,000 added tokens",
        tokenizer(added_tokens=[{"content": str(i)} for i in range(500_000)]),
        "added tokens",
    ),
]

DEFAULT_ROWS = [
    case(
        "defaults are a list",
        file("generation_config.json", "[]"),
        "JSON object",
        use="serve",
        quick=1,
    ),
    case("defaults that are a pipe", pipe("generation_config.json"), "regular file", use="serve"),
    case(
        "temperature is a string",
        file("generation_config.json", '{"temperature": "hot"}'),
        "generation_config.json",
        "'hot'",
        use="serve",
    ),
]

MORE_TEMPLATE_ROWS = [
    case(
        "template with an unpaired surrogate",
        settings(chat_template='{{ "\\ud800" }}'),
        "surrogate",
        use="chat",
        quick=1,
    ),
    case("10,000 templates", chat_templates(10_000), "10,000 chat templates"),
    case("50 templates", chat_templates(50), "t0, t1, t10, t11 and 46 more", use="chat", quick=1),
    case(
        "10,000 templates in the settings",
        settings(chat_template=[{"name": str(i), "template": "a"} for i in range(10_000)]),
        "10,000 chat templates",
    ),
]

LIMIT_ROWS = [
    *KERNEL_FILE_ROWS,
    *SIZE_ROWS,
    *LARGE_TOKENIZER_ROWS,
    *DEFAULT_ROWS,
    *MORE_TEMPLATE_ROWS,
]
