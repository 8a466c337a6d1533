"""Malformed checkpoints, with words that the error must contain.

`use` selects an operation on the folder: `load_weights`, `load` and `dummy` (random weights) load
it; `chat` and `text` also generate, for errors that occur only then; `serve` reads its default
sampling parameters. A quick run includes `is_quick` rows and every 20th row.
"""

import math

import mlx.core as mx

from tests.hostile.case import CONFIG, LONG, SETTINGS, TOKENIZER, case
from tests.hostile.corruptions import (
    INDEX,
    NORM,
    PROGRAM,
    UP,
    WEIGHTS,
    combine,
    config,
    cut_to,
    directory,
    entry,
    fields,
    file,
    header,
    header_size,
    header_text,
    huge,
    index,
    link,
    pipe,
    plain,
    quantization,
    renamed,
    settings,
    split_on,
    tensors,
    tokenizer,
    with_number,
    without,
)
from tests.hostile.limit_cases import LIMIT_ROWS

CODE = file("evil.py", PROGRAM)
UP_WEIGHT, UP_SCALES, UP_BIASES = (f"{UP}.{part}" for part in ("weight", "scales", "biases"))
FIRST_NORM = "model.layers.0.input_layernorm.weight"
DEEP = "[" * 100_000 + "]" * 100_000
DEEP_OBJECT = '{"a":' * 100_000 + "1" + "}" * 100_000
NOT_SAFETENSORS = "is not a valid safetensors file"

CODE_ROWS = [
    case("model_file", combine(CODE, config(model_file="evil.py")), "model_file", "code", quick=1),
    case("model_file for mlx_lm", combine(CODE, config(model_file="evil.py")), "code", use="load"),
    case("model_file outside the folder", config(model_file="../../evil.py"), "model_file", "code"),
    case("model_file of a wrong type", config(model_file=["evil.py"]), "model_file", "code"),
    case(
        "auto_map",
        combine(CODE, config(auto_map={"AutoModelForCausalLM": "evil.Model"})),
        "auto_map",
        "code",
        quick=1,
    ),
    case(
        "auto_map for mlx_lm", combine(CODE, config(auto_map={"A": "evil.A"})), "code", use="load"
    ),
    case("auto_map of another repository", config(auto_map={"A": "a/b--evil.A"}), "auto_map"),
    case("auto_map of a wrong type", config(auto_map="evil.Model"), "auto_map"),
    case(
        "auto_map of the tokenizer",
        combine(CODE, settings(auto_map={"AutoTokenizer": ["evil.T", None]})),
        SETTINGS,
        "auto_map",
        "code",
        quick=1,
    ),
    case(
        "auto_map of the tokenizer for mlx_lm",
        combine(CODE, settings(auto_map={"AutoTokenizer": ["evil.T", None]})),
        "auto_map",
        use="load",
    ),
    case("trust_remote_code", config(trust_remote_code=True), "trust_remote_code", "code"),
    case(
        "custom_pipelines", config(custom_pipelines={"a": {"impl": "evil.P"}}), "custom_pipelines"
    ),
    case("tool_parser_type", settings(tool_parser_type="..evil"), "tool_parser_type"),
    case("chat_template_type", settings(chat_template_type="..evil"), "chat_template_type"),
]

PATH_ROWS = [
    *(
        case(
            f"weights named {name!r:.40}",
            combine(renamed(name), without(WEIGHTS)),
            "has no model*.safetensors",
            quick=quick,
        )
        for name, quick in (
            (f"../{WEIGHTS}", 1),
            ("model/../../model.safetensors", 1),
            ("/etc/passwd", 0),
            ("/dev/zero", 0),
            (f"below/{WEIGHTS}", 0),
            ("..", 0),
            ("", 0),
            ("model\0.safetensors", 0),
            ("model\n.safetensors", 0),
            (f"model{LONG[:5000]}.safetensors", 0),
        )
    ),
    case("weights that are a device", link(WEIGHTS, "/dev/zero"), "not a regular file", quick=1),
    case("weights that link to themselves", link(WEIGHTS, WEIGHTS), WEIGHTS),
    case("weights that are a dangling link", link(WEIGHTS, "nothing"), WEIGHTS),
    case("weights that are a pipe", pipe(WEIGHTS), "not a regular file"),
    case("weights that are a folder", directory(WEIGHTS), "not a regular file"),
    case("config that is a device", link(CONFIG, "/dev/zero"), "not a regular file"),
    case("config that is a pipe", pipe(CONFIG), "not a regular file", quick=1),
    case("config that is a folder", directory(CONFIG), "not a regular file"),
    case("tokenizer that is a pipe", pipe(TOKENIZER), "not a regular file"),
    case("tokenizer that is a folder", directory(TOKENIZER), "not a regular file"),
    case("settings that are a pipe", pipe(SETTINGS), "not a regular file"),
    case(
        "template that is a device", link("chat_template.jinja", "/dev/zero"), "not a regular file"
    ),
    case("template that is a pipe", pipe("chat_template.jinja"), "not a regular file"),
    case("generation config that is a pipe", pipe("generation_config.json"), "not a regular file"),
    case("index that is a pipe", pipe(INDEX), "not a regular file"),
]

