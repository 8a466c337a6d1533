"""Branches: several continuations of one agent run, one of which is selected.

The transcripts share a prefix, so the branches share its pages in the engine's prefix cache.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..engine.execution.sampler import completion_seed
from .loop import Agent, Transcript

Check = Callable[[Path], bool]  # takes a workspace folder; returns whether its files are correct
MakeAgent = Callable[[Path], Agent]  # takes a workspace folder; creates an agent for it


@dataclass(frozen=True)
class Branch:
    """One continuation of a run: transcript, workspace copy and request seed."""

    transcript: Transcript
    workspace: Path
    seed: int

    def run(self, make_agent: MakeAgent) -> None:
        """Runs the branch to completion."""
        make_agent(self.workspace).resume(self.transcript, self.seed)


def fork(
    transcript: Transcript, workspace: Path, count: int, folder: Path, seed: int = 0
) -> list[Branch]:
    """Forks a run into `count` branches with copies of its messages and files.

    Args:
        folder: existing folder for the branches' workspaces: "branch_0", "branch_1", …
        seed: the run's seed; branch n has seed `completion_seed(seed, n)`.
    """
    # [task 7.4.1 fork]
    branches = []
    for number in range(count):
        copy = shutil.copytree(workspace, folder / f"branch_{number}")
        branches.append(Branch(transcript.fork(), copy, completion_seed(seed, number)))
    return branches
    # [/task 7.4.1 fork]


def passes(check: Check, workspace: Path) -> bool:
    """Whether a workspace passes a check; an `OSError` or `ValueError` means no."""
    # [task 7.4.2 passes]
    try:
        return check(workspace)
    except (OSError, ValueError):
        return False
    # [/task 7.4.2 passes]


def select(branches: Sequence[Branch], check: Check) -> Branch | None:
    """Selects the first of the passing branches with the fewest steps, or None."""
    # [task 7.4.2 select]
    passing = [branch for branch in branches if passes(check, branch.workspace)]
    return min(passing, key=lambda branch: branch.transcript.steps, default=None)
    # [/task 7.4.2 select]


def vote(branches: Sequence[Branch]) -> Branch | None:
    """Selects the first branch with the most frequent answer; None if no answer.

    When comparing answers, ignores case, trailing periods, surrounding spaces and the number of
    spaces between words. In a tie, selects the answer of the earlier branch.
    """
    # [task 7.4.3 vote]
    answers = [branch.transcript.answer for branch in branches]
    votes = [
        None if answer is None else " ".join(answer.lower().split()).rstrip(" .")
        for answer in answers
    ]
    counts = Counter(answer for answer in votes if answer is not None)
    if not counts:
        return None
    winner, _ = counts.most_common(1)[0]  # the earliest answer in a tie
    return branches[votes.index(winner)]
    # [/task 7.4.3 vote]


class PageCounts(NamedTuple):
    """KV cache pages of several branches.

    Attributes:
        stored: number of distinct pages.
        shared: number of pages that several branches use.
        saved: number of additional pages that would be stored without sharing.
    """

    stored: int
    shared: int
    saved: int


def count_pages(pages: Sequence[Sequence[int]]) -> PageCounts:
    """Counts pages, given the page ids of each branch's conversation."""
    # [task 7.4.4 pages]
    owners = Counter(page for own in pages for page in own)
    shared = sum(count > 1 for count in owners.values())
    return PageCounts(len(owners), shared, owners.total() - len(owners))
    # [/task 7.4.4 pages]
