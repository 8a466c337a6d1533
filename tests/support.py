"""Shared test helpers: tolerances, comparisons, small models.

Tolerances are in units in the last place of the dtype. Comparisons are relative to the largest
expected value, because a sum's error scales with its terms, not with the result after
cancellation.
"""

import codecs
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from tiny_llm import kernels

# SciPy and mlx_lm are imported locally, because they take seconds to import and most tests need
# neither.
if TYPE_CHECKING:
    from mlx_lm.models import qwen3

    from tools.metal_emulator import Device

DTYPES = [mx.float32, mx.float16, mx.bfloat16]

# Machine epsilon: spacing of the numbers just above 1.
EPSILON = {mx.float32: 2.0**-23, mx.float16: 2.0**-10, mx.bfloat16: 2.0**-7}


# Devices under test: "gpu" is MLX's GPU on a Mac, or emulated with TINY_LLM_EMULATED_METAL=1.
DEVICES = ["cpu", *(["gpu"] if not kernels.computes_on_cpu() else [])]
# Default devices of MLX and of the extension on this machine.
_DEFAULT = mx.default_device(), kernels._stream


@contextmanager
def use_device(device: str) -> Iterator[None]:
    """Sets the default device of MLX and of the extension, one of `DEVICES`."""
    before = mx.default_device(), kernels._stream
    if device == "cpu":
        kernels.use_cpu()
    else:
        mx.set_default_device(_DEFAULT[0])
        kernels._stream = _DEFAULT[1]
    try:
        yield
    finally:
        mx.set_default_device(before[0])
        kernels._stream = before[1]


@contextmanager
def use_emulated_gpu(**settings: Any) -> Iterator["Device"]:
    """Runs the extension on the emulated GPU (needs clang 19), MLX on the CPU.

    Args:
        settings: device attributes, such as `delay`.
    """
    from tools.metal_emulator import emulated_gpu

    before = kernels._stream
    with emulated_gpu(kernels.extension(), **settings) as device:
        kernels._stream = device.stream()
        try:
            yield device
        finally:
            kernels._stream = before


def as_numpy(x: mx.array) -> np.ndarray:
    """Converts an MLX array to float32 NumPy (NumPy has no bfloat16)."""
    return np.array(x.astype(mx.float32))


def assert_close(actual: mx.array, expected: mx.array, what: str, ulps: float = 4) -> None:
    """Asserts equal shapes, and errors within `ulps` of the largest element.

    Args:
        what: name of the comparison in the error message, possibly with a hint.
        ulps: tolerance, in units of the epsilon of `actual`'s dtype.
    """
    __tracebackhide__ = True
    assert_same_shape(actual, expected, what)
    a, e = as_numpy(actual), as_numpy(expected)
    finite = np.isfinite(e)
    scale = max(1.0, float(np.abs(e[finite]).max(initial=0)))
    tolerance = ulps * EPSILON[actual.dtype] * scale
    with np.errstate(invalid="ignore"):  # inf − inf
        error = np.where(finite, np.abs(a - e), np.inf)
    error[(a == e) | (np.isnan(a) & np.isnan(e))] = 0
    error[np.isnan(error)] = np.inf
    if (error > tolerance).any():
        worst = np.unravel_index(int(error.argmax()), error.shape)
        raise AssertionError(
            f"{describe_difference(what, worst, a[worst], e[worst])} (error {error[worst]:.3g}, "
            f"allowed {tolerance:.3g}); {describe_mismatches(error > tolerance)}"
        )


def assert_equal(actual: Any, expected: Any, what: str = "") -> None:
    __tracebackhide__ = True
    if actual != expected:
        what = f"{what}: " if what else ""
        raise AssertionError(f"expected {what}{expected!r}, got {actual!r}")


def assert_same_shape(actual: mx.array, expected: mx.array, what: str) -> None:
    __tracebackhide__ = True
    if actual.shape != expected.shape:
        raise AssertionError(f"{what}: expected shape {expected.shape}, got {actual.shape}")


def describe_difference(what: str, index: Sequence[Any], actual: float, expected: float) -> str:
    position = ", ".join(str(int(i)) for i in index)
    return f"{what}: at index [{position}] expected {expected:.6g}, got {actual:.6g}"


def describe_mismatches(wrong: np.ndarray) -> str:
    return f"{int(wrong.sum())} of {wrong.size} elements are wrong"


