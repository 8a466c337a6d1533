"""What one of several ranks has of a model, when a layer's matrices are split among them.

    query, key, value, gate, up    rows: each rank computes some heads, some features of the MLP
    output, down                   columns: each rank multiplies what it computed; the sum is whole
    table, head                    rows: each rank has a part of the vocabulary
    router, norms                  whole, on every rank

Experts are split as the MLP is, each of them. The features of an MLP go to ranks by whole groups of
quantized weights, so some may have a group more than others. A rank has the config of a smaller
model, whose tensors have the shapes that `tensor_shapes.py` gives; only norms and router are as
large as before. A part of the rows lies together in its file, and nothing else is read. A part of
the columns is a piece of each row: where rows are short, a rank reads whole ones, a matrix at a
time.

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

# How many quantized weights may share a scale. What is a multiple of none is split evenly.
GROUP_SIZES = (128, 64, 32)

# Numbers of a file as Python's memory has them, and as MLX has them.
BUFFER_DTYPES: dict[str, tuple[Literal["f", "H", "I", "B"], mx.Dtype]] = {
    "F32": ("f", mx.float32),
    "F16": ("H", mx.float16),
    "BF16": ("H", mx.bfloat16),
    "U32": ("I", mx.uint32),
    "U8": ("B", mx.uint8),
}


@dataclass(frozen=True)
class RankShard:
    """A rank's part of a model.

    Args:
        full_config: the config of the whole model.
        rank: from 0.
        size: how many ranks there are.

    Raises:
        ValueError: the model cannot be split among so many.
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
        """The rank's own: as of a model with fewer heads, a narrower MLP and fewer tokens."""
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
        """How many tokens a rank has; the last one may have fewer."""
        return -(-self.full_config.vocab_size // self.size)

    @property
    def vocab_range(self) -> range:
        """The tokens of this rank, `vocab_per_rank` in order; the last rank has what is left."""
        # [task 5.2.1 tokens]
        first = self.rank * self.vocab_per_rank
        return range(first, min(first + self.vocab_per_rank, self.full_config.vocab_size))
        # [/task 5.2.1 tokens]

    @property
    def kv_head_range(self) -> range:
        """The key/value heads of this rank: those of its query heads.

        Of two numbers, heads and ranks, one is a multiple of the other. Where there are fewer heads
        than ranks, neighbouring ranks share one.
        """
        # [task 5.2.1 heads]
        H = self.full_config.num_key_value_heads
        first = self.rank * H // self.size
        return range(first, first + max(1, H // self.size))
        # [/task 5.2.1 heads]

    def slice_tensor(self, name: str, array: mx.array) -> mx.array:
        """This rank's part of a tensor, in memory of its own once it is evaluated.

        Args:
            name: of the tensor in the checkpoint.
            array: the whole tensor.
        """
        if self.is_rank_0_bias(name):
            return mx.zeros_like(array)
        return mx.contiguous(array[self._local_slices(name, array.shape)])

    def byte_ranges(self, name: str, tensor: TensorInfo) -> list[range]:
        """Which bytes of a file are this rank's part of a tensor: pieces, in order.

        Args:
            name: of the tensor.
            tensor: where it lies.
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
        """This rank's part of a tensor in a file, of which nothing else is read.

        Args:
            name: of the tensor.
            tensor: where it lies; of a dtype that weights have (`check_dtypes`).
        """
        place = self._local_slices(name, tensor.shape)
        shape = [len(range(n)[own]) for n, own in zip(tensor.shape, place, strict=True)]
        runs = self.byte_ranges(name, tensor)
        data = memoryview(bytearray(sum(map(len, runs))))
        done = 0
        with tensor.file.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):  # the disk is to read nothing ahead
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
        """Whether it is the bias of a sum over ranks, which only rank 0 adds."""
        # [task 5.2.2 bias]
        return self.rank > 0 and name.endswith(tuple(f".{layer}.bias" for layer in BY_COLUMN))
        # [/task 5.2.2 bias]

    def split(self, layer: str, kind: str) -> tuple[int, int, range] | None:
        """How a tensor is split.

        Args:
            layer: its layer's name, such as "q_proj", or "input_layernorm".
            kind: which of the layer's tensors it is: "weight", "scales", "biases", or "bias".

        Returns:
            (the axis along which it is split, −1 or −2; into how many equal pieces; which of them
            are this rank's), or None if every rank has all of it. A bias is a vector: its only axis
            is −1, and it goes with the rows. An MLP's pieces are then taken by whole groups of
            quantized weights (`_mlp_pieces`), which changes nothing where ranks divide the groups.
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
        """Where this rank's part lies in a tensor: a slice for each dimension."""
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
        """I of the MLP that a tensor belongs to: an expert's, or a layer's."""
        experts = self.full_config.experts
        if experts is not None and (".switch_mlp." in name or ".experts." in name):
            return experts.intermediate_size
        return self.full_config.intermediate_size

    def _mlp_pieces(self, width: int) -> tuple[int, range]:
        """Of how many pieces an MLP of so many features is made, and which are this rank's.

        The pieces are whole groups of quantized weights, where there are enough of them.
        """
        fitting = [width // group for group in GROUP_SIZES if width % group == 0]
        pieces = next((number for number in fitting if number >= self.size), self.size)
        first, last = (rank * pieces // self.size for rank in (self.rank, self.rank + 1))
        return pieces, range(first, last)

    def _local_width(self, width: int) -> int:
        """How many of so many features are this rank's."""
        pieces, own = self._mlp_pieces(width)
        return width // pieces * len(own)