MISSING_ROWS = [
    case("no config", without(CONFIG), "has no config.json"),
    case("no weights", without(WEIGHTS, INDEX), "has no model*.safetensors"),
    case("no tokenizer", without(TOKENIZER), "has no tokenizer.json"),
    case("empty folder", without(CONFIG, WEIGHTS, TOKENIZER), "has no config.json"),
    case(
        "missing shard",
        combine(renamed("model-2.safetensors"), without(WEIGHTS)),
        "lacks model-2.safetensors",
    ),
    case(
        "many missing shards",
        combine(index({f"t{n}": f"model-{n}.safetensors" for n in range(5000)}), without(WEIGHTS)),
        "lacks",
        "4996 more",
    ),
]

JSON_ROWS = [
    *(
        case(f"{name} is {what}", file(name, content), name.partition(".")[0])
        for name in (CONFIG, INDEX, SETTINGS, "generation_config.json")
        for what, content in {
            "empty": "",
            "a list": "[]",
            "truncated": '{"a": ',
            "not UTF-8": b'{"a": "\xff"}',
            "deeply nested": DEEP_OBJECT,
        }.items()
    ),
    case("config of null", file(CONFIG, "null"), "JSON object"),
    case("config of nested lists", file(CONFIG, DEEP), "nested too deeply"),
    case("config of UTF-16", file(CONFIG, '{"a": 1}'.encode("utf-16")), "UTF-8"),
    case("config with a duplicate field", file(CONFIG, '{"a": 1, "a": 2}'), "twice"),
    case("config with a number of 5000 digits", file(CONFIG, f'{{"a": {"9" * 5000}}}'), "digits"),
    case("config of 3 GB", huge(CONFIG, 3 * 2**30, b"{}"), "bytes", quick=1),
    case("config of many small lists", file(CONFIG, f"[{'[],' * 1_600_000}0]"), "JSON object"),
    case("index of 3 GB", huge(INDEX, 3 * 2**30), "bytes"),
    case("template of 3 GB", huge("chat_template.jinja", 3 * 2**30), "bytes"),
    case("template is not UTF-8", file("chat_template.jinja", b"\xff\xfe"), "UTF-8"),
    case("settings of 3 GB", huge(SETTINGS, 3 * 2**30, b"{}"), "bytes"),
]

INDEX_ROWS = [
    case("index without a map", file(INDEX, "{}"), "weight_map"),
    case("index map is a list", index([]), "weight_map"),
    case("index map is null", index(), "weight_map"),
    case("index map is a string", index("model.safetensors"), "weight_map"),
    case("index with numeric file names", index({"a": 1}), "weight_map"),
    case("index with lists as file names", index({"a": ["b"]}), "weight_map", quick=1),
    case("index with a null file name", index({"a": None}), "weight_map"),
    case("empty index map", combine(index({}), without(WEIGHTS)), "has no model*.safetensors"),
]

