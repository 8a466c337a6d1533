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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kv_cache_dtpye", "unknown option 'kv_cache_dtpye'; did you mean kv_cache_dtype?"),
        ("max_seqs", "unknown option 'max_seqs'; did you mean max_num_seqs?"),
        ("gpu_memory_utilization", "unknown option 'gpu_memory_utilization'; see `tiny-"),
    ],
)
def test_unknown_keyword_names_the_closest_option(name, message):
    with pytest.raises(UserError) as error:
        LLM("demo", **{name: 1})
    assert str(error.value).startswith(message)


def test_keywords_have_the_bounds_of_flags():
    with pytest.raises(UserError, match=r"step_time_target must be .* at least 0\.001, got 1e-06"):
        EngineArgs("demo", scheduling_policy="fair", step_time_target=1e-6)
    assert EngineArgs("demo", scheduling_policy="fair", step_time_target=1e-3)


def test_chat_template_must_be_a_string():
    with pytest.raises(UserError, match="chat_template must be a string or None, got 5"):
        EngineArgs("demo", chat_template=5)


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
