"""`main` and `chat` without --loader: the engine backend."""

import argparse

import pytest

from tests.engine.hybrid import STATE_BYTES, write_hybrid
from tiny_llm import LLM, UserError
from tiny_llm.cli import chat, main
from tiny_llm.cli.backends.backend import Backend, EngineBackend, open_backend
from tiny_llm.cli.backends.checkpoint import open_checkpoint
from tiny_llm.cli.backends.engine import open_llm
from tiny_llm.engine.model_runner import ModelRunner
from tiny_llm.models.model_size import size_of_tree

QUESTIONS = [
    "What is the capital of France?",
    "Give me a short introduction to large language model.",
    "What is 17 + 25?",
    "Write a story about a dog.",
]


def flags(*argv: str) -> argparse.Namespace:
    return main.make_parser("main").parse_args(["--model", "demo", *argv])


def run_question(backend: Backend, question: str) -> list[tuple[int, str]]:
    prompt = backend.encode_chat([{"role": "user", "content": question}])
    return [(response.token, response.finish_reason) for response in backend.stream(prompt)]


@pytest.fixture
def finished(monkeypatch) -> list:
    """Records the final outputs of every engine's requests."""
    outputs = []
    stream = LLM.stream

    def watch(self, prompt, params):
        output = None
        for output in stream(self, prompt, params):
            yield output
        outputs.append(output.request_output)

    monkeypatch.setattr(LLM, "stream", watch)
    return outputs


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--draft-model", "demo-draft"],
        ["--speculative", "ngram"],
        ["--attention-backend", "flash"],
    ],
    ids=["alone", "drafts", "ngram", "flash"],
)
def test_greedy_tokens_match_the_weeks_loops(finished, more):
    engine = open_backend(flags("--max-tokens", "60", *more))
    loop = open_backend(flags("--max-tokens", "60", "--loader", "week2"))
    outputs = [run_question(engine, question) for question in QUESTIONS]
    assert outputs == [run_question(loop, question) for question in QUESTIONS]
    assert len(finished) == len(QUESTIONS), "the week's loop must not use the engine"


def test_every_token_is_one_response_with_draft_tokens():
    backend = open_backend(flags("--draft-model", "demo-draft"))
    prompt = backend.encode_chat([{"role": "user", "content": QUESTIONS[1]}])
    responses = list(backend.stream(prompt))
    assert [response.generation_tokens for response in responses] == list(
        range(1, len(responses) + 1)
    )
    assert [response.finish_reason for response in responses[:-1]] == [None] * (len(responses) - 1)
    assert responses[-1].finish_reason == "stop"
    assert "".join(response.text for response in responses).startswith("A large language model")
    drafts = backend.speculation_statistics()
    assert drafts is not None
    assert drafts.target_steps < len(responses)
    assert 0 < drafts.num_accepted_tokens <= drafts.num_draft_tokens


def test_sampling_flags_are_passed_to_the_engine(finished):
    more = ["--sampler-temp", "0.7", "--sampler-top-p", "0.8", "--sampler-top-k", "9"]
    seen = []
    stream = LLM.stream

    def watch(self, prompt, params):
        seen.append(params)
        return stream(self, prompt, params)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LLM, "stream", watch)
        run_question(open_backend(flags(*more, "--seed", "4", "--max-tokens", "2")), "Hello!")
    (params,) = seen
    assert (params.temperature, params.top_p, params.top_k) == (0.7, 0.8, 9)
    assert (params.seed, params.max_tokens, params.ignore_eos) == (4, 2, False)


def test_kv_memory_covers_the_context_and_is_allocated_on_demand():
    from tiny_llm.cli.backends.checkpoint import open_checkpoint

    args = flags("--max-tokens", "3")
    args.loader = "engine"
    checkpoint = open_checkpoint(args)
    outputs = EngineBackend(args, checkpoint)
    target = outputs._llm.runner.target
    assert target.nbytes == 0
    list(outputs.stream(checkpoint.encode_chat([{"role": "user", "content": "Hello!"}])))
    per_token = target.model.kv_bytes_per_token
    assert target.nbytes == 64 * per_token, "the first KV allocation"
    context = checkpoint.mlx_model.args.max_position_embeddings
    config = outputs._llm.scheduler.config
    assert config.num_pages * config.page_size >= context
    list(outputs.stream([5] * (context - 2)))
    assert target.nbytes >= (context - 2) * per_token


def converse(*turns: str) -> list[str]:
    conversation = chat.ChatSession(open_backend(flags()))
    for turn in turns:
        conversation.ask(turn)
    return [one["content"] for one in conversation.messages if one["role"] == "assistant"]


def test_chat_turn_computes_only_new_tokens(finished):
    converse("My name is Tom.", "What is the capital of France?", "What is my name?")
    first, second, third = finished
    assert first.num_cached_tokens == 0
    for before, output in ((first, second), (second, third)):
        num_cached = len(before.prompt_token_ids) // 32 * 32  # full pages
        assert output.num_cached_tokens >= num_cached
        assert len(output.prompt_token_ids) - output.num_cached_tokens < 64
    assert third.num_cached_tokens > 0


def test_output_interrupted_during_a_step_does_not_affect_later_ones(monkeypatch, capsys):
    run = ModelRunner.run
    steps = []

    def interrupted(self, step):
        steps.append(step)
        if len(steps) == 5:
            raise KeyboardInterrupt
        return run(self, step)

    expected = converse(QUESTIONS[1], QUESTIONS[0])
    monkeypatch.setattr(ModelRunner, "run", interrupted)
    stopped, answered = converse(QUESTIONS[1], QUESTIONS[0])
    assert expected[0].startswith(stopped)
    assert len(stopped) < len(expected[0])
    assert answered == expected[1]
    assert "[stopped]" in capsys.readouterr().err


def test_failed_step_prints_one_sentence(monkeypatch):
    def fail(self, step):
        raise RuntimeError("[malloc] no memory")

    monkeypatch.setattr(ModelRunner, "run", fail)
    with pytest.raises(UserError, match=r"the step failed: \[malloc\] no memory"):
        run_question(open_backend(flags()), "Hello!")


@pytest.mark.parametrize("more", [[], ["--speculative", "mtp"]], ids=["alone", "mtp"])
def test_memory_for_pages_and_recurrent_states(tmp_path, more):
    folder = str(write_hybrid(tmp_path / "model", mtp=bool(more)))
    args = flags("--model", folder, "--max-tokens", "3", *more)
    args.loader = "engine"
    checkpoint = open_checkpoint(args)
    llm = open_llm(args, checkpoint, max_num_seqs=3, kv_tokens=1000, prefill_step=64)
    assert size_of_tree(checkpoint.mlx_model).state_bytes == STATE_BYTES
    assert llm.runner.target.model.state_bytes == STATE_BYTES
    config = llm.scheduler.config
    assert config.num_state_slots == 2 * 3 + 16
    assert 3 * 1000 <= config.num_pages * config.page_size < 3 * 1100
    assert (llm.runner.draft is None) == (not more)
