"""Length limits of a request: model context and KV memory."""

from ...errors import UserError, short_repr
from .config import SchedulerConfig
from .request import EngineRequest


def fitting_max_tokens(config: SchedulerConfig, request: EngineRequest) -> int:
    """Returns the request's `max_tokens`, or the largest value that fits if it is None.

    The bounds are `max_seq_len` and `max_tokens_in_pages`. The last output token needs no slot: its
    keys and values are never computed.

    Raises:
        UserError: the prompt is empty or too long, or `max_tokens` does not fit; the message
            includes the largest `max_tokens` allowed.
    """
    prompt = request.num_prompt_tokens
    if prompt == 0:
        raise UserError("the prompt is empty; give at least one token.")
    # [task 3.3.3 fits]
    # The last output token is never computed, so it needs no slot in a page.
    in_pages = config.max_tokens_in_pages + 1 - prompt
    in_context = config.max_seq_len - prompt
    # [/task 3.3.3 fits]
    for largest, limit in (
        (in_context, f"the model's context length is {config.max_seq_len} tokens"),
        (in_pages, f"the KV memory holds {config.max_tokens_in_pages} tokens"),
    ):
        if largest < 1:
            raise UserError(f"the prompt has {prompt} tokens, but {limit}, including the output.")
        if request.max_tokens is not None and request.max_tokens > largest:
            raise UserError(
                f"the prompt has {prompt} tokens and max_tokens is "
                f"{short_repr(request.max_tokens)}, but {limit}; max_tokens must be at most "
                f"{largest} for this prompt."
            )
    return request.max_tokens or min(in_pages, in_context)
