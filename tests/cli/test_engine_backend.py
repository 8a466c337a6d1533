"""`main` and `chat` on the engine, the default `--loader`."""

import argparse

import pytest

from tests.engine.hybrid import STATE_BYTES, write_hybrid
from tiny_llm import LLM, UserError
from tiny_llm.cli import chat, main
from tiny_llm.cli.backends.local import (
    Backend,
    EngineBackend,
    open_backend,
    open_checkpoint,
    open_llm,
)
from tiny_llm.engine.model_runner import ModelRunner
from tiny_llm.models.memory import size_of_tree

QUESTIONS = [
    "What is the capital of France?",
    "Give me a short introduction to large language model.",
    "What is 17 + 25?",
    "Write a story about a dog.",
]


def parse(*argv: str) -> argparse.Namespace:
    return main.make_parser("main").parse_args(["--model", "demo", *argv])


def run_question(backend: Backend, question: str) -> list[tuple[int, str]]:
    prompt = backend.checkpoint.encode_chat([{"role": "user", "content": question}])
    return [(response.token, response.finish_reason) for response in backend.stream(prompt)]


@pytest.fixture
def engine_outputs(monkeypatch) -> list:
    """Records the final output of every engine request."""
    outputs = []
    stream = LLM.stream

    def record(self, prompt, params):
        output = None
        for output in stream(self, prompt, params):
            yield output
        outputs.append(output.request_output)

    monkeypatch.setattr(LLM, "stream", record)
    return outputs


@pytest.fixture(scope="module")
def week_2_outputs():
    backend = open_backend(parse("--max-tokens", "60", "--loader", "week2"))
    assert not isinstance(backend, EngineBackend)
    return [run_question(backend, question) for question in QUESTIONS]


@pytest.mark.parametrize(
    "extra_flags",
    [
        [],
        ["--draft-model", "demo-draft"],
        ["--speculative", "ngram"],
        ["--attention-backend", "flash"],
    ],
    ids=["default", "draft model", "ngram", "flash"],
)
def test_greedy_tokens_match_the_week_2_loop(week_2_outputs, engine_outputs, extra_flags):
    engine = open_backend(parse("--max-tokens", "60", *extra_flags))
    assert [run_question(engine, question) for question in QUESTIONS] == week_2_outputs
    assert len(engine_outputs) == len(QUESTIONS)


def test_speculative_decoding_streams_one_response_per_token():
    backend = open_backend(parse("--draft-model", "demo-draft"))
    prompt = backend.checkpoint.encode_chat([{"role": "user", "content": QUESTIONS[1]}])
    responses = list(backend.stream(prompt))
    count = len(responses)
    assert [response.generation_tokens for response in responses] == list(range(1, count + 1))
    assert [response.finish_reason for response in responses] == [None] * (count - 1) + ["stop"]
    assert "".join(response.text for response in responses).startswith("A large language model")
    drafts = backend.speculation_statistics()
    assert drafts.target_steps < count
    assert 0 < drafts.num_accepted_tokens <= drafts.num_draft_tokens


def test_sampling_flags_are_passed_to_the_engine(monkeypatch):
    flags = ["--sampler-temp", "0.7", "--sampler-top-p", "0.8", "--sampler-top-k", "9"]
    received = []
    monkeypatch.setattr(LLM, "stream", lambda self, prompt, params: received.append(params) or ())
    run_question(open_backend(parse(*flags, "--seed", "4", "--max-tokens", "2")), "Hello!")
    [params] = received
    assert (params.temperature, params.top_p, params.top_k) == (0.7, 0.8, 9)
    assert (params.seed, params.max_tokens, params.ignore_eos) == (4, 2, False)


@pytest.mark.slow
def test_kv_memory_covers_the_context_and_is_allocated_on_demand():
    backend = open_backend(parse("--max-tokens", "3"))
    llm = backend.stream.__self__._llm
    target, config = llm.runner.target, llm.scheduler.config
    assert target.nbytes == 0
    run_question(backend, "Hello!")
    per_token = target.model.kv_bytes_per_token
    assert 0 < target.nbytes <= 64 * per_token, "expected the memory of the request's pages"
    context = backend.checkpoint.mlx_model.args.max_position_embeddings
    assert config.num_pages * config.page_size >= context
    list(backend.stream([5] * (context - 2)))
    assert target.nbytes >= (context - 2) * per_token


def converse(*turns: str) -> list[str]:
    conversation = chat.ChatSession(open_backend(parse()))
    for turn in turns:
        conversation.ask(turn)
    return [m["content"] for m in conversation.messages if m["role"] == "assistant"]


def test_chat_turn_computes_only_new_tokens(engine_outputs):
    converse("My name is Tom.", "What is the capital of France?", "What is my name?")
    first, second, third = engine_outputs
    assert first.num_cached_tokens == 0
    for before, output in ((first, second), (second, third)):
        # All full pages of the previous prompt.
        assert output.num_cached_tokens >= len(before.prompt_token_ids) // 32 * 32
        assert len(output.prompt_token_ids) - output.num_cached_tokens < 64
    assert third.num_cached_tokens > 0


def test_interrupt_during_a_step_does_not_affect_later_turns(monkeypatch, capsys):
    run = ModelRunner.run
    steps = []

    def interrupted(self, step):
        steps.append(step)
        if len(steps) == 5:
            raise KeyboardInterrupt
        return run(self, step)

    expected = converse(QUESTIONS[1], QUESTIONS[0])
    monkeypatch.setattr(ModelRunner, "run", interrupted)
    interrupted_reply, next_reply = converse(QUESTIONS[1], QUESTIONS[0])
    assert expected[0].startswith(interrupted_reply)
    assert len(interrupted_reply) < len(expected[0])
    assert next_reply == expected[1]
    assert "[stopped]" in capsys.readouterr().err


def test_failed_step_prints_one_sentence(monkeypatch):
    def fail(self, step):
        raise RuntimeError("[malloc] no memory")

    monkeypatch.setattr(ModelRunner, "run", fail)
    with pytest.raises(UserError, match=r"the step failed: \[malloc\] no memory"):
        run_question(open_backend(parse()), "Hello!")


@pytest.mark.parametrize("extra_flags", [[], ["--speculative", "mtp"]], ids=["no drafts", "mtp"])
def test_kv_memory_for_pages_and_recurrent_states(tmp_path, extra_flags):
    folder = str(write_hybrid(tmp_path / "model", mtp=bool(extra_flags)))
    args = parse("--model", folder, "--max-tokens", "3", *extra_flags)
    args.loader = "engine"
    checkpoint = open_checkpoint(args)
    llm = open_llm(args, checkpoint, max_num_seqs=3, prefill_step=64, max_model_len=1000)
    assert size_of_tree(checkpoint.mlx_model).state_bytes == STATE_BYTES
    assert llm.runner.target.model.state_bytes == STATE_BYTES
    config = llm.scheduler.config
    pages = config.num_pages - int((2 * 3 + 16) * config.state_slot_pages)
    assert 3 * 1000 <= pages * config.page_size < 3 * 1100
    assert (llm.runner.draft is None) == (not extra_flags)
