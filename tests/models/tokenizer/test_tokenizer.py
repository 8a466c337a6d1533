"""Tokenizer compared with `mlx_lm`'s: ids, text, end tokens, chat templates."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from tokenizers.pre_tokenizers import ByteLevel

from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.tokenizer.loader import open_tokenizer
from tiny_llm.models.tokenizer.tokenizer import Tokenizer, decode_byte_level, with_detokenizer

CONFIG = json.loads((TARGET_PATH / "config.json").read_text())
OURS = open_tokenizer(TARGET_PATH, CONFIG)

VOCAB_SIZE = len(OURS.get_vocab())
BYTES = [i for token, i in OURS.get_vocab().items() if len(token) == 1]
NUL = OURS.get_vocab()["Ā"]  # byte 0, which mlx_lm decodes to its byte-level symbol, Ā

# mlx_lm and transformers are imported locally, because both take seconds to import.


def load_tokenizer(folder: Path, **options: Any) -> Any:
    from mlx_lm.utils import load_tokenizer

    return load_tokenizer(folder, **options)


@cache
def mlx_lm_demo_tokenizer() -> Any:
    return load_tokenizer(TARGET_PATH, eos_token_ids=[4093, 4091])


CHAT = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "Größe? 大きさ? 🙂"},
    {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nLarge."},
    {"role": "user", "content": "And <|im_end|> this?"},
]

marked_text = st.lists(
    st.one_of(st.text(), st.sampled_from(["<|im_end|>", "<think>", "<|im_start|>user\n", "  \n "]))
).map("".join)
ids_of_bytes = st.one_of(st.integers(0, VOCAB_SIZE - 1), st.sampled_from(BYTES))
some_ids = st.lists(ids_of_bytes.filter(lambda token: token != NUL), max_size=20)


def segments(detokenizer: Any, ids: list[int]) -> list[str]:
    """Text emitted after each token and at the end."""
    result = []
    for token in ids:
        detokenizer.add_token(token)
        result.append(detokenizer.last_segment)
    detokenizer.finalize()
    return [*result, detokenizer.last_segment]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(marked_text)
def test_encode(text):
    ids = OURS.encode(text)
    assert ids == mlx_lm_demo_tokenizer().encode(text)
    assert OURS.encode(text, add_special_tokens=False) == ids
    assert OURS.decode(ids) == mlx_lm_demo_tokenizer().decode(ids)


@settings(max_examples=100, deadline=None)
@given(some_ids, st.booleans())
def test_decode(ids, skip):
    expected = mlx_lm_demo_tokenizer().decode(ids, skip_special_tokens=skip)
    assert OURS.decode(ids, skip_special_tokens=skip) == expected


@settings(max_examples=150, deadline=None)
@given(some_ids)
def test_streaming(ids):
    """Covers complete and incomplete characters, and invalid bytes."""
    assert segments(OURS.detokenizer, ids) == segments(mlx_lm_demo_tokenizer().detokenizer, ids)


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_streamed_text_round_trips(text):
    ids = OURS.encode(text)
    assert "".join(segments(OURS.detokenizer, ids)) == OURS.decode(ids).removeprefix(" ")


def test_byte_0_decodes_to_nul_and_an_unknown_id_to_nothing():
    for token, text in ((NUL, "\0"), (VOCAB_SIZE + 5, "")):
        assert segments(OURS.detokenizer, [token]) == [OURS.decode([token]), ""] == [text, ""]


def test_byte_level_symbols():
    letters = ByteLevel.alphabet()
    assert sorted(map(decode_byte_level, letters)) == [bytes([byte]) for byte in range(256)]
    text = "é ñ, 漢字 🙂\t\n\0"
    pieces = ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    assert b"".join(decode_byte_level(piece) for piece, _ in pieces) == text.encode()
    text = "no letters: \u00a0\u00ad▁漢"
    assert not set(text[-4:]) & set(letters)
    assert decode_byte_level(text) == text.encode()


def test_vocabulary_and_end_tokens():
    assert type(OURS) is Tokenizer
    assert OURS.get_vocab() == mlx_lm_demo_tokenizer().get_vocab()
    assert len(OURS) == VOCAB_SIZE
    assert OURS.eos_token_ids == mlx_lm_demo_tokenizer().eos_token_ids == {4093, 4091}
    assert OURS.has_thinking
    assert OURS.has_chat_template
    assert OURS.chat_template == mlx_lm_demo_tokenizer().chat_template


@pytest.mark.parametrize("tokenize", [True, False])
@pytest.mark.parametrize("thinking", [{}, {"enable_thinking": True}, {"enable_thinking": False}])
@pytest.mark.parametrize("prompt", [{}, {"add_generation_prompt": True}])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_chat_template(length, prompt, thinking, tokenize):
    arguments = {**prompt, **thinking, "tokenize": tokenize}
    expected = mlx_lm_demo_tokenizer().apply_chat_template(CHAT[:length], **arguments)
    assert OURS.apply_chat_template(CHAT[:length], **arguments) == expected


@pytest.fixture
def folder(tmp_path) -> Path:
    """Editable copy of the demo's tokenizer."""
    shutil.copytree(TARGET_PATH, tmp_path / "copy", ignore=shutil.ignore_patterns("*.safetensors"))
    return tmp_path / "copy"


