"""Sharding: each rank's slices of a model's tensors.

    query, key, value, gate, up    rows: each rank computes some heads, some features of the MLP
    output, down                   columns: each rank computes a partial sum
    embedding, LM head             rows: each rank has a part of the vocabulary
    router, norms                  replicated

Each expert is split as the MLP. An MLP's features are split by whole quantization groups, so ranks
may differ by one group. A rank's config describes a smaller model with the tensor shapes of
`tensor_shapes.py`; only norms and router keep their size. A row shard is contiguous in its file,
and nothing else is read. A column shard is a piece of each row: if rows are short, a rank reads
whole matrices, one at a time.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism" (2019).
"""

import math
import os
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

import mlx.core as mx

from ..families.config import DecoderConfig
from .safetensors_header import DTYPE_BYTES, TensorInfo

BY_ROW = {"q_proj", "gate_proj", "up_proj"}
BY_KV_HEAD = {"k_proj", "v_proj"}
BY_COLUMN = {"o_proj", "down_proj"}
BY_VOCAB = {"embed_tokens", "lm_head"}
MLP_LAYERS = {"gate_proj", "up_proj", "down_proj"}

# Possible quantization group sizes. A width divisible by none of them is split evenly.
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
    """A rank's shard of a model.

    Args:
        full_config: config of the whole model.
        rank: rank, from 0.
        size: number of ranks.

    Raises:
        ValueError: the model cannot be split among `size` ranks.
    """

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
            if len(full.experts.layers) == full.num_hidden_layers:
                del widths["intermediate_size"]  # no layer has an MLP of this size
        for name, width in widths.items():
            pieces, _ = self._mlp_pieces(width)
            if width % pieces != 0:
                self._reject(name, width)
        H = full.num_key_value_heads
        if H % size != 0 and size % H != 0:
            self._reject("num_key_value_heads", H)
        if self.vocab_per_rank * (size - 1) >= full.vocab_size:
            raise ValueError(f"its vocab_size, {full.vocab_size}, is too small for {size} ranks")

    def _reject(self, name: str, number: int) -> NoReturn:
        raise ValueError(f"its {name}, {number}, cannot be split among {self.size} ranks")

    @property
    def config(self) -> DecoderConfig:
        """The shard's config: fewer heads, a narrower MLP and a smaller vocabulary."""
        full, size, experts = self.full_config, self.size, self.full_config.experts
        if experts is not None:
            experts = replace(
                experts, intermediate_size=self._local_width(experts.intermediate_size)
            )
        return replace(
            full,
            num_attention_heads=full.num_attention_heads // size,
            num_key_value_heads=len(self.kv_head_range),
            intermediate_size=self._local_width(full.intermediate_size),
            vocab_size=len(self.vocab_range),
            experts=experts,
        )

    @property
    def vocab_per_rank(self) -> int:
        """Vocabulary size per rank; the last rank's may be smaller."""
        return -(-self.full_config.vocab_size // self.size)

    @property
    def vocab_range(self) -> range:
        """This rank's token ids: `vocab_per_rank` in order; the last rank has the remainder."""
        # [task 5.2.1 tokens]
        first = self.rank * self.vocab_per_rank
        return range(first, min(first + self.vocab_per_rank, self.full_config.vocab_size))
        # [/task 5.2.1 tokens]

    @property
    def kv_head_range(self) -> range:
        """This rank's key/value heads: the ones its query heads use.

        Either number, of heads or of ranks, is a multiple of the other. With fewer heads than
        ranks, neighbouring ranks share one.
        """
        # [task 5.2.1 heads]
        H = self.full_config.num_key_value_heads
        first = self.rank * H // self.size
        return range(first, first + max(1, H // self.size))
        # [/task 5.2.1 heads]

    def slice_tensor(self, name: str, array: mx.array) -> mx.array:
        """Slices a tensor for this rank; a contiguous copy once evaluated.

        Args:
            name: the tensor's name in the checkpoint.
            array: the whole tensor.
        """
        if self.is_rank_0_bias(name):
            return mx.zeros_like(array)
        return mx.contiguous(array[self._local_slices(name, array.shape)])

    def byte_ranges(self, name: str, tensor: TensorInfo) -> list[range]:
        """Byte ranges in the file of this rank's slice of a tensor, in order.

        Args:
            name: the tensor's name.
            tensor: the tensor's header entry.
        """
        shape, start = tensor.shape, tensor.header_end + tensor.begin
        place, itemsize = self._local_slices(name, shape), DTYPE_BYTES[tensor.dtype]
        split = [axis for axis, own in enumerate(place) if own != slice(None)]
        if not split:
            return [range(start, tensor.header_end + tensor.end)]
        [axis] = split
        step = math.prod(shape[axis + 1 :]) * itemsize
        first, last = (end * step for end in (place[axis].start, place[axis].stop))
        rows = range(start, tensor.header_end + tensor.end, shape[axis] * step)
        return [range(row + first, row + last) for row in rows]

    def read_tensor(self, name: str, tensor: TensorInfo) -> mx.array:
        """Reads only this rank's slice of a tensor from its file.

        Args:
            name: the tensor's name.
            tensor: the tensor's header entry; its dtype has passed `check_dtypes`.
        """
        place = self._local_slices(name, tensor.shape)
        shape = [len(range(n)[own]) for n, own in zip(tensor.shape, place, strict=True)]
        runs = self.byte_ranges(name, tensor)
        data = memoryview(bytearray(sum(map(len, runs))))
        done = 0
        with tensor.file.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):  # no readahead
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for run in runs:
                file.seek(run.start)
                end = done + len(run)
                while done < end:
                    number = file.readinto(data[done:end])
                    if not number:
                        raise ValueError(f"{tensor.file} ends before {name} does")
                    done += number
        code, dtype = BUFFER_DTYPES[tensor.dtype]
        numbers: Any = data.cast(code)
        return mx.array(numbers).view(dtype).reshape(shape)

    def is_rank_0_bias(self, name: str) -> bool:
        """Whether a tensor is an all-reduced layer's bias, zero on all ranks but rank 0."""
        # [task 5.2.2 bias]
        return self.rank > 0 and name.endswith(tuple(f".{layer}.bias" for layer in BY_COLUMN))
        # [/task 5.2.2 bias]

    def split(self, layer: str, kind: str) -> tuple[int, int, range] | None:
        """How a tensor is split.

        Args:
            layer: name of its layer, such as "q_proj" or "input_layernorm".
            kind: the layer's tensor: "weight", "scales", "biases" or "bias".

        Returns:
            (axis, −1 or −2; number of equal pieces; range of this rank's pieces), or None for a
            replicated tensor. A bias is a vector: its only axis is −1, and it is split with the
            rows. For an MLP, whole quantization groups replace the pieces (`_mlp_pieces`), with the
            same result if the number of ranks divides the groups.
        """
        # [task 5.2.2 split]
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
        # [/task 5.2.2 split]

    def _local_slices(self, name: str, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """This rank's slice of a tensor, for each dimension."""
        layer, _, kind = name.rpartition(".")
        layer = layer.rpartition(".")[2]
        found = self.split(layer, kind)
        place = [slice(None)] * len(shape)
        if found is None:
            return tuple(place)
        axis, pieces, own = found
        if layer in MLP_LAYERS:
            pieces, own = self._mlp_pieces(self._mlp_width(name))
        if len(shape) < -axis:
            raise ValueError(f"{name} has {len(shape)} dimensions, which are too few for a matrix")
        length = shape[axis]
        if length % pieces != 0:
            what = "rows" if axis == -2 or kind == "bias" else "groups or words in a row"
            raise ValueError(
                f"{name} cannot be split among {self.size} ranks: it has {length} {what}, expected "
                f"a multiple of {pieces}"
            )
        width = length // pieces
        place[axis] = slice(own.start * width, own.stop * width)
        return tuple(place)

    def _mlp_width(self, name: str) -> int:
        """I of the expert or MLP that a tensor belongs to."""
        experts = self.full_config.experts
        if experts is not None and (".switch_mlp." in name or ".experts." in name):
            return experts.intermediate_size
        return self.full_config.intermediate_size

    def _mlp_pieces(self, width: int) -> tuple[int, range]:
        """Number of pieces of an MLP with I = `width`, and the range of this rank's.

        Pieces are whole quantization groups if there are at least as many as ranks.
        """
        fitting = [width // group for group in GROUP_SIZES if width % group == 0]
        pieces = next((number for number in fitting if number >= self.size), self.size)
        first, last = (rank * pieces // self.size for rank in (self.rank, self.rank + 1))
        return pieces, range(first, last)

    def _local_width(self, width: int) -> int:
        """This rank's share of I = `width` features."""
        pieces, own = self._mlp_pieces(width)
        return width // pieces * len(own)
