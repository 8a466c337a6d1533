"""Functions, inputs and assertions for graph capture tests."""

import io
import re

import mlx.core as mx

from tests.support import assert_same_bits, random
from tiny_llm import kernels
from tiny_llm.quantize import QuantizedWeights, project, project_each

E, H, D = 128, 4, 32


def weights(outputs: int) -> QuantizedWeights:
    packed = mx.quantize(random(outputs, E).astype(mx.bfloat16), group_size=64, bits=4)
    return QuantizedWeights(packed[1], packed[2], 64, 4, packed[0])


class CallCounter:
    def __init__(self, function):
        self.function = function
        self.count = 0

    def __call__(self, *inputs):
        self.count += 1
        return self.function(*inputs)


def block():
    """Extension operations and views, as in a layer around attention."""
    wq, wo, norm = weights(H * D), weights(E), random(E).astype(mx.bfloat16)

    def function(x, attended):
        B, H, L, D = attended.shape
        update = project(attended.swapaxes(1, 2).reshape(B, L, H * D), wo)
        total, normed = kernels.add_rms_norm(x, update, norm, 1e-6)
        first, second = project_each(normed, (wq, wq))
        heads = first.reshape(B, L, H, D)
        return x, total, heads.swapaxes(1, 2), kernels.swiglu(first, second)

    return function


def mlx_only():
    """MLX operations, which cannot be captured."""
    w = random(E, E)

    def function(x, attended):
        y = mx.softmax(x.astype(mx.float32) @ w.T, axis=-1)
        return y.reshape(*y.shape[:-1], 2, E // 2)[..., 0, :], mx.concatenate([y, y], axis=-1)

    return function


def attention():
    """Attention and a projection of selected rows of its output."""
    w = weights(H * D)

    def function(x, attended):
        B, H, L, D = attended.shape
        query = project(x, w).reshape(B, L, H, D).swapaxes(1, 2)
        out = kernels.flash_attention(query, attended, attended, causal=True)
        return out, project(out.swapaxes(1, 2)[:1].squeeze(0).reshape(L, H * D), w)

    return function


FUNCTIONS = [block, mlx_only, attention]


def capture(function, *arguments):
    """Calls a `CapturedFunction` once, which captures it for these shapes."""
    mx.eval(arguments, function(*arguments))
    return function


def inputs(B: int, L: int, by_token: bool = False):
    """x (B×L×E) and attention output (B×H×L×D), stored by head or by token."""
    x = random(B, L, E).astype(mx.bfloat16)
    if by_token:
        return x, random(B, L, H, D).astype(mx.bfloat16).swapaxes(1, 2)
    return x, random(B, H, L, D).astype(mx.bfloat16)


def assert_same(actual, expected, what):
    assert len(actual) == len(expected)
    for index, (x, y) in enumerate(zip(actual, expected, strict=True)):
        assert_same_bits(x, y, f"{what}, output {index}")


def node_names(outputs):
    dot = io.StringIO()
    mx.export_to_dot(dot, *outputs)
    return re.findall(r'label ="(\w+)", shape=rectangle', dot.getvalue())
