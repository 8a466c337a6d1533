"""Tokens of OpenVINO and ONNX Runtime, compared with a reference model."""

import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from benchmark import check_peers
from benchmark.agreement import Agreement, agreement
from benchmark.check_peers import NEW_TOKENS, TIE_TOLERANCES, WORKERS, Reference, exact_matrix
from benchmark.systems.client import WorkerError

# Python interpreter with OpenVINO and ONNX Runtime; see benchmark/README.md.
PYTHON = os.environ.get("TINY_LLM_PEERS_PYTHON", sys.executable)
MODULES = {
    "openvino": "openvino_genai, optimum.intel",
    "onnxruntime": "onnxruntime_genai, onnx, torch",
}


def test_4_bit_matrices_are_exact():
    groups = np.array(exact_matrix((64, 256))).reshape(64, 2, 128)
    scales = np.abs(groups).max(-1, keepdims=True) / 8
    assert (groups.min(-1, keepdims=True) == -8 * scales).all(), (
        "each group's minimum must be −8 times its scale"
    )
    q = groups / scales
    assert (q == np.round(q)).all()
    assert q.max() == 7
    assert 0.5 / 256 < groups.var() < 2 / 256, "the variance must be 1/I, within a factor of two"


def test_agreement_counts_equal_tokens_and_ties():
    logits = np.array([[0.0, 5, 4.9], [3, 1, 0], [0, 0, 1], [7, 6, 0]], np.float32)
    actual = agreement(logits, [2, 0, 2, 1], np.array([0.2, 0.2, 0.2, 0.2]), slice(1, 3))
    assert actual == Agreement(tokens=4, equal=2, ties=1, outputs=1, equal_outputs=1)
    assert not actual.all_agree
    assert (agreement(logits[:3], [2, 0, 2], np.full(3, 0.2)) + Agreement()).all_agree


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "checkpoint"
    check_peers.write_exact_checkpoint(folder)
    return folder


class FakePeer:
    """Peer that always picks the reference model's token at rank `rank`, from 0."""

    def __init__(self, reference: Reference, rank: int):
        self._model, self._rank = reference._model, rank

    def ask(self, request):
        cache, tokens = self._model.create_kv_cache(), []
        new, offset = request["ids"], 0
        for _ in range(request["tokens"]):
            logits = self._model.next_token_logits(mx.array([new]), offset, cache)
            offset += len(new)
            new = [int(mx.argsort(-logits)[0, self._rank])]
            tokens += new
        return {"tokens": tokens, "excluded": []}


@pytest.mark.slow
@pytest.mark.parametrize("exact", TIE_TOLERANCES)
def test_peer_with_different_tokens_is_detected(checkpoint, exact):
    reference, prompt = Reference(checkpoint), check_peers.prompts()[1]
    request = {"kind": "generate", "ids": prompt, "tokens": NEW_TOKENS}
    right, wrong = (
        reference.agreement(prompt, FakePeer(reference, rank).ask(request), TIE_TOLERANCES[exact])
        for rank in (0, 9)
    )
    assert (right.equal, wrong.equal) == (NEW_TOKENS, 0)
    assert wrong.ties < NEW_TOKENS / 4, "expected few ties among the tokens at rank ten"


def test_tokens_a_peer_never_chooses_are_excluded(checkpoint):
    reference, prompt = Reference(checkpoint), check_peers.prompts()[0]
    request = {"kind": "generate", "ids": prompt, "tokens": NEW_TOKENS}
    best = FakePeer(reference, 0).ask(request)["tokens"]
    reply = {"tokens": best, "excluded": [best[0]]}
    assert not reference.agreement(prompt, reply, TIE_TOLERANCES[True]).all_agree


@pytest.fixture(params=WORKERS)
def system(request) -> str:
    """Name of another system, which is installed."""
    modules = MODULES[request.param]
    if subprocess.run([PYTHON, "-c", f"import {modules}"], capture_output=True).returncode:
        pytest.skip(f"{PYTHON} lacks {modules}; set TINY_LLM_PEERS_PYTHON to another interpreter")
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize("exact", TIE_TOLERANCES)
def test_peer_predicts_our_tokens(checkpoint, tmp_path, system, exact):
    actual = check_peers.check(system, PYTHON, exact, tmp_path, checkpoint)
    assert actual.tokens == len(check_peers.PROMPT_LENGTHS) * NEW_TOKENS
    assert actual.all_agree, str(actual)
    if exact:
        assert actual.equal == actual.tokens, str(actual)


@pytest.mark.slow
def test_worker_reports_timings(checkpoint, tmp_path, system):
    check_peers.export_once(PYTHON, WORKERS[system], checkpoint, tmp_path / "model")
    worker = check_peers.WorkerProcess(PYTHON, WORKERS[system], [str(tmp_path / "model")])
    try:
        assert worker.ready.weight_bits == pytest.approx(4.2, abs=0.1)
        assert "8-bit activations" in worker.ready.about
        assert worker.ask({"kind": "prefill", "tokens": 40})["seconds"] > 0
        assert worker.ask({"kind": "decode", "tokens": 16, "batch": 3})["seconds"] > 0
    finally:
        worker.close()


def test_failed_export_is_reported(checkpoint, tmp_path):
    with pytest.raises(WorkerError, match="missing failed to export"):
        check_peers.export_once(sys.executable, "missing_worker", checkpoint, tmp_path / "model")
    assert not (tmp_path / "model" / "exported").exists()
