"""What can be seen of prompts on their way through a batch, whoever serves them."""

from dataclasses import dataclass

from ...engine.scheduling.events import PageCounts


@dataclass
class RequestProgress:
    """How far a prompt is.

    Attributes:
        index: its place among the prompts.
        prompt_tokens: length of the prompt.
        prefilled: how many of them are computed.
        new_tokens: of the answer so far, the end token included.
        text: the answer so far.
    """

    index: int
    prompt_tokens: int
    prefilled: int = 0
    new_tokens: int = 0
    text: str = ""

    @property
    def is_decoding(self) -> bool:
        """Whether its answer has begun."""
        return self.new_tokens > 0


@dataclass(frozen=True)
class EngineState:
    """What only the engine has.

    Attributes:
        pages: where they are.
        prompt_tokens: of the requests that were admitted.
        cached_tokens: how many of them were found in the prefix cache.
        preemptions: how often a request gave up its pages.
        num_draft_tokens, num_accepted_tokens: of speculative decoding.
    """

    pages: PageCounts
    prompt_tokens: int
    cached_tokens: int
    preemptions: int
    num_draft_tokens: int
    num_accepted_tokens: int

    def __str__(self) -> str:
        share = self.cached_tokens / max(self.prompt_tokens, 1)
        text = (
            f"prefix cache: {self.cached_tokens} of {self.prompt_tokens} prompt tokens found "
            f"({share:.0%}) | preemptions: {self.preemptions}"
        )
        if self.num_draft_tokens:
            text += (
                f" | draft tokens: {self.num_accepted_tokens} of {self.num_draft_tokens} accepted"
            )
        return text