CONFIG_ROWS = [
    case("missing model_type", config(model_type=...), "type"),
    case("model_type is a list", config(model_type=["qwen3"]), "type", quick=1),
    case("model_type is a number", config(model_type=3), "type"),
    case("unknown model_type", config(model_type="gpt5"), "gpt5"),
    case("long model_type", config(model_type=LONG), "type"),
    *(
        case(f"{name} {value!r:.40}", config(**{name: value}), name)
        for name, value in (
            ("hidden_size", ...),
            ("hidden_size", "64"),
            ("hidden_size", 64.0),
            ("hidden_size", None),
            ("hidden_size", [64]),
            ("hidden_size", True),
            ("hidden_size", -64),
            ("num_hidden_layers", 0),
            ("num_hidden_layers", {}),
            ("num_hidden_layers", 10**12),
            ("vocab_size", 0),
            ("vocab_size", 10**30),
            ("vocab_size", 10**60),
            ("num_attention_heads", 0),
            ("num_attention_heads", "2"),
            ("num_key_value_heads", -1),
            ("num_key_value_heads", 1.5),
            ("head_dim", 0),
            ("head_dim", [32]),
            ("intermediate_size", 0),
            ("max_position_embeddings", 0),
            ("max_position_embeddings", 10**18),
            ("rms_norm_eps", "small"),
            ("rms_norm_eps", -1),
            ("rms_norm_eps", math.nan),
            ("rms_norm_eps", math.inf),
            ("rope_theta", "big"),
            ("rope_theta", 0),
            ("rope_theta", []),
            ("rope_theta", math.inf),
            ("rope_theta", 10**400),
            ("rope_scaling", 4),
            ("rope_scaling", "yarn"),
            ("rope_scaling", [1]),
            ("rope_parameters", [1]),
            ("rope_parameters", 7),
            ("tie_word_embeddings", "yes"),
            ("tie_word_embeddings", 1),
            ("eos_token_id", "two"),
            ("eos_token_id", {"a": 1}),
            ("eos_token_id", [1, "b"]),
            ("eos_token_id", -5),
            ("eos_token_id", 1.5),
            ("quantization", 4),
            ("quantization", [4]),
            ("quantization", "4bit"),
            ("quantization_config", "4bit"),
        )
    ),
    case("unknown RoPE type", config(rope_scaling={"type": "new"}), "new", use="text"),
    case("RoPE type is a list", config(rope_scaling={"type": [1]}), "rope_scaling", use="text"),
    case("hidden_size mismatch", config(hidden_size=128), "64"),
    case("too many layers", config(num_hidden_layers=3), "model.layers.2"),
    case("too few layers", config(num_hidden_layers=1), "model.layers.1"),
    case("vocab_size mismatch", config(vocab_size=4201), "embed_tokens"),
    case("missing LM head", config(tie_word_embeddings=False), "lm_head"),
    case("indivisible query heads", config(num_attention_heads=3), "q_proj"),
    case("unknown mode", quantization(mode="q5_k"), "q5_k", "mode", quick=1),
    case("mode is a list", quantization(mode=["affine"]), "mode"),
    case("mode is a number", quantization(mode=4), "mode"),
    case("unknown mode of one layer", quantization(**{UP: {"mode": "new", "bits": 4}}), "new", UP),
    case("bits 0", quantization(bits=0), "bits"),
    case("bits is a string", quantization(bits="4"), "bits"),
    case("bits is a list", quantization(bits=[4]), "bits"),
    case("bits 7", quantization(bits=7), "bits"),
    case("group_size 0", quantization(group_size=0), "group_size"),
    case("group_size 64.5", quantization(group_size=64.5), "group_size"),
    case("group_size 10**30", quantization(group_size=10**30), "groups of"),
    case("negative bits of one layer", quantization(**{UP: {"bits": -4, "group_size": 64}}), UP),
    case(
        "group_size of one layer is a string",
        quantization(**{UP: {"bits": 4, "group_size": "a"}}),
        UP,
    ),
]

