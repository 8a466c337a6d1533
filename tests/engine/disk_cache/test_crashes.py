"""Engines that share a cache directory are killed at random times."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engine.disk_cache import crash_worker

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_engines_never_cause_wrong_tokens(tmp_path, exhaustive, ranks):
    """Two engines at a time share a directory and are killed under load."""
    expected = crash_worker.expected_tokens(ranks)
    rng, num_answers, hits = random.Random(2), 0, 0
    for round_number in range(100 if exhaustive else 2):
        command = [sys.executable, "-m", crash_worker.__name__, str(tmp_path)]
        workers = [
            subprocess.Popen(
                [*command, str(2 * round_number + i), str(ranks)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(2)
        ]
        for worker in workers:
            for _ in range(rng.randrange(1, 4)):
                answer = json.loads(worker.stdout.readline())
                for number, token_ids in answer["answers"]:
                    assert token_ids == expected[number]
                    num_answers += 1
                hits += answer["hits"]
        time.sleep(rng.random() * 0.1)
        for worker in workers:
            worker.kill()
            worker.wait()
            worker.stdout.close()
    print(f"{2 * (round_number + 1)} kills, {num_answers} answers, {hits} tokens from disk")
    assert hits > 0
