"""Requests fuzzed from the OpenAPI document cause neither a 5xx nor a hang."""

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.engine.hybrid import write_hybrid
from tests.server.running_server import RunningServer


def invalid_data_rejection(context, response, case):
    """Schemathesis's `negative_data_rejection`, which here also accepts 413."""
    return None if response.status_code == 413 else negative_data_rejection(context, response, case)


CHECKS = [
    not_a_server_error,
    content_type_conformance,
    invalid_data_rejection,
    response_schema_conformance,
    status_code_conformance,
]
ERROR_STATUSES = range(400, 600)


def operations(server):
    schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
    return [operation.ok() for operation in schema.get_all_operations()]


def fuzz(operation, examples):
    @hypothesis.given(
        case=operation.as_strategy()
        | operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)
    )
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def run(case):
        if isinstance(case.body, dict):
            for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                if isinstance(case.body.get(name), int) and case.body[name] > 4:
                    case.body[name] = 4  # longer completions add no coverage
        response = case.call(timeout=60)
        case.validate_response(response, checks=CHECKS)
        if response.status_code in ERROR_STATUSES and response.request.method != "HEAD":
            error = response.json()["error"]
            assert error["message"].endswith("."), error
            assert "Traceback" not in response.text

    run()


@pytest.mark.slow
def test_fuzz_of_a_hybrid_model(tmp_path):
    with RunningServer("--model", str(write_hybrid(tmp_path / "model"))) as server:
        for operation in operations(server):
            fuzz(operation, 8)
        assert server.is_empty


@pytest.mark.slow
def test_fuzz(server, exhaustive):
    assert len(operations(server)) >= 12
    for operation in operations(server):
        # 2,300 give 20,000 requests in total: operations without a body have few distinct requests.
        fuzz(operation, 2300 if exhaustive else 60)
    assert server.is_empty