HEADER_ROWS = [
    case("empty weights file", cut_to(0), NOT_SAFETENSORS),
    case("weights of 7 bytes", cut_to(7), NOT_SAFETENSORS),
    case("weights truncated in the header", cut_to(100), "header is truncated"),
    case("weights truncated by a byte", cut_to(-1), "truncated"),
    case("weights with data that no tensor covers", header(lambda h: h.pop(NORM) and None), "gap"),
    case("header of 2**63 bytes", header_size(2**63), "header is truncated"),
    case(
        "header of 3 GB",
        huge(WEIGHTS, 3 * 2**30 + 8, (3 * 2**30).to_bytes(8, "little")),
        "header has 3,221,225,472 bytes",
        quick=1,
    ),
    case("empty header", header_size(0), NOT_SAFETENSORS),
    case("header that is not JSON", header_text("{nothing"), "invalid JSON"),
    case("header of a list", header_text("[]"), "not a JSON object"),
    case("header of null", header_text("null"), "not a JSON object"),
    case("header of nested lists", header_text(DEEP), "nested too deeply", quick=1),
    case("header of nested objects", header_text(DEEP_OBJECT), "nested too deeply"),
    case("header with a duplicate name", header_text('{"a": 1, "a": 1}'), "twice"),
    case("header of small lists", header_text(f'{{"a": [{"[]," * 1_600_000}0]}}'), "'a'"),
    case("header that is not UTF-8", file(WEIGHTS, b"\x02" + 7 * b"\0" + b"\xff\xff"), "UTF-8"),
    case("metadata is a list", header(lambda h: h | {"__metadata__": [1]}), "__metadata__"),
    case(
        "metadata with numeric values",
        header(lambda h: h | {"__metadata__": {"a": 1}}),
        "__metadata__",
    ),
    case("entry is null", header(lambda h: h | {NORM: None}), NORM),
    case("entry is a list", header(lambda h: h | {NORM: [1, 2]}), NORM),
    case("entry is a number", header(lambda h: h | {NORM: 7}), NORM, quick=1),
    case("entry without dtype", entry(NORM, dtype=...), NORM, "dtype"),
    case("entry without shape", entry(NORM, shape=...), NORM, "shape"),
    case("entry without offsets", entry(NORM, data_offsets=...), NORM, "data_offsets"),
    case("entry with an extra field", entry(NORM, code="evil"), NORM),
    case("dtype is null", entry(NORM, dtype=None), "dtype"),
    case("dtype is a list", entry(NORM, dtype=["BF16"]), "dtype"),
    case("unknown dtype", entry(NORM, dtype="F12"), "F12"),
    case("shape is a string", entry(NORM, shape="64"), "shape"),
    case("shape of strings", entry(NORM, shape=["64"]), "shape"),
    case("shape is null", entry(NORM, shape=None), "shape"),
    case("negative shape", entry(NORM, shape=[-1, -64]), "shape"),
    case("fractional shape", entry(NORM, shape=[64.0]), "shape"),
    case("shape with 1000 dimensions", entry(NORM, shape=[1] * 1000), "shape"),
    case("shape product beyond 2**64", entry(NORM, shape=[2**63, 2**63]), NORM, "bytes"),
    case("shape larger than the data", entry(NORM, shape=[65]), NORM, "bytes"),
    case("shape with size 0", entry(NORM, shape=[0]), NORM, "bytes"),
    case("offsets is a number", entry(NORM, data_offsets=4), "data_offsets"),
    case("a single offset", entry(NORM, data_offsets=[0]), "data_offsets"),
    case("three offsets", entry(NORM, data_offsets=[0, 1, 2]), "data_offsets"),
    case("offsets are strings", entry(NORM, data_offsets=["0", "128"]), "data_offsets"),
    case("negative offsets", entry(NORM, data_offsets=[-128, 0]), "data_offsets"),
    case("descending offsets", entry(NORM, data_offsets=[128, 0]), NORM),
    case("offsets beyond the end", entry(NORM, data_offsets=[10**9, 10**9 + 128]), "gap"),
    case("offsets beyond 2**64", entry(NORM, data_offsets=[2**70, 2**70 + 128]), "gap"),
    case("tensors that overlap", entry(FIRST_NORM, data_offsets=[0, 128]), "overlaps", quick=1),
    case("tensor with a long name", header(lambda h: h | {LONG: 1}), "xxx"),
    case(
        "tensor with a newline in the name",
        header(lambda h: h | {"a\nb": h.pop(NORM)}),
        "unprintable",
    ),
    case(
        "tensor with an unpaired surrogate as the name",
        header(lambda h: h | {"\ud800": h.pop(NORM)}),
        "surrogate",
    ),
]

