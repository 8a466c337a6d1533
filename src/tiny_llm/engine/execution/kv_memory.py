"""KV memory budget: number of pages and state slots for the declared bytes."""

from collections.abc import Sequence

from ...errors import UserError, check_int, short_repr
from ...models import ServingModel
from ...models.memory import total_memory
from ...models.model_size import ModelSize
from ..scheduling.config import MIN_STATE_SLOTS

KvSize = ServingModel | ModelSize  # a loaded model, or sizes computed from a config


def choose_max_seq_len(max_model_len: int | None, models: Sequence[KvSize]) -> int:
    """Returns `max_model_len`, or by default the models' shortest context length."""
    context = min(model.max_seq_len for model in models)
    if max_model_len is None:
        return context
    check_int("max_model_len", max_model_len, 2)
    if max_model_len > context:
        raise UserError(
            f"max_model_len must be at most {context} (the model's context length), got "
            f"{short_repr(max_model_len)}."
        )
    return max_model_len


def choose_kv_cache_bytes(
    page_size: int,
    max_num_seqs: int,
    max_seq_len: int,
    models: Sequence[KvSize],
    available: int,
) -> tuple[int, str]:
    """Chooses the KV memory in bytes, and explains the choice: 3/4 of `available`, within bounds.

    The rest is for activations and other programs. The bounds are what `max_num_seqs` requests of
    `max_seq_len` tokens need, and the minimum that `split_kv_memory` accepts.
    """
    check_int("max_num_seqs", max_num_seqs, 1)
    page_bytes, state_bytes = page_and_state_bytes(page_size, models)
    pages = max_num_seqs * -(-max_seq_len // page_size)
    usable = pages * page_bytes + default_state_slots(max_num_seqs) * state_bytes
    if available * 3 // 4 >= usable:
        return usable, f"enough for {max_num_seqs} requests of {max_seq_len:,} tokens"
    reason = f"3/4 of the {available / 1e9:.2f} GB left by the weights"
    # If total memory is less than this minimum, `split_kv_memory` raises.
    return max(available * 3 // 4, min(_minimum(page_bytes, state_bytes), total_memory())), reason


def default_state_slots(max_num_seqs: int) -> int:
    """Returns the number of state slots for which the default KV memory has space.

    Each request needs one slot; the others hold checkpoints and the states after draft tokens.
    """
    return 2 * max_num_seqs + 16


def check_kv_cache_bytes(kv_cache_bytes: float) -> int:
    if isinstance(kv_cache_bytes, float) and kv_cache_bytes.is_integer():
        kv_cache_bytes = int(kv_cache_bytes)
    check_int("kv_cache_bytes", kv_cache_bytes, 1)
    number, total_bytes = int(kv_cache_bytes), total_memory()
    if number > total_bytes:
        raise UserError(
            f"kv_cache_bytes must be at most {total_bytes} (this machine's memory), got "
            f"{short_repr(number)}."
        )
    return number


def split_kv_memory(
    kv_cache_bytes: int, page_size: int, max_num_seqs: int, models: Sequence[KvSize]
) -> tuple[int, int, float]:
    """Returns how many pages fit in `kv_cache_bytes`, how many state slots, and pages per slot.

    Pages and slots share the memory: each used slot takes the memory of that many pages.

    Raises:
        UserError: the memory is too small for one page and `MIN_STATE_SLOTS` state slots.
    """
    check_int("max_num_seqs", max_num_seqs, 1)
    page_bytes, state_bytes = page_and_state_bytes(page_size, models)
    min_bytes = _minimum(page_bytes, state_bytes)
    if kv_cache_bytes < min_bytes:
        states = f" and {MIN_STATE_SLOTS} state slots of {state_bytes} bytes" if state_bytes else ""
        raise UserError(
            f"kv_cache_bytes must be at least {min_bytes} (a page of {page_size} tokens{states}), "
            f"got {kv_cache_bytes}."
        )
    num_pages = int(kv_cache_bytes // page_bytes)
    num_slots = (num_pages - 1) * page_bytes // state_bytes if state_bytes else 0
    return num_pages, num_slots, state_bytes / page_bytes


def _minimum(page_bytes: int, state_bytes: int) -> int:
    """Returns the bytes of one page and `MIN_STATE_SLOTS` state slots, as whole pages."""
    return (1 + -(-MIN_STATE_SLOTS * state_bytes // page_bytes)) * page_bytes


def page_and_state_bytes(page_size: int, models: Sequence[KvSize]) -> tuple[int, int]:
    page_bytes = page_size * sum(model.kv_bytes_per_token for model in models)
    return page_bytes, sum(model.state_bytes for model in models)
