"""Layer cache views: substitutes for the layers' caches during one planned step."""

from collections.abc import Sequence

import mlx.core as mx

from .. import kernels
from ..attention import Mask
from ..attention.paged import PagedKvMetadata, check_paged_mask
from .step_plan import AttentionMetadata


class LayerCacheView:
    """Substitute for a layer's cache during one planned step.

    Args:
        buffers: all layers' buffers; writes replace the arrays in this list.
        index: index of the layer's keys in `buffers`; the values follow.
        attention_metadata: the layer's slots and lengths.
    """

    def __init__(self, buffers: list[mx.array], index: int, attention_metadata: AttentionMetadata):
        self._buffers = buffers
        self._keys, self._values = index, index + 1
        self.attention_metadata = attention_metadata

    @property
    def buffers(self) -> list[mx.array]:
        """The layer's keys and values, or its convolution and recurrent state."""
        return [self._buffers[self._keys], self._buffers[self._values]]

    @buffers.setter
    def buffers(self, pair: Sequence[mx.array]) -> None:
        self._buffers[self._keys], self._buffers[self._values] = pair

    def append(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Writes to dense buffers B×H×capacity×D; arguments and result as in `TinyKvCache`."""
        buffers, keys, values = self._buffers, self._keys, self._values
        slots = self.attention_metadata.slot_mapping
        buffers[keys] = kernels.cache_write(buffers[keys], key, slots, overwrite=True)
        buffers[values] = kernels.cache_write(buffers[values], value, slots, overwrite=True)
        return buffers[keys], buffers[values], self.attention_metadata.context_lens

    def update_and_fetch_paged(
        self,
        key: mx.array | None,
        value: mx.array | None,
        mask_length: int | None = None,
        mask: Mask = None,
    ) -> PagedKvMetadata:
        """Writes to pages P×H×page_size×D; result as in `TinyKvPagedCache`.

        Args:
            key, value: B×H×L×D; 1×H×T×D for a ragged batch. None if an earlier layer has written
                them.
            mask_length: see `TinyKvPagedCache`.
            mask: None or "causal", returned in the metadata; "causal" for a ragged batch.

        Raises:
            ValueError: an unsupported mask, or key and value do not match the pages.
        """
        metadata = self.attention_metadata
        if not (isinstance(mask, str) and mask == "causal"):
            check_paged_mask(mask)
            if metadata.cu_seqlens_q is not None:
                raise ValueError(
                    "paged KV cache: mask must be 'causal' for a ragged batch, got None."
                )
        assert metadata.block_table is not None
        buffers, keys, values = self._buffers, self._keys, self._values
        if key is not None:
            # [task 3.3.1 ragged]
            slots = metadata.slot_mapping
            buffers[keys] = kernels.paged_cache_write(buffers[keys], key, slots, overwrite=True)
            buffers[values] = kernels.paged_cache_write(
                buffers[values], value, slots, overwrite=True
            )
            # [/task 3.3.1 ragged]
        return PagedKvMetadata(
            buffers[keys],
            buffers[values],
            metadata.block_table,
            metadata.context_lens,
            buffers[keys].shape[2],
            mask,
            metadata.cu_seqlens_q,
        )
