"""Admission: grammars are compiled before a request is queued, in worker threads."""

import asyncio
import threading
from unittest.mock import Mock

import pytest

from tests.server import conftest  # noqa: F401  (skips where the libraries are missing)
from tiny_llm import demo
from tiny_llm.engine.engine_args import EngineArgs
from tiny_llm.engine.inputs.sampling_params import SamplingParams, StructuredOutputs
from tiny_llm.errors import UserError
from tiny_llm.server.engine_client.messages import EngineReady
from tiny_llm.server.engine_client.metrics import Metrics
from tiny_llm.server.http.errors import ApiError
from tiny_llm.server.models.served_model import Phase, ServedModel, compile_grammar
from tiny_llm.server.settings import ModelSpec, Settings

PROMPTS = [[1, 2, 3]]
UNCONSTRAINED = SamplingParams(max_tokens=2)
CONSTRAINED = SamplingParams(max_tokens=2, structured_outputs=StructuredOutputs(choice=["yes"]))


def engine(compile_one):
    return EngineReady(100, 1000, 8, {}, compile_grammar=compile_one)


def failing(error):
    return engine(Mock(side_effect=error))


@pytest.mark.parametrize("error", [UserError("it is bad."), RuntimeError("/secret/path")])
def test_grammar_error_is_a_400(error):
    with pytest.raises(ApiError) as caught:
        compile_grammar(failing(error), PROMPTS, CONSTRAINED, False)
    assert caught.value.status == 400
    assert "/secret" not in caught.value.message
    assert caught.value.message.endswith(".")


def test_compilation_does_not_delay_other_requests():
    allowed = threading.Event()

    async def main():
        spec = ModelSpec(("demo",), EngineArgs(str(demo.TARGET_PATH)), lambda: None)
        model = ServedModel(spec, Settings(), Metrics(["demo"]), lambda: None)
        model.handle_message(engine(lambda *args, **options: allowed.wait(60)))
        model.transition(Phase.READY)
        constrained = asyncio.ensure_future(model.submit(PROMPTS, CONSTRAINED))
        await model.submit(PROMPTS, UNCONSTRAINED)
        assert not constrained.done()
        assert model.command_queue.get_nowait().params == UNCONSTRAINED
        allowed.set()
        await constrained
        assert model.command_queue.get_nowait().params == CONSTRAINED

    asyncio.run(main())