def bits(x: mx.array) -> np.ndarray:
    """Reinterprets a floating-point array as unsigned integers."""
    return np.array(x.view(mx.uint32 if x.dtype == mx.float32 else mx.uint16))


def assert_same_bits(actual: mx.array, expected: mx.array, what: str) -> None:
    """Asserts that two floating-point arrays are bitwise equal, including NaN."""
    __tracebackhide__ = True
    assert_same_shape(actual, expected, what)
    assert actual.dtype == expected.dtype, f"{what}: expected {expected.dtype}, got {actual.dtype}"
    wrong = bits(actual) != bits(expected)
    if wrong.any():
        first = tuple(np.argwhere(wrong)[0])
        values = as_numpy(actual)[first], as_numpy(expected)[first]
        raise AssertionError(
            f"{describe_difference(what, first, *values)} (must be bitwise equal); "
            f"{describe_mismatches(wrong)}"
        )


def assert_distributed(counts: np.ndarray, expected: np.ndarray, what: str = "tokens") -> None:
    """Chi-square test against an exact distribution; impossible outcomes fail.

    Merges outcomes expected fewer than 5 times. Draws are seeded, so the result is deterministic.
    `expected` need not be normalized.
    """
    from scipy import stats

    expected = expected / expected.sum()
    shares = f"expected shares {np.round(expected, 3)}, got {np.round(counts / counts.sum(), 3)}"
    if counts.size > 50:
        shares = f"{counts.sum()} draws of {counts.size} outcomes differ from the expected shares"
    never = np.flatnonzero((expected == 0) & (counts > 0))
    assert not never.size, f"{what} {never.tolist()} must never occur: {shares}"
    frequent = expected * counts.sum() >= 5
    observed = np.append(counts[frequent], counts[~frequent].sum())
    expected_counts = np.append(expected[frequent], expected[~frequent].sum()) * counts.sum()
    kept = expected_counts > 0
    if kept.sum() > 1:
        p = stats.chisquare(observed[kept], expected_counts[kept]).pvalue
        assert p > 1e-4, f"{what} have an improbable distribution: {shares} (p-value {p:.1g})"


def random(*shape: int, dtype: mx.Dtype = mx.float32, scale: float = 1.0) -> mx.array:
    return (mx.random.normal(shape) * scale).astype(dtype)


def function_tool(name: str, parameters: dict | None = None, **fields: Any) -> dict[str, Any]:
    """Tool in OpenAI's format."""
    given = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": name, **fields, **given}}


def object_schema(**properties: Any) -> dict[str, Any]:
    """JSON schema of an object that requires all of its properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def tiny_args(**changes: Any) -> "qwen3.ModelArgs":
    """Config of a very small Qwen3; `changes` replaces fields."""
    from mlx_lm.models import qwen3

    fields: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "intermediate_size": 80,
        "num_attention_heads": 4,
        "rms_norm_eps": 1e-6,
        "vocab_size": 131,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rope_theta": 10000.0,
        "head_dim": 16,
        "tie_word_embeddings": True,
        "rope_scaling": None,
    }
    return qwen3.ModelArgs(**{**fields, **changes})


def tiny_model(dtype: mx.Dtype = mx.float32, **changes: Any) -> "qwen3.Model":
    """Randomly initialized `mlx_lm` model with varied norm weights."""
    from mlx.utils import tree_flatten
    from mlx_lm.models import qwen3

    model = qwen3.Model(tiny_args(**changes))
    weights = []
    for name, weight in tree_flatten(model.parameters()):
        if weight.ndim == 1:
            weight = 1 + 0.2 * mx.random.normal(weight.shape)
        else:
            weight = mx.random.normal(weight.shape) * weight.shape[1] ** -0.5
        weights.append((name, weight.astype(dtype)))
    model.load_weights(weights)
    return model


def tiny_quantized_model(dtype: mx.Dtype = mx.bfloat16, **changes: Any) -> "qwen3.Model":
    """4-bit `tiny_model`, with sizes that are multiples of the group size, 32."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 512}
    model = tiny_model(dtype, **{**sizes, **changes})
    nn.quantize(model, group_size=32, bits=4)
    return model


def chat_prompt(tokenizer: Any, question: str, enable_thinking: bool = False) -> list[int]:
    """Token ids of a conversation with one message."""
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, enable_thinking=enable_thinking
    )


