"""The emulated GPU detects all seeded faults in host code."""

import os
import subprocess
import sys

import pytest

from tests.metal.host_faults.build import build
from tests.metal.host_faults.faults import FAULTS
from tiny_llm import kernels
from tools.course.tree import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not kernels.computes_on_cpu(), reason="needs a machine without a GPU"),
    pytest.mark.xdist_group("host_faults"),
]


@pytest.fixture(scope="module")
def reports() -> dict[int, list[str]]:
    """The emulated GPU's reports by fault number; 0 is the unmodified code."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.metal.host_faults.exercise", str(build())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr
    reports: dict[int, list[str]] = {}
    for line in result.stdout.splitlines():
        number, _, report = line.partition("\t")
        reports.setdefault(int(number), []).append(report)
    return reports


def test_unmodified_code_has_no_faults(reports):
    assert not any(reports[0]), [report for report in reports[0] if report]


def test_minimum_number_of_faults():
    assert len(FAULTS) >= 25
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("number", range(1, len(FAULTS) + 1), ids=lambda n: FAULTS[n - 1].name)
def test_seeded_fault_is_detected(reports, number):
    fault = FAULTS[number - 1]
    (report,) = reports[number]
    assert report, f"expected a report of the fault: {fault.name}"
    assert fault.message in report
