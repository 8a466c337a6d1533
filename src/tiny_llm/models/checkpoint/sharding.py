"""Sharding: each rank's slices of a model's tensors.

    query, key, value, gate, up    rows: each rank computes some of the heads or MLP features
    output, down                   columns: each rank computes a partial sum
    embedding, LM head             rows: each rank holds a range of token ids
    Gated DeltaNet                 by key head, each with its value heads
    router, norms, other layers    replicated

Each expert is split like an MLP. MLP features are split at quantization group boundaries, so shard
widths may differ by one group. A rank's config describes a smaller model, from which
`tensor_shapes.py` derives the shard's shapes; only norms and router keep their size. A row shard is
contiguous in its file, and a rank reads only its shard. A column shard is a slice of each row. If
these slices are short, a rank reads full matrices instead, one at a time.

Source: Shoeybi et al., "Megatron-LM" (2019), arXiv 1909.08053.
"""

import math
import os
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

import mlx.core as mx

from ..families.config import DecoderConfig
from .layout import DTYPE_BYTES, TensorInfo

BY_ROW = {"q_proj", "gate_proj", "up_proj", "in_proj_z", "in_proj_b", "in_proj_a"}
BY_KV_HEAD = {"k_proj", "v_proj"}
BY_COLUMN = {"o_proj", "down_proj", "out_proj"}
BY_VOCAB = {"embed_tokens", "lm_head"}
MLP_LAYERS = {"gate_proj", "up_proj", "down_proj"}
BY_CHANNEL = {"in_proj_qkv", "conv1d"}  # query, key and value rows, split separately
HEAD_VECTORS = {"A_log", "dt_bias", "sinks"}  # one value per value or query head

# MLPs are split at multiples of one of these sizes, in order of preference. A width divisible by
# none of them is split evenly.
GROUP_SIZES = (128, 64, 32)

# dtype in the file -> `memoryview` format code, MLX dtype.
BUFFER_DTYPES: dict[str, tuple[Literal["f", "H", "I", "B"], mx.Dtype]] = {
    "F32": ("f", mx.float32),
    "F16": ("H", mx.float16),
    "BF16": ("H", mx.bfloat16),
    "U32": ("I", mx.uint32),
    "U8": ("B", mx.uint8),
}