def edit(folder: Path, name: str, **changes: Any) -> None:
    """Sets entries of a JSON file; `...` removes an entry."""
    content = {**json.loads((folder / name).read_text()), **changes}
    content = {key: value for key, value in content.items() if value is not ...}
    (folder / name).write_text(json.dumps(content))


TEMPLATE = """
{%- for message in messages %}
    {%- if message.role == "system" %}{% continue %}{% endif %}
    {{- message.role }}: {{ message | tojson }} {{ message.name | default("nobody") }}
{% endfor %}
{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{{- eos_token }} {{ add_generation_prompt }} {{ documents is none }} {{ mood | default("calm") }}
{{- namespace(a=1).a }} {{ bos_token is defined }} {{ strftime_now("%Y") | length }}
    {%- if messages[-1].content == "stop" %}{{ raise_exception("no more") }}{% endif %}
"""
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"<": 1}}}]


@pytest.mark.parametrize(
    "arguments", [{}, {"tools": TOOLS}, {"mood": "glad", "add_generation_prompt": True}]
)
def test_template_variables_match_transformers(folder, arguments):
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    ours, theirs = open_tokenizer(folder, CONFIG), load_tokenizer(folder)
    chat = [*CHAT[:2], {"role": "assistant", "content": "x", "tool_calls": None, "name": "me"}]
    expected = theirs.apply_chat_template(chat, tokenize=False, **arguments)
    assert ours.apply_chat_template(chat, tokenize=False, **arguments) == expected
    assert "mlx_lm" not in vars(ours), "expected tiny-llm's template renderer, not mlx_lm's"
    for tokenizer in (ours, theirs):
        with pytest.raises(TemplateError, match="no more"):
            tokenizer.apply_chat_template([{"role": "user", "content": "stop"}])


def test_template_precedence(folder):
    listed = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    edit(folder, "tokenizer_config.json", chat_template=listed)
    for change in (
        lambda: None,  # chat_template.jinja takes precedence over tokenizer_config.json
        # Without this file, the list in tokenizer_config.json applies.
        lambda: (folder / "chat_template.jinja").unlink(),
        lambda: edit(folder, "tokenizer_config.json", chat_template="three"),
        lambda: edit(folder, "tokenizer_config.json", chat_template=...),  # no template
        lambda: (folder / "additional_chat_templates").mkdir(),
        lambda: (folder / "additional_chat_templates" / "default.jinja").write_text("four"),
        lambda: (folder / "additional_chat_templates" / "tool_use.jinja").write_text("five"),
    ):
        change()
        ours, theirs = open_tokenizer(folder, CONFIG), load_tokenizer(folder)
        assert ours.chat_template == theirs.chat_template
        assert ours.has_chat_template == theirs.has_chat_template
        if ours.has_chat_template:
            for tools in (None, TOOLS):
                text = ours.apply_chat_template(CHAT, tokenize=False, tools=tools)
                assert text == theirs.apply_chat_template(CHAT, tokenize=False, tools=tools)


