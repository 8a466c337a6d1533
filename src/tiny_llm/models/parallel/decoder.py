"""Tensor-parallel decoder for all families, and its transformer block.

Each rank runs the decoder of a smaller model (`models/checkpoint/sharding.py`) with four changes:
attention, MLP and embedding outputs are all-reduced, and logits are all-gathered.

On a single rank, an entire decode step is one graph node (`kernels/graph_capture.py`). An
all-reduce cannot be captured, so here a block is two nodes, attention and MLP.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx

from ...kernels.graph_capture import CapturedFunction
from ...kv_storage.layer_cache import LayerCacheView
from ...kv_storage.step_plan import AttentionMetadata, LayerInputs
from ..checkpoint.sharding import RankShard
from ..families.decoder import Attention, Decoder, DecoderBlock, EagerLayers
from ..families.linear import AdapterBatch
from ..output_heads import MtpDecoder
from .group import Replica
from .layers import Group, ParallelLMHead, VocabParallelEmbedding, all_reduce


class TensorParallelBlock:
    """A rank's shard of a transformer block, with all-reduced attention and MLP outputs."""

    def __init__(self, block: DecoderBlock, group: Group, capture: bool, adapters: AdapterBatch):
        self.block, self._group = block, group
        self._capture, self._adapters = capture, adapters
        # Attention and MLP half, keyed by the names of the attention metadata arrays.
        self._halves: dict[tuple[str, ...], list[Callable[..., Any]]] = {}

    def __call__(
        self, x: mx.array, update: mx.array | None, cos_sin: LayerInputs, view: LayerCacheView
    ) -> tuple[mx.array, mx.array]:
        """Same as `DecoderBlock`, with the updates all-reduced.

        Each half of the block returns (x, partial_sum): x is the same on all ranks, and the sum of
        `partial_sum` over ranks is the half's update. `feed_forward` takes x and the first update.
        """
        metadata, updates = view.attention_metadata, [] if update is None else [update]
        adapter_ids = [] if metadata.adapter_ids is None else [metadata.adapter_ids]
        attend, second_half = self._halves_for(metadata.names)

        def feed_forward(x: mx.array, update: mx.array) -> tuple[mx.array, mx.array]:
            x, *parts = second_half(x, update, *adapter_ids)
            return x, mx.concatenate(parts)

        x, partial_sum, *buffers = attend(x, *cos_sin, *metadata.arrays, *view.buffers, *updates)
        view.buffers = buffers or view.buffers
        # [task 6.2.3 two-sums]
        x, partial_sum = feed_forward(x, all_reduce(partial_sum, self._group))
        return x, all_reduce(partial_sum, self._group)
        # [/task 6.2.3 two-sums]

    def finish(
        self, x: mx.array, update: mx.array, per_layer_inputs: mx.array | None = None
    ) -> tuple[mx.array, mx.array | None]:
        """Same as `DecoderBlock`; `update` stacks the sums of MLP and experts."""
        update = self.block.combine(*mx.split(update, update.shape[0]))
        return self.block.finish(x, update, per_layer_inputs)

    def _halves_for(self, names: tuple[str, ...]) -> list[Callable[..., Any]]:
        """Both halves as functions of arrays; `names` lists the metadata arrays."""
        if names not in self._halves:
            halves: list[Callable[..., Any]] = [partial(self._attend, names), self._feed_forward]
            # [solution only]
            if self._capture:
                halves = [CapturedFunction(half, on_first_call=False) for half in halves]
            # [/solution only]
            self._halves[names] = halves
        return self._halves[names]

    def _attend(self, names: tuple[str, ...], x: mx.array, *rest: mx.array) -> tuple[mx.array, ...]:
        num_angles = self.block.angles.stop - self.block.angles.start
        cos_sin, arrays = rest[:num_angles], [*rest[num_angles:]]
        metadata = AttentionMetadata(**dict(zip(names, arrays, strict=False)))
        buffers = arrays[len(names) :]
        update = buffers.pop() if len(buffers) > 2 else None
        self._adapters.ids = metadata.adapter_ids
        view, mixer = LayerCacheView(buffers, 0, metadata), self.block.mixer
        x, partial_sum = self.block.attend(x, update, cos_sin, view)
        reads_only = isinstance(mixer, Attention) and not mixer.has_kv
        return x, partial_sum, *([] if reads_only else buffers)

    def _feed_forward(
        self, x: mx.array, update: mx.array, adapter_ids: mx.array | None = None
    ) -> tuple[mx.array, ...]:
        # The ids are an argument, because this half is captured separately from `_attend`.
        self._adapters.ids = adapter_ids
        return self.block.feed_forward(x, update)


class TensorParallelDecoder(Decoder, Replica):
    """This rank's shard of a decoder; all ranks call it with the same arguments."""

    def __init__(self, mlx_model: Any, rank_shard: RankShard, group: Group, **options: Any):
        super().__init__(mlx_model, **options)
        self.rank_shard, self.vocab_size = rank_shard, rank_shard.full_config.vocab_size
        self.embedding = VocabParallelEmbedding(self.embedding, rank_shard.vocab_range, group)
        self.layers = [
            TensorParallelBlock(block, group, self.supports_graph_capture, self.adapters)
            for block in self.layers
        ]
        vocab = rank_shard.vocab_per_rank, self.vocab_size
        self.w_lm_head = ParallelLMHead(self.w_lm_head, *vocab, group)
        self._run_planned = EagerLayers(self._run_layers, max(self._cache_indices) + 1)

    @property
    def blocks(self) -> list[DecoderBlock]:
        return [layer.block for layer in self.layers]

    @property
    def kv_element_bytes(self) -> int:
        return super().kv_element_bytes * self.rank_shard.size

    @property
    def state_bytes(self) -> int:
        return super().state_bytes * self.rank_shard.size


class TensorParallelMtpDecoder(MtpDecoder, TensorParallelDecoder):
    """This rank's shard of an MTP layer; see `TensorParallelDecoder`."""