@dataclass(frozen=True)
class RankShard:
    """A rank's shard of a model; ValueError if `size` ranks cannot split the model."""

    full_config: DecoderConfig
    rank: int
    size: int

    def __post_init__(self) -> None:
        full, size = self.full_config, self.size
        if full.num_attention_heads % size != 0:
            self._reject("num_attention_heads", full.num_attention_heads)
        widths = {"intermediate_size": full.intermediate_size}
        if full.experts is not None:
            widths["moe_intermediate_size"] = full.experts.intermediate_size
            if len(full.experts.layers) == full.num_hidden_layers and not full.experts.parallel_mlp:
                del widths["intermediate_size"]  # no layer has a dense MLP
            if full.experts.shared_expert_intermediate_size is not None:
                shared = full.experts.shared_expert_intermediate_size
                widths["shared_expert_intermediate_size"] = shared
        for name, width in widths.items():
            num_slices, _ = self._mlp_slices(width)
            if width % num_slices != 0:
                self._reject(name, width)
        for H in [full.num_key_value_heads, *(H for H, _ in full.kv_shapes)]:
            if H % size != 0 and size % H != 0:
                self._reject("num_key_value_heads", H)
        if full.delta_net is not None and full.delta_net.num_key_heads % size != 0:
            self._reject("linear_num_key_heads", full.delta_net.num_key_heads)
        if self.vocab_per_rank * (size - 1) >= full.vocab_size:
            raise ValueError(f"its vocab_size, {full.vocab_size}, is too small for {size} ranks")

    def _reject(self, name: str, number: int) -> NoReturn:
        raise ValueError(f"its {name}, {number}, cannot be divided evenly among {self.size} ranks")

    @property
    def config(self) -> DecoderConfig:
        full, size, experts = self.full_config, self.size, self.full_config.experts
        if experts is not None:
            shared = experts.shared_expert_intermediate_size
            experts = replace(
                experts,
                intermediate_size=self._local_width(experts.intermediate_size),
                shared_expert_intermediate_size=shared and self._local_width(shared),
            )
        delta_net = full.delta_net
        if delta_net is not None:
            delta_net = replace(
                delta_net,
                num_key_heads=delta_net.num_key_heads // size,
                num_value_heads=delta_net.num_value_heads // size,
            )
        return replace(
            full,
            num_attention_heads=full.num_attention_heads // size,
            num_key_value_heads=len(self.kv_head_range),
            kv_shapes=tuple(
                (len(self._like_layer(index).kv_head_range), D)
                for index, (_, D) in enumerate(full.kv_shapes)
            ),
            intermediate_size=self._local_width(full.intermediate_size),
            intermediate_sizes=tuple(map(self._local_width, full.intermediate_sizes)),
            vocab_size=len(self.vocab_range),
            experts=experts,
            delta_net=delta_net,
        )

    @property
    def vocab_per_rank(self) -> int:
        """Vocabulary size per rank; the last rank may have fewer tokens."""
        return -(-self.full_config.vocab_size // self.size)

    @property
    def vocab_range(self) -> range:
        """This rank's token ids: `vocab_per_rank`, or the rest on the last rank."""
        # [task 6.2.1 tokens]
        first = self.rank * self.vocab_per_rank
        return range(first, min(first + self.vocab_per_rank, self.full_config.vocab_size))
        # [/task 6.2.1 tokens]

    @property
    def kv_head_range(self) -> range:
        """This rank's key/value heads: the ones its query heads attend to.

        The number of heads is a multiple or a divisor of the number of ranks. With fewer heads
        than ranks, consecutive ranks share a head.
        """
        # [task 6.2.1 heads]
        H = self.full_config.num_key_value_heads
        first = self.rank * H // self.size
        return range(first, first + max(1, H // self.size))
        # [/task 6.2.1 heads]

    def slice_tensor(self, name: str, array: mx.array) -> mx.array:
        """Slices a tensor for this rank, as a lazy contiguous copy."""
        if self.is_zero_bias(name):
            return mx.zeros_like(array)
        if array.ndim == 0:
            return array  # no model has scalar tensors, so the shape check rejects it later
        axis, ranges = self._local_ranges(name, array.shape)
        after = (slice(None),) * (array.ndim - 1 - axis)
        parts = [array[(..., slice(each.start, each.stop), *after)] for each in ranges]
        return mx.contiguous(parts[0] if len(parts) == 1 else mx.concatenate(parts, axis))

    def byte_ranges(self, name: str, tensor: TensorInfo) -> list[range]:
        """File byte ranges of this rank's slice of a tensor, in ascending order."""
        shape, start = tensor.shape, tensor.header_end + tensor.begin
        axis, ranges = self._local_ranges(name, shape)
        step = math.prod(shape[axis + 1 :]) * DTYPE_BYTES[tensor.dtype]
        rows = range(start, tensor.header_end + tensor.end, shape[axis] * step)
        return [
            range(row + own.start * step, row + own.stop * step) for row in rows for own in ranges
        ]

    def read_tensor(self, name: str, tensor: TensorInfo) -> mx.array:
        """Reads this rank's slice from a tensor's file; call `check_dtypes` first."""
        axis, ranges = self._local_ranges(name, tensor.shape)
        shape = list(tensor.shape)
        shape[axis] = sum(map(len, ranges))
        byte_ranges = self.byte_ranges(name, tensor)
        data = memoryview(bytearray(sum(map(len, byte_ranges))))
        done = 0
        with tensor.file.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):  # disables readahead
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for byte_range in byte_ranges:
                file.seek(byte_range.start)
                end = done + len(byte_range)
                while done < end:
                    num_read = file.readinto(data[done:end])
                    if not num_read:
                        raise ValueError(f"{tensor.file} is truncated within {name}")
                    done += num_read
        code, dtype = BUFFER_DTYPES[tensor.dtype]
        numbers: Any = data.cast(code)
        return mx.array(numbers).view(dtype).reshape(shape)

    def is_zero_bias(self, name: str) -> bool:
        """Whether a tensor is zero on this rank: a bias that only rank 0 adds."""
        # [task 6.2.2 bias]
        return self.rank > 0 and name.endswith(tuple(f".{layer}.bias" for layer in BY_COLUMN))
        # [/task 6.2.2 bias]

    def split(self, layer: str, kind: str) -> tuple[int, int, range] | None:
        """Determines how a tensor is split.

        Args:
            layer: layer name, for example "q_proj" or "input_layernorm".
            kind: the layer's tensor: "weight", "scales", "biases" or "bias".

        Returns:
            (axis, −1 or −2; number of equal slices; range of this rank's slices), or None for a
            replicated tensor. A bias has only axis −1, split like the weight's rows. For MLPs,
            the caller instead splits at quantization group boundaries (`_mlp_slices`), with the
            same result if the number of groups is a multiple of the number of ranks.
        """
        # [task 6.2.2 split]
        own = range(self.rank, self.rank + 1)
        rows = -1 if kind == "bias" else -2
        if layer in BY_ROW:
            return rows, self.size, own
        if layer in BY_KV_HEAD:
            return rows, self.full_config.num_key_value_heads, self.kv_head_range
        if layer in BY_VOCAB:
            return rows, self.full_config.vocab_size, self.vocab_range
        if layer in BY_COLUMN and kind != "bias":
            return -1, self.size, own
        return None
        # [/task 6.2.2 split]

    def _local_ranges(self, name: str, shape: tuple[int, ...]) -> tuple[int, list[range]]:
        """This rank's slice: (axis, index ranges); all of axis 0 if replicated."""
        layer, _, kind = name.rpartition(".")
        layer = layer.rpartition(".")[2]
        if layer in BY_CHANNEL:
            return self._channel_ranges(name, shape)
        if layer in BY_KV_HEAD and self.full_config.kv_shapes:
            return self._like_layer(_layer_index(name))._local_ranges(name, shape)
        local = range(self.rank, self.rank + 1)
        found = (-1, self.size, local) if kind in HEAD_VECTORS else self.split(layer, kind)
        if found is None:
            return 0, [range(shape[0] if shape else 0)]
        axis, num_slices, local = found
        if layer in MLP_LAYERS:
            num_slices, local = self._mlp_slices(self._mlp_width(name))
        if len(shape) < -axis:
            raise ValueError(f"{name} has {len(shape)} dimensions, expected at least {-axis}")
        length = shape[axis]
        if length % num_slices != 0:
            what = "rows" if axis == -2 or kind == "bias" else "groups or words per row"
            raise ValueError(
                f"{name} cannot be split among {self.size} ranks: it has {length} {what}, expected "
                f"a multiple of {num_slices}"
            )
        width = length // num_slices
        return len(shape) + axis, [range(local.start * width, local.stop * width)]

    def _like_layer(self, index: int) -> "RankShard":
        """The shard of a model in which all layers have the key/value heads of one."""
        H, D = self.full_config.kv_shape_of(index)
        config = replace(self.full_config, num_key_value_heads=H, head_dim=D, kv_shapes=())
        return replace(self, full_config=config)

    def _channel_ranges(self, name: str, shape: tuple[int, ...]) -> tuple[int, list[range]]:
        delta_net = self.full_config.delta_net
        if delta_net is None or shape[:1] != (delta_net.conv_channels,):
            raise ValueError(f"the shape of {name} does not match the config")
        ranges, start = [], 0
        for width in (delta_net.key_dim, delta_net.key_dim, delta_net.value_dim):
            local = width // self.size
            ranges.append(range(start + self.rank * local, start + (self.rank + 1) * local))
            start += width
        return 0, ranges

    def _mlp_width(self, name: str) -> int:
        experts = self.full_config.experts
        if experts is not None and ".shared_expert." in name:
            return experts.shared_expert_intermediate_size or 0
        if experts is not None and (".switch_mlp." in name or ".experts." in name):
            return experts.intermediate_size
        return self.full_config.intermediate_size_of(_layer_index(name))

    def _mlp_slices(self, width: int) -> tuple[int, range]:
        """An MLP's (number of equal slices, range of this rank's slices).

        A slice is a quantization group if there are enough for all ranks, else a rank's share.
        """
        fitting = [width // group for group in GROUP_SIZES if width % group == 0]
        num_slices = next((number for number in fitting if number >= self.size), self.size)
        first, last = (rank * num_slices // self.size for rank in (self.rank, self.rank + 1))
        return num_slices, range(first, last)

    def _local_width(self, width: int) -> int:
        num_slices, local = self._mlp_slices(width)
        return width // num_slices * len(local)


def _layer_index(name: str) -> int:
    return next(int(part) for part in name.split(".") if part.isdigit())
