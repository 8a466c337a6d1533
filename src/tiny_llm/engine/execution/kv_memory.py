"""KV memory budget: number of pages and state slots for the declared bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import UserError, short_repr
from ...kv_storage.paged_storage import KvLayout
from ...models.families.decoder import Decoder
from ...models.memory import ModelSize, total_memory
from ..scheduling.config import MIN_STATE_SLOTS, KvGroup

KvSize = Decoder | ModelSize  # a loaded model, or sizes computed from a config


@dataclass(frozen=True)
class KvMemory:
    """KV memory of an engine.

    Attributes:
        num_bytes: upper bound on the memory of pages and state slots, which they share: each used
            slot takes the memory of `state_slot_pages` pages.
        reason: how `num_bytes` was chosen; empty if it was given.
        max_seq_len: maximum prompt plus output tokens.
        layouts: each model's; their pages have the same numbers.
        groups: of the target's layers. The draft model uses the first page of each block.
    """

    num_bytes: int
    reason: str
    max_seq_len: int
    num_pages: int
    num_state_slots: int
    state_slot_pages: float
    layouts: tuple[KvLayout, ...]
    groups: tuple[KvGroup, ...]

    @property
    def ignores_windows(self) -> bool:
        """Whether layers of the target keep pages before their window."""
        layout = self.layouts[0]
        return layout.ignores_windows or layout.tables[0].window > self.groups[0].window


def plan_kv_memory(
    models: Sequence[KvSize],
    available: int,
    page_size: int,
    max_num_seqs: int,
    max_model_len: int | None,
    kv_cache_bytes: float | None,
    max_num_batched_tokens: int,
    keeps_prefix: bool = False,
) -> KvMemory:
    """Sizes the KV memory of a target model and its draft model, if any.

    Args:
        available: bytes left by the weights; the default KV memory is 3/4 of it, because
            activations and other programs need the rest, but at most what `max_num_seqs` requests
            of the maximum length need.
        keeps_prefix: whether the first group keeps all pages, even if every layer has a window: the
            disk cache finds a prefix by the first group's pages.

    Raises:
        UserError: `max_model_len` or `kv_cache_bytes` is too large, or the memory is too small for
            one block and `MIN_STATE_SLOTS` state slots.
    """
    context = min(model.max_seq_len for model in models)
    max_seq_len = max_model_len or context
    if max_seq_len > context:
        raise UserError(
            f"max_model_len must be at most {context} (the model's context length), got "
            f"{short_repr(max_seq_len)}."
        )
    total_bytes = total_memory()
    state_bytes = sum(model.state_bytes for model in models)
    layouts = _layouts(models, page_size, state_bytes > 0)
    groups = _groups(layouts, keeps_prefix)
    page_bytes = sum(
        layout.page_elements * model.kv_element_bytes
        for layout, model in zip(layouts, models, strict=True)
    )
    block_pages = layouts[0].block_pages
    min_bytes = (block_pages + -(-MIN_STATE_SLOTS * state_bytes // page_bytes)) * page_bytes
    if kv_cache_bytes is not None:
        num_bytes, reason = int(kv_cache_bytes), ""
        if num_bytes > total_bytes:
            raise UserError(
                f"kv_cache_bytes must be at most {total_bytes} (this machine's memory), got "
                f"{short_repr(num_bytes)}."
            )
    else:
        step = page_size, max_num_batched_tokens
        pages = max_num_seqs * sum(group.max_pages(max_seq_len, *step) for group in groups)
        num_bytes = pages * page_bytes + default_state_slots(max_num_seqs) * state_bytes
        reason = f"enough for {max_num_seqs} requests of {max_seq_len:,} tokens"
        if available * 3 // 4 < num_bytes:
            num_bytes = max(available * 3 // 4, min(min_bytes, total_bytes))
            reason = f"3/4 of the {available / 1e9:.2f} GB left by the weights"
    if num_bytes < min_bytes:
        states = f" and {MIN_STATE_SLOTS} state slots of {state_bytes} bytes" if state_bytes else ""
        raise UserError(
            f"kv_cache_bytes must be at least {min_bytes} (a page of {page_size} tokens{states}), "
            f"got {num_bytes}."
        )
    num_pages = num_bytes // page_bytes
    num_slots = (num_pages - 1) * page_bytes // state_bytes if state_bytes else 0
    sizes = num_pages, num_slots, state_bytes / page_bytes
    return KvMemory(num_bytes, reason, max_seq_len, *sizes, tuple(layouts), groups)


def _layouts(models: Sequence[KvSize], page_size: int, one_table: bool) -> list[KvLayout]:
    target, *drafts = (model.kv_layers for model in models)
    layout = (KvLayout.one_table if one_table else KvLayout.from_layers)(target, page_size)
    return [layout, *(KvLayout.one_table(d, page_size, layout.block_pages) for d in drafts)]


def _groups(layouts: Sequence[KvLayout], keeps_prefix: bool) -> tuple[KvGroup, ...]:
    """The target's groups; the first keeps what the draft model needs, too."""
    windows = [layout.tables[0].window for layout in layouts]
    (_, num_pages), *others = layouts[0].groups
    first = KvGroup(0 if keeps_prefix or not all(windows) else max(windows), num_pages)
    return (first, *(KvGroup(*other) for other in others))


def default_state_slots(max_num_seqs: int) -> int:
    """Returns the number of state slots for which the default KV memory has space.

    Each request needs one slot; the others hold checkpoints and the states after draft tokens.
    """
    return 2 * max_num_seqs + 16