def test_tokenizer_without_thinking(folder):
    content = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(content.replace("think>", "ponder>"))
    ours, theirs = open_tokenizer(folder, CONFIG), load_tokenizer(folder)
    assert not ours.has_thinking
    assert not theirs.has_thinking
    chat = {"conversation": CHAT, "add_generation_prompt": True, "tokenize": False}
    assert ours.apply_chat_template(**chat) == theirs.apply_chat_template(**chat)


@pytest.mark.parametrize(
    ("of_generation", "of_config"), [([5, 6], 7), (5, 7), (..., 7), (..., [7, 8]), (..., ...)]
)
@pytest.mark.parametrize("named", ["<|im_end|>", {"content": "<|endoftext|>"}, None])
def test_end_tokens(folder, of_generation, of_config, named):
    edit(folder, "generation_config.json", eos_token_id=of_generation)
    edit(folder, "tokenizer_config.json", eos_token=named)
    config = {} if of_config is ... else {"eos_token_id": of_config}
    listed = of_config if of_generation is ... else of_generation
    if isinstance(named, dict):  # published files add a `__type` to the entry
        edit(folder, "tokenizer_config.json", eos_token={"__type": "AddedToken", **named})
    theirs = load_tokenizer(folder, eos_token_ids=None if listed is ... else listed)
    ours = open_tokenizer(folder, config)
    assert type(ours) is Tokenizer
    assert ours.eos_token_ids == theirs.eos_token_ids


def test_additional_end_token():
    ours, theirs = open_tokenizer(TARGET_PATH, CONFIG), load_tokenizer(TARGET_PATH)
    theirs.eos_token_ids = ours.eos_token_ids
    for token in ("<think>", "7"):
        ours.add_eos_token(token)
        theirs.add_eos_token(token)
    assert ours.eos_token_ids == theirs.eos_token_ids == {7, 4091, 4093, 4094}
    with pytest.raises(ValueError, match="is not in the tokenizer's vocabulary"):
        ours.add_eos_token("<|nothing|>")


def test_missing_attributes_fall_back_to_mlx_lm():
    ours = open_tokenizer(TARGET_PATH, CONFIG)
    assert ours.think_end == "</think>"
    assert ours.convert_ids_to_tokens([4093]) == ["<|im_end|>"]
    assert ours.encode("a b", return_tensors="np").shape == (1, 2)
    cleaned = ours.decode([1, 2], clean_up_tokenization_spaces=True)
    assert cleaned == mlx_lm_demo_tokenizer().decode([1, 2])
    with pytest.raises(AttributeError):
        ours.no_such_thing  # noqa: B018
    assert not hasattr(ours, "_no_such_thing")


def test_transformers_tokenizer_gets_a_detokenizer():
    ours, bare = open_tokenizer(TARGET_PATH, CONFIG), mlx_lm_demo_tokenizer()._tokenizer
    assert with_detokenizer(ours) is ours
    assert not hasattr(bare, "detokenizer")
    ids = ours.encode("Two words, é and 😀.")
    assert "".join(segments(with_detokenizer(bare).detokenizer, ids)) == "Two words, é and 😀."


@pytest.mark.parametrize(
    "arguments",
    [
        {"continue_final_message": True},
        {"tools": [edit.__call__]},
        {"chat_template": "{{ messages | length }}"},
    ],
)
def test_transformers_arguments_are_passed_through(arguments):
    def outcome(tokenizer: Any) -> Any:
        try:
            return tokenizer.apply_chat_template(CHAT, **arguments)
        except Exception as error:
            return type(error), str(error)

    assert outcome(open_tokenizer(TARGET_PATH, CONFIG)) == outcome(mlx_lm_demo_tokenizer())
