"""Options: keywords, flags and texts have the same types, bounds and names."""

import argparse
import inspect

import pytest

from tiny_llm import LLM, UserError
from tiny_llm.cli.parsing.arguments import add_options, given_options
from tiny_llm.engine.engine_args import EngineArgs
from tiny_llm.engine.inputs.options import options_of, parse_options
from tiny_llm.server.settings import Settings


def test_llm_has_the_fields_as_keywords():
    parameters = dict(inspect.signature(LLM).parameters)
    assert parameters.pop("model").kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert {each.kind for each in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert (parameters["block_size"].default, parameters["kv_cache_dtype"].default) == (32, "auto")


FAIR, DISK = {"scheduling_policy": "fair"}, {"prefix_cache_dir": "pages"}
INT8_FLASH = {"kv_cache_dtype": "int8", "attention_backend": "flash"}
REJECTED = [
    ({"kv_cache_dtpye": 1}, r"^unknown option 'kv_cache_dtpye'; did you mean kv_cache_dtype\?"),
    ({"max_seqs": 1}, r"^unknown option 'max_seqs'; did you mean max_num_seqs\?"),
    ({"gpu_memory_utilization": 1}, r"^unknown option 'gpu_memory_utilization'; see `tiny-"),
    ({"block_size": 0}, "block_size must be at least 1, got 0."),
    ({"block_size": 2.0}, "block_size must be an integer of at least 1, got 2.0."),
    ({"kv_cache_bytes": 1000}, r"at least 262144 \(a page of 32 tokens\), got 1000\."),
    ({"kv_cache_bytes": 1e8 / 3}, "must be an integer of at least 1, got 33333333.33"),
    ({"kv_cache_bytes": float("inf")}, "must be an integer of at least 1, got inf"),
    ({"kv_cache_bytes": "1GB"}, "must be an integer of at least 1, got '1GB'"),
    ({"kv_cache_bytes": 2e18}, r"must be at most \d+ \(this machine's memory\), got 2000"),
    ({"max_num_batched_tokens": "64"}, "must be an integer of at least 1, got '64'."),
    ({"max_num_seqs": 8.5}, "max_num_seqs must be an integer of at least 1, got 8.5."),
    ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
    (
        {"max_num_batched_tokens": 3, "max_num_seqs": 4},
        "max_num_batched_tokens must be at least 4 for max_num_seqs=4 .*, got 3",
    ),
    ({"draft_model": "demo-draft", "num_drafts": 0}, "num_drafts must be at least 1, got 0."),
    ({"draft_model": 5}, "5 is not a model; pass a name, a folder, or the pair"),
    ({"speculative": "ngram", "draft_model": "demo-draft"}, "='ngram' and draft_model cannot be"),
    ({"speculative": "ngram", "num_drafts": 0}, "num_drafts"),
    ({"num_drafts": 3}, "num_drafts=3 requires draft_model or speculative='ngram' or 'mtp'"),
    ({"speculative": "magic"}, "speculative must be 'ngram', 'mtp' or None, got 'magic'."),
    ({"seed": "a"}, "seed must be an integer of at least 0, got 'a'."),
    ({"seed": 2**64}, r"seed must be below 2\*\*64, got \d+."),
    ({"max_queue": -1}, "max_queue must be at least 0, got -1."),
    ({"load_format": "magic"}, "load_format must be 'auto' or 'dummy', got 'magic'."),
    ({"enable_prefix_caching": "no"}, "must be True or False, got 'no'."),
    ({"listener": 5}, "listener must be a callable that takes one event, or None, got 5."),
    ({"chat_template": 5}, "chat_template must be a string or None, got 5"),
    ({"tool_call_parser": "xml"}, "tool_call_parser must be 'auto', .* got 'xml'"),
    ({"kv_cache_dtype": "fp8"}, r"^kv_cache_dtype must be 'auto' or 'int8', got 'fp8'\.$"),
    ({"kv_cache_dtype": None}, r"^kv_cache_dtype must be 'auto' or 'int8', got None\.$"),
    (INT8_FLASH, r"^attention_backend='flash' does not .*='int8'; use 'paged' or 'reference'\.$"),
    *(({"activation_bits": n}, "^activation_bits must be 16 or 8, got ") for n in (4, None, "8")),
    ({"scheduling_policy": "priority"}, "must be 'fair' or 'fcfs', got 'priority'"),
    ({"step_time_target": 0.1}, "step_time_target requires scheduling_policy='fair'"),
    (FAIR | {"step_time_target": 0}, "must be a number of seconds"),
    (FAIR | {"step_time_target": 1e-6}, r"must be .* at least 0\.001, got 1e-06"),
    ({"prefix_cache_disk_bytes": 1e9}, "requires prefix_cache_dir"),
    ({"prefix_cache_dir": 3}, "must be a path, got 3"),
    ({"prefix_cache_dir": __file__}, "is a file"),
    (DISK | {"enable_prefix_caching": False}, "enable_prefix_caching=True"),
    (DISK | {"prefix_cache_disk_bytes": 0}, "at least 1, got 0"),
    (DISK | {"prefix_cache_disk_bytes": 1.5}, "an integer"),
    (DISK | {"prefix_cache_disk_bytes": 1000}, "a page of 32 tokens"),
    (
        {"adapter_path": "x", "lora_modules": {"a": "y"}},
        r"^adapter_path and lora_modules cannot .*; pass all adapters in lora_modules\.$",
    ),
    ({"lora_modules": ["a=y"]}, r"^lora_modules must map names to folders, got \['a=y'\]\.$"),
    ({"lora_modules": {"": "y"}}, "^lora_modules must map names to folders, got {'': 'y'}.$"),
    ({"adapter_path": 3}, r"^adapter_path must be a path, got 3\.$"),
    (
        {"adapter_path": "no/folder"},
        "^the adapter 'no/folder' is not a folder; specify the output .* `mlx_lm.lora` or PEFT.$",
    ),
]


@pytest.mark.parametrize(("options", "message"), REJECTED)
def test_invalid_options_are_rejected(tmp_path, monkeypatch, demo, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        LLM(demo, **{"kv_cache_bytes": 2**24, **options})


def test_boundary_values_are_accepted():
    assert EngineArgs("demo", step_time_target=1e-3, **FAIR)
    assert EngineArgs("demo", kv_cache_bytes=1e7).kv_cache_bytes == 10**7


def test_prefix_cache_directory_may_be_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="prefix_cache_dir must be a directory; ~/file is a file"):
        EngineArgs("demo", prefix_cache_dir="~/file")
    LLM("demo", kv_cache_bytes=2**24, prefix_cache_dir="~/pages").close()
    assert (tmp_path / "pages").is_dir()


@pytest.mark.parametrize("owner", [EngineArgs, Settings])
def test_every_option_has_a_help_text(owner):
    assert all(option.help for option in options_of(owner).values())


def test_flags_convert_to_keywords():
    parser = argparse.ArgumentParser()
    add_options(parser, EngineArgs, "serve")
    add_options(parser, Settings, "serve")
    flags = "--block-size 16 --kv-cache-bytes 1e8 --activation-bits 8 --lora-modules a=x b=y"
    flags += " --step-time-target 0.5 --allowed-host h --no-prefix-warmup --tp 1"
    args = parser.parse_args(flags.split())
    engine = given_options(args, EngineArgs)
    assert (engine["block_size"], engine["kv_cache_bytes"], engine["activation_bits"]) == (
        *(16, 100_000_000, 8),
    )
    assert engine["lora_modules"] == [("a", "x"), ("b", "y")]
    assert (engine["step_time_target"], engine["scheduling_policy"]) == (0.5, "fair")
    assert "max_num_seqs" not in engine
    server = given_options(args, Settings)
    assert (server["allowed_hosts"], server["prefix_warmup"]) == (["h"], False)
    assert not {"max_queue", "log_requests"} & server.keys()
    assert given_options(parser.parse_args(["--log-requests"]), Settings)["log_requests"] is True


def test_texts_convert_to_keywords():
    texts = {"block_size": "16", "kv_cache_bytes": "1e8", "strict_fields": "true", "max_queue": 5}
    engine, server = parse_options(texts, EngineArgs, Settings)
    assert engine == {"block_size": 16, "kv_cache_bytes": 100_000_000}
    assert server == {"strict_fields": True, "max_queue": 5}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"block_size": "0"}, "block_size: must be at least 1, got 0."),
        ({"block_size": "x"}, "block_size: invalid literal for int"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype: value must be 'auto' or 'int8', got 'fp8'."),
        ({"kv_cache_bytes": "1.5"}, "kv_cache_bytes: must be a whole number such as"),
        ({"cors_origins": "http://x"}, "cors_origins must be a list, got 'http://x'."),
        ({"strict_fields": "yes"}, "strict_fields: value must be 'true' or 'false', got 'yes'."),
        ({"blok_size": "1"}, "unknown option 'blok_size'; did you mean block_size?"),
        ({"seed": "1"}, "unknown option 'seed'"),
    ],
)
def test_invalid_texts_are_rejected(texts, message):
    with pytest.raises(UserError) as error:
        parse_options(texts, EngineArgs, Settings)
    assert str(error.value).startswith(message)
