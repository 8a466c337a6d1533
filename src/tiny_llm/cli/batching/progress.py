"""Progress of a batch run on any implementation."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...engine.scheduling.events import PageCounts


@dataclass
class RequestProgress:
    index: int
    prompt_tokens: int
    prefilled: int = 0  # number of prompt tokens computed so far
    new_tokens: int = 0  # number of output tokens so far, including EOS
    text: str = ""

    @property
    def is_decoding(self) -> bool:
        return self.new_tokens > 0


@dataclass(frozen=True)
class EngineState:
    """Engine counters."""

    pages: PageCounts
    prompt_tokens: int  # prompt tokens of the admitted requests
    cached_tokens: int
    disk_tokens: int  # cached tokens that were read from `--prefix-cache-dir`
    preemptions: int
    num_draft_tokens: int
    num_accepted_tokens: int

    def __str__(self) -> str:
        share = self.cached_tokens / max(self.prompt_tokens, 1)
        disk = f", {self.disk_tokens} of them from disk" if self.disk_tokens else ""
        drafts = f" | draft tokens: {self.num_accepted_tokens} of {self.num_draft_tokens} accepted"
        return (
            f"prefix cache hits: {self.cached_tokens} of {self.prompt_tokens} prompt tokens "
            f"({share:.0%}){disk} | preemptions: {self.preemptions}"
            + (drafts if self.num_draft_tokens else "")
        )


@dataclass(frozen=True)
class BatchProgress:
    """Progress of a batch run up to the last step."""

    waiting: list[int]  # indices of the prompts that have not started or were preempted
    started: list[RequestProgress]
    slots: list[RequestProgress | None]  # None for an idle slot
    # Prompts in prefill without a slot, or prefilled and waiting for one; empty for the engine.
    prefilling: Sequence[RequestProgress] = ()
    engine: EngineState | None = None  # None for runs without the engine
