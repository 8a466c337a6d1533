"""Threads, forks, interrupts and failing listeners."""

import gc
import multiprocessing
import os
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tiny_llm
from tests.engine.hybrid import build, write_hybrid
from tests.engine.support import assert_idle, finish
from tiny_llm import LLM, SamplingParams, UserError
from tiny_llm.engine.execution import exclusive_use

PROMPTS = [[5, 6, 7, 8] * 4, [5, 6, 7, 8] * 3 + [9], [10, 11]]
PARAMS = SamplingParams(
    max_tokens=12, seed=3, ignore_eos=True, logprobs=1, presence_penalty=0.5, logit_bias={7: 9.0}
)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    return str(write_hybrid(tmp_path_factory.mktemp("models") / "hybrid", mtp=True))


def token_ids(llm):
    return [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]


def run_in_thread(function, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


OPTIONS = [{}, {"speculative": "ngram"}, {"speculative": "mtp"}, {"draft_model": "same"}]


def build_with(model, options):
    draft = {"draft_model": model} if "draft_model" in options else {}
    return build(model, slots=30, block_size=4, **options | draft)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_each_step_in_another_thread(hybrid, options):
    expected = token_ids(build_with(hybrid, options))
    llm = run_in_thread(build_with, hybrid, options)
    stream, actual = llm.stream(PROMPTS, PARAMS), {}
    while (output := run_in_thread(next, stream, None)) is not None:
        assert output.request_output.error is None
        actual[output.request_output.request_id] = output.request_output.token_ids
    assert list(actual.values()) == expected


def test_pooling_in_another_thread(demo):
    llm = LLM(demo, kv_cache_bytes=2**24, task="embed")
    assert run_in_thread(llm.embed, PROMPTS) == llm.embed(PROMPTS)


def test_concurrent_use_is_rejected(demo):
    llm = LLM(demo, kv_cache_bytes=2**24)
    expected = token_ids(llm)
    inside, rejected = threading.Event(), threading.Event()
    run = llm.runner.run

    def wait(step):
        inside.set()
        assert rejected.wait(60)
        return run(step)

    llm.runner.run = wait
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(token_ids, llm)
        assert inside.wait(60)
        for use in (lambda: token_ids(llm), llm.step, lambda: llm.add_request([5]), llm.reserve):
            with pytest.raises(UserError, match="in use by another thread"):
                use()
        rejected.set()
        assert first.result() == expected
    assert token_ids(llm) == expected


def test_streams_of_deleted_engines_are_reused(demo, monkeypatch):
    monkeypatch.setattr(exclusive_use, "_unused_streams", [])
    streams = set()
    for _ in range(2):
        gc.collect()
        streams.add(str(LLM(demo, kv_cache_bytes=2**22)._use.stream))
    assert len(streams) == 1


def use_after_fork(llm, connection):
    messages = []
    for use in (llm.step, lambda: LLM("demo")):
        try:
            use()
        except UserError as error:
            messages.append(str(error))
    connection.send(messages)
    connection.close()
    os._exit(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_use_after_a_fork_is_rejected(demo):
    llm = LLM(demo, kv_cache_bytes=2**24)
    token_ids(llm)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=use_after_fork, args=(llm, sender))
    process.start()
    assert receiver.poll(60)
    messages = receiver.recv()
    process.join()
    assert len(messages) == 2
    assert all("forked after an LLM had been built" in message for message in messages)


@pytest.mark.parametrize("name", ["demo", "hybrid"])
def test_failing_listener_does_not_affect_requests(hybrid, name, caplog):
    def listener(event):
        raise KeyError(event["event"])

    model = hybrid if name == "hybrid" else name
    expected = token_ids(LLM(model, kv_cache_bytes=2**24))
    llm = LLM(model, kv_cache_bytes=2**24, listener=listener)
    assert token_ids(llm) == expected
    assert token_ids(llm) == expected
    assert "the listener failed on the event request_added" in caplog.text
    assert_idle(llm)


class Interrupt:
    """Raises KeyboardInterrupt at the n-th line that the package executes."""

    def __init__(self, number):
        self.left = number
        self._folder = str(Path(tiny_llm.__file__).parent)

    def __call__(self, frame, event, _):
        code = frame.f_code
        if not code.co_filename.startswith(self._folder) or code.co_name in ("__del__", "<lambda>"):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    def run(self, function):
        before = sys.gettrace()
        sys.settrace(self)
        try:
            return function()
        except KeyboardInterrupt:
            return None
        finally:
            sys.settrace(before)


@pytest.mark.slow
@pytest.mark.parametrize("options", [None, *OPTIONS], ids=str)
@pytest.mark.parametrize("way", ["generate", "step"])
def test_interrupt_at_any_line(hybrid, options, way):
    demo = {"kv_cache_bytes": 2**22, "block_size": 4}
    llm = LLM("demo", **demo) if options is None else build_with(hybrid, options)
    expected = token_ids(llm)

    def step():
        names = [llm.add_request(prompt, PARAMS) for prompt in PROMPTS]
        outputs = finish(llm)
        return [outputs[name].token_ids for name in names]

    serve = step if way == "step" else lambda: token_ids(llm)
    counter = Interrupt(10**9)
    assert counter.run(serve) == expected
    num_lines, rng = 10**9 - counter.left, random.Random(2)
    for number in (rng.randint(1, num_lines) for _ in range(60)):
        Interrupt(number).run(serve)
        while llm.has_unfinished_requests:  # those of `add_request`
            for output in llm.step():
                assert output.finish_reason in (None, "length", "abort")
        assert_idle(llm)
        assert serve() == expected, number