FLOATS_OF_64 = mx.zeros((64,), mx.float32)
TENSOR_ROWS = [
    case("weight of int32", entry(UP_WEIGHT, dtype="I32"), UP_WEIGHT, "I32", quick=1),
    case("weight of float32", entry(UP_WEIGHT, dtype="F32"), UP_WEIGHT, "F32", "U32"),
    case("scales of int16", entry(UP_SCALES, dtype="I16"), UP_SCALES, "I16"),
    case(
        "biases in another dtype than scales",
        entry(UP_BIASES, dtype="F16"),
        UP_BIASES,
        "F16",
        "BF16",
        quick=1,
    ),
    case("scales in another dtype than biases", entry(UP_SCALES, dtype="F16"), UP, "F16", "BF16"),
    case("norm of int16", entry(NORM, dtype="I16"), NORM, "I16"),
    case("norm of int32", tensors(**{NORM: FLOATS_OF_64.astype(mx.int32)}), NORM, "I32"),
    case("plain weights of int32", combine(plain, entry(NORM, dtype="U16")), NORM, "U16"),
    case("int32 for mlx_lm", entry(UP_WEIGHT, dtype="I32"), UP_WEIGHT, "I32", use="load"),
    case("extra tensor", tensors(more=FLOATS_OF_64), "more", "is not a tensor of"),
    case("extra bias", tensors(**{f"{UP}.bias": FLOATS_OF_64}), "is not a tensor of"),
    case("no scales", tensors(**{UP_SCALES: None}), UP),
    case("no biases", tensors(**{UP_BIASES: None}), UP_BIASES),
    case("no weight", tensors(**{UP_WEIGHT: None}), UP_WEIGHT),
    case("no norm", tensors(**{NORM: None}), NORM),
    case(
        "no tensors",
        combine(without(INDEX), file(WEIGHTS, b"\x02" + 7 * b"\0" + b"{}")),
        "and 19 more are missing from the checkpoint",
    ),
    case("two-dimensional norm", tensors(**{NORM: mx.zeros((8, 8))}), NORM, "8×8"),
    case("zero-dimensional norm", tensors(**{NORM: mx.zeros(())}), NORM),
    case("empty norm", tensors(**{NORM: mx.zeros((0,))}), NORM),
    case("one-dimensional weight", tensors(**{UP_WEIGHT: lambda a: a.reshape(-1)}), UP_WEIGHT),
    case("one-dimensional scales", tensors(**{UP_SCALES: lambda a: a.reshape(-1)}), UP),
    case(
        "tensor below another tensor", tensors(**{f"{NORM}.a": FLOATS_OF_64}), "is not a tensor of"
    ),
    case("layer number beyond the config", tensors(**{"model.layers.99999.a": FLOATS_OF_64}), "99"),
    case("scales with NaN", with_number(UP_SCALES, math.nan), UP_SCALES, "NaN", quick=1),
    case("scales with infinity", with_number(UP_SCALES, math.inf), UP_SCALES, "infinite"),
    case("biases with NaN", with_number(UP_BIASES, math.nan), UP_BIASES, "NaN"),
    case("norm with NaN", with_number(NORM, math.nan), NORM, "NaN"),
    case("norm with -infinity", with_number(NORM, -math.inf), NORM, "infinite"),
    case(
        "embedding with NaN",
        with_number("model.embed_tokens.scales", math.nan),
        "model.embed_tokens.scales",
        "NaN",
    ),
    case(
        "plain weights with NaN",
        combine(plain, with_number(UP_WEIGHT, math.nan)),
        UP_WEIGHT,
        "NaN",
        quick=1,
    ),
    case(
        "plain weights with infinity", combine(plain, with_number(UP_WEIGHT, math.inf)), "infinite"
    ),
    case("NaN for mlx_lm", with_number(NORM, math.nan), NORM, "NaN", use="load"),
]