class ByteDetokenizer:
    """Decodes bytes to text, buffering incomplete characters."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_emitted = 0
        self.text = ""

    def add_token(self, token: int) -> None:
        self.text += self._decoder.decode(bytes([token]))

    def finalize(self) -> None:
        self.text += self._decoder.decode(b"", final=True)

    @property
    def last_segment(self) -> str:
        segment = self.text[self._num_emitted :]
        self._num_emitted = len(self.text)
        return segment


class ByteTokenizer:
    """Byte-level tokenizer with end tokens 0 and 1, for generation tests."""

    eos_token_ids = frozenset({0, 1})
    vocab_size = 256

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    @property
    def detokenizer(self) -> ByteDetokenizer:
        return ByteDetokenizer()


class ScriptedModel:
    """Model with a fixed output: its logits peak at the next token of `answer`."""

    def __init__(self, prompt_len: int, answer: Sequence[int]):
        self.prompt_len = prompt_len
        self.answer = list(answer)
        self.calls: list[list[int]] = []

    def __call__(self, ids: mx.array) -> mx.array:
        assert ids.ndim == 2, f"expected ids of shape B×L, got {ids.shape}"
        self.calls.append(ids[0].tolist())
        assert len(self.calls) <= len(self.answer) + 20, (
            f"expected generation to end after {len(self.answer)} tokens, got {len(self.calls)} "
            "steps; does each step see all previous tokens, and does every end token stop it?"
        )
        token = self.answer[min(ids.shape[1] - self.prompt_len, len(self.answer) - 1)]
        last = mx.where(mx.arange(256) == token, 10.0, 0.0)
        return mx.broadcast_to(last, (*ids.shape, 256))


def assert_same_completions(
    actual: Sequence[tuple[int, str]], expected: Sequence[tuple[int, str]]
) -> None:
    """Asserts equal outputs of `batch_generate`; reports the first difference."""
    indices = [index for index, _ in actual]
    assert indices == [index for index, _ in expected], (
        f"expected one output per prompt in order, got outputs for prompts {indices}"
    )
    for (index, output), (_, reference) in zip(actual, expected, strict=True):
        if output == reference:
            continue
        same = next(
            (i for i, (a, b) in enumerate(zip(output, reference, strict=False)) if a != b),
            min(len(output), len(reference)),
        )
        hint = "it ends too early" if len(output) == same else "it diverges"
        hint = "it continues too long" if len(reference) == same else hint
        raise AssertionError(
            f"the output for prompt {index} has {len(output)} characters instead of "
            f"{len(reference)}; the first {same} are right, then {hint}: expected "
            f"{reference[same : same + 8]!r}, got {output[same : same + 8]!r}"
        )


def token_prompts(count: int, length: int, vocab_size: int) -> Iterator[list[int]]:
    """Random prompts whose lengths cycle from 1 to `length` tokens."""
    rng = np.random.default_rng(7)
    for index in range(count):
        yield rng.integers(0, vocab_size, 1 + index % length).tolist()


def assert_same_on_any_number_of_threads(program: str) -> None:
    """Asserts that a program's results do not depend on the number of threads.

    The program prints `num_threads()` and one hash per result.
    """

    def run(threads: int) -> list[str]:
        result = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "TINY_LLM_NUM_THREADS": str(threads), "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr.strip().split("\n")[-1]
        return result.stdout.split()

    results = [run(threads) for threads in (1, 2, 3, 4)]
    assert [result[0] for result in results] == ["1", "2", "3", "4"]
    different = [n for n, hashes in enumerate(zip(*results, strict=True)) if len({*hashes}) > 1]
    assert different == [0], f"results {different[1:]} differ with 1 to 4 threads"


def resident_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process; Linux only."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def address(x: mx.array) -> int:
    """Address of an evaluated array's first element."""
    return int(np.frombuffer(memoryview(mx.view(x, mx.uint8)), np.uint8).ctypes.data)


def resident_bytes_of(x: mx.array) -> int:
    """Resident memory of an evaluated array's memory pages; Linux only."""
    page = resource.getpagesize()
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        file.seek(address(x) // page * 8)
        entries = np.frombuffer(file.read(x.nbytes // page * 8), np.uint64)
    return page * int((entries >> 63).sum())


def resident_bytes_of_file(file: Path) -> int:
    """Resident memory of a file's mappings in this process; Linux only."""
    is_mapping, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split(maxsplit=5)
        if not name.endswith(":"):  # first line of a mapping: its addresses and its file
            is_mapping = values[-1] == str(file)
        elif is_mapping and name == "Rss:":
            total += 1024 * int(values[0])
    return total