# Regular expression that causes catastrophic backtracking.
ENDLESS = "a*a*a*a*[^a!]"
TOKENIZER_ROWS = [
    case("empty tokenizer file", file(TOKENIZER, ""), TOKENIZER),
    case("tokenizer is a list", file(TOKENIZER, "[]"), TOKENIZER),
    case("tokenizer is an empty object", file(TOKENIZER, "{}"), TOKENIZER),
    case("truncated tokenizer", file(TOKENIZER, '{"version": "1.0", "mo'), TOKENIZER),
    case("tokenizer is not UTF-8", file(TOKENIZER, b'{"a": "\xff"}'), TOKENIZER),
    case("tokenizer of nested lists", file(TOKENIZER, DEEP), TOKENIZER),
    case("tokenizer of 3 GB", huge(TOKENIZER, 3 * 2**30), "bytes", quick=1),
    case("tokenizer without a model", tokenizer(model=...), TOKENIZER),
    case("tokenizer model is null", tokenizer(model=None), TOKENIZER),
    case("unknown tokenizer model type", tokenizer(model={"type": "New"}), TOKENIZER),
    case("tokenizer with numbers as added tokens", tokenizer(added_tokens=[7]), TOKENIZER),
    case(
        "tokenizer with an added token without id",
        tokenizer(added_tokens=[{"content": "a"}]),
        TOKENIZER,
    ),
    case("regex that does not terminate", split_on(ENDLESS), "expression", use="text"),
    case("regex that panics", split_on("(a|aa)+$"), "expression", use="text", quick=1),
    case("invalid regex", split_on("("), TOKENIZER),
    case("regex of 1 MB", split_on("(?:a|" * 200_000 + ")" * 200_000), TOKENIZER),
    case("settings with a list as end token", settings(eos_token=["a"]), SETTINGS, "eos_token"),
    case("settings with a number as end token", settings(eos_token=7), SETTINGS, "eos_token"),
    case("settings with a pad token without content", settings(pad_token={"a": 1}), "pad_token"),
    case("settings with a list of added tokens", settings(added_tokens_decoder=[1]), SETTINGS),
    case(
        "settings with non-numeric token ids",
        settings(added_tokens_decoder={"x": {"content": "a"}}),
        "added_tokens_decoder",
    ),
    case("settings with a number as extra tokens", settings(extra_special_tokens=5), SETTINGS),
    case(
        "settings with a list as tokenizer class", settings(tokenizer_class=[1]), "tokenizer_class"
    ),
    case("settings with a number as template", settings(chat_template=7), "chat_template"),
    case("settings with numbers as templates", settings(chat_template=[7]), "chat_template"),
    case(
        "settings with an unnamed template",
        settings(chat_template=[{"template": "a"}]),
        "chat_template",
    ),
    case(
        "end token is a string",
        file("generation_config.json", '{"eos_token_id": "x"}'),
        "eos_token_id",
    ),
    case(
        "negative end token",
        fields("generation_config.json", eos_token_id=[-1]),
        "eos_token_id",
    ),
]

NESTED = "".join("{% for i in range(99999) %}" for _ in range(4)) + "{% endfor %}" * 4
TEMPLATE_ROWS = [
    case(
        "template that does not terminate", settings(chat_template=NESTED), "template", use="chat"
    ),
    case(
        "template that renders a long text",
        settings(chat_template="{{ 'a' * 6000000000 }}"),
        "template",
        use="chat",
        quick=1,
    ),
    case(
        "template with a large power",
        settings(chat_template="{{ 9 ** (9 ** 9) }}"),
        "template",
        use="chat",
    ),
    case("invalid template", settings(chat_template="{% if"), "template", use="chat"),
    case(
        "template that accesses Python internals",
        settings(chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}"),
        "template",
        use="chat",
    ),
    case(
        "template that includes a file",
        settings(chat_template="{% include '/etc/passwd' %}"),
        "template",
        use="chat",
    ),
    case(
        "template that raises",
        settings(chat_template="{{ raise_exception('no thanks') }}"),
        "no thanks",
        use="chat",
    ),
    case(
        "template that divides by zero",
        settings(chat_template="{{ 1 / 0 }}"),
        "template",
        use="chat",
    ),
    case(
        "template with infinite recursion",
        settings(chat_template="{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
        "nested too deeply",
        use="chat",
    ),
]

FOLDERS = [
    *CODE_ROWS,
    *PATH_ROWS,
    *MISSING_ROWS,
    *JSON_ROWS,
    *INDEX_ROWS,
    *CONFIG_ROWS,
    *HEADER_ROWS,
    *TENSOR_ROWS,
    *TOKENIZER_ROWS,
    *TEMPLATE_ROWS,
    *LIMIT_ROWS,
]
