"""Week 1, day 7: sampling, and building the extension."""

import mlx.core as mx
import numpy as np
import pytest

from tests.metal.support import DTYPE_NAMES, as_array, as_bound, empty, run
from tests.support import as_numpy, assert_close, assert_distributed, assert_equal, random
from tiny_llm import kernels, make_sampler
from tiny_llm.sampling_ops import apply_top_k, apply_top_p

V = 12
DRAWS = 20_000


def distribution(seed: int = 0) -> np.ndarray:
    """Unsorted probabilities of V tokens, from a few percent to tens of percent."""
    logits = np.random.default_rng(seed).normal(size=V)
    return np.exp(logits) / np.exp(logits).sum()


def exact(p: np.ndarray, temp=1.0, top_p=None, top_k=None, min_p=None) -> np.ndarray:
    """Reference distribution of the sampler, token by token, in float64."""
    ranked = sorted(range(len(p)), key=lambda token: -p[token])
    kept = ranked[:top_k] if top_k is not None else ranked
    if top_p is not None:
        total, mass, nucleus = sum(p[token] for token in kept), 0.0, []
        for token in kept:
            nucleus.append(token)
            mass += p[token] / total
            if mass >= top_p:
                break
        kept = nucleus
    if min_p is not None:
        kept = [token for token in kept if p[token] >= min_p * p[ranked[0]]]
    q = np.zeros_like(p)
    q[kept] = p[kept] ** (1 / temp)
    return q / q.sum()


def draw(p: np.ndarray, draws: int = DRAWS, **options) -> np.ndarray:
    """Frequency of each token in `draws` independent samples from p."""
    logprobs = mx.broadcast_to(mx.log(mx.array(p.astype(np.float32))), (draws, len(p)))
    ids = make_sampler(**{"temp": 1.0, "seed": 1, **options})(logprobs)
    assert ids.shape == (draws,)
    return np.bincount(np.array(ids), minlength=len(p))


OPTIONS = [
    *({"temp": temp} for temp in (0.3, 0.7, 1.0, 2.5)),
    *({"top_k": top_k} for top_k in (1, 2, 5, V, 100)),
    *({"top_p": top_p} for top_p in (1e-6, 0.2, 0.5, 0.9, 0.999, 1.0)),
    *({"min_p": min_p} for min_p in (0.0, 0.1, 0.6, 1.0)),
    {"temp": 0.8, "top_k": 8, "top_p": 0.85, "min_p": 0.1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_task_1_tokens_have_the_exact_distribution(device, options):
    p = distribution(3 if len(options) > 1 else 0)
    assert_distributed(draw(p, **options), exact(p, **options))


def test_task_1_temperature_zero_is_argmax(device, dtype):
    logprobs = mx.random.normal((5, 33)).astype(dtype)
    assert make_sampler(0)(logprobs).tolist() == mx.argmax(logprobs, axis=-1).tolist()
    with_filters = make_sampler(0, top_p=0.1, top_k=2, min_p=0.5)
    assert with_filters(logprobs).tolist() == mx.argmax(logprobs, axis=-1).tolist()


def test_task_1_order_of_the_filters(device):
    p = np.array([0.1, 0.5, 0.15, 0.25])
    assert set(np.flatnonzero(draw(p, top_p=0.6))) == {1, 3}, (
        "expected the tokens with 0.5 and 0.25, because 0.5 alone is less than 0.6"
    )
    assert set(np.flatnonzero(draw(p, top_p=0.45))) == {1}
    # The first token has 4/7 ≥ 0.55 of the mass of {0.4, 0.3}, but only 0.4 of the total.
    drawn = set(np.flatnonzero(draw(np.array([0.4, 0.3, 0.2, 0.1]), top_k=2, top_p=0.55)))
    assert drawn == {0}, "top-p must apply to the renormalized mass of the tokens kept by top-k"
    # Before temperature, the first token alone reaches top_p. At temperature 5, it would not.
    p = np.array([0.6, 0.2, 0.1, 0.1])
    assert set(np.flatnonzero(draw(p, temp=5.0, top_p=0.5))) == {0}


@pytest.mark.parametrize(
    ("logprobs", "top_p", "expected"), [([-2.0] * 4, 0.5, 2), ([0.0, -40.0], 1, 2)]
)
def test_task_1_top_p_keeps_the_smallest_set_with_the_mass(device, logprobs, top_p, expected):
    kept = mx.isfinite(apply_top_p(mx.array([logprobs]), top_p)).sum().item()
    assert kept == expected, (
        f"{logprobs}, p = {top_p}: expected {expected} tokens, got {kept} (p = 1 keeps every token)"
    )


def test_task_1_ties(device):
    kept = mx.isfinite(apply_top_k(mx.full((1, 5), -2.0), 2)).sum().item()
    assert kept == 2, f"5 equal tokens, k = 2: expected 2, got {kept}"
    logprobs = mx.log(mx.array([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4]]))
    actual = make_sampler(0).probabilities(logprobs).tolist()
    expected = [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]  # the lowest id in a tie
    assert actual == expected, f"expected {expected}, got {actual}"


@pytest.mark.parametrize("keep", [lambda x: apply_top_p(x, 0.6), lambda x: apply_top_k(x, 3)])
def test_task_1_filters_keep_the_log_probabilities(device, keep):
    logprobs = mx.log(mx.array(distribution().astype(np.float32)))[None]
    filtered = keep(logprobs)
    expected = mx.where(mx.isfinite(filtered), logprobs, -mx.inf)
    assert filtered.tolist() == expected.tolist(), "expected unchanged values of the kept tokens"


@pytest.mark.parametrize("temp", [0, 0.7])
def test_task_1_logits_are_float32(device, temp):
    logprobs = mx.array([[-0.5, -1.5, -3.0]], mx.bfloat16)
    actual = make_sampler(temp).logits(logprobs)
    assert actual.dtype == mx.float32, f"expected float32, got {actual.dtype}"
    if temp:
        exact = logprobs.astype(mx.float32) / temp
        assert_close(actual, exact, "logits: convert to float32, then divide")


def test_task_1_rows_are_sampled_independently(device):
    rows = [distribution(seed) for seed in range(4)]
    options = {"temp": 0.9, "top_k": 5, "top_p": 0.8}
    logprobs = mx.log(mx.array(np.stack(rows).astype(np.float32)))
    logprobs = mx.repeat(logprobs, DRAWS // 4, axis=0)
    ids = np.array(make_sampler(seed=2, **options)(logprobs)).reshape(4, -1)
    for row, p in zip(ids, rows, strict=True):
        assert_distributed(np.bincount(row, minlength=V), exact(p, **options))


def test_task_1_state_of_a_sampler(device):
    sampler = make_sampler(1.0, seed=4)
    logprobs = mx.zeros((1, 50))
    assert len({sampler(logprobs).item() for _ in range(20)}) > 5
    logprobs = mx.zeros((3, 50))

    def draws(seed):
        sampler = make_sampler(1.0, seed=seed)
        return [sampler(logprobs).tolist() for _ in range(5)]

    assert draws(7) == draws(7)
    assert draws(7) != draws(8)
    mx.random.seed(1)
    first = draws(None)
    mx.random.seed(1)
    assert first == draws(None), "a sampler without a seed must draw from MLX's global state"
    logprobs = mx.log(mx.array(distribution().astype(np.float32)))[None]
    before = np.array(logprobs)
    make_sampler(1.0, top_p=0.3, top_k=3, seed=0)(logprobs)
    np.testing.assert_array_equal(before, np.array(logprobs))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temp": -0.1}, "temperature must be a number ≥ 0 .*, got -0.1"),
        ({"temp": float("nan")}, "temperature must be a number ≥ 0 .*, got nan"),
        ({"temp": float("inf")}, "temperature must be a number ≥ 0 .*, got inf"),
        ({"top_p": 0.0}, "top-p must be in .*, got 0.0"),
        ({"top_p": 1.5}, "top-p must be in .*, got 1.5"),
        ({"top_p": float("nan")}, "top-p must be in .*, got nan"),
        ({"top_k": 0}, "top-k must be an integer of at least 1, got 0"),
        ({"top_k": 1.5}, "top-k must be an integer of at least 1, got 1.5"),
        ({"min_p": -0.1}, "min-p must be in .*, got -0.1"),
        ({"min_p": 2.0}, "min-p must be in .*, got 2.0"),
    ],
)
def test_task_1_out_of_range_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        make_sampler(**{"temp": 1.0, **options})


# Task 2: the CPU kernel, and the Metal kernel on the emulator or a Mac's GPU.


@pytest.mark.parametrize("size", [1, 2, 3, 33, 67, 1000])
def test_task_2_axpby(dtype, size):
    x, y = random(size, dtype=dtype), random(size, dtype=dtype)
    z = kernels.axpby(x, y, 4.0, 2.0, stream=mx.cpu)
    assert z.dtype == dtype
    expected = 4.0 * x.astype(mx.float32) + 2.0 * y.astype(mx.float32)
    assert_close(z, expected.astype(dtype), "axpby: computed in float32, rounded once", ulps=1)


def test_task_2_axpby_computes_in_float32(dtype):
    x, y = mx.ones(3, dtype=dtype), -mx.ones(3, dtype=dtype)
    # Rounded to 16 bits, alpha would be 1 and the result would cancel.
    z = kernels.axpby(x, y, 1 + 2.0**-12, 1.0, stream=mx.cpu)
    assert as_numpy(z).tolist() == [2.0**-12] * 3, "expected a single rounding, of the result"


@pytest.mark.parametrize(
    ("x_shape", "y_shape"), [((3, 4), (4,)), ((2, 1, 5), (3, 1)), ((), (7,)), ((0, 3), (3,))]
)
def test_task_2_shapes_broadcast(x_shape, y_shape):
    x, y = random(*x_shape), random(*y_shape)
    assert_close(kernels.axpby(x, y, 2.0, -1.0, stream=mx.cpu), 2.0 * x - y, "broadcast axpby")


def test_task_2_strides_dtypes_and_infinity():
    x, y = random(6, 4).T, random(8, 12)[::2, ::2]
    assert_close(kernels.axpby(x, y, 2.0, 3.0, stream=mx.cpu), 2.0 * x + 3.0 * y, "strides")
    x = mx.array([1.5, 2.5], dtype=mx.float16)
    assert kernels.axpby(x, mx.array([1, 2]), 1.0, 1.0, stream=mx.cpu).dtype == mx.float16
    integers = kernels.axpby(mx.array([1, 2]), mx.array([3, 4]), 0.5, 1.0, stream=mx.cpu)
    assert integers.dtype == mx.float32
    assert integers.tolist() == [3.5, 5.0]
    x = mx.array([mx.nan, mx.inf, -mx.inf])
    z = as_numpy(kernels.axpby(x, mx.ones(3), 1.0, 1.0, stream=mx.cpu))
    assert np.isnan(z[0])
    assert z[1:].tolist() == [np.inf, -np.inf]


def test_task_2_gradients_and_compilation():
    x, y = random(5), random(5)
    with mx.stream(mx.cpu):

        def f(x, y):
            return kernels.axpby(x, y, 4.0, 2.0)

        _, (slope,) = mx.jvp(f, [x, y], [mx.ones(5), 3 * mx.ones(5)])
        assert slope.tolist() == [10.0] * 5
        _, (by_x, by_y) = mx.vjp(f, [x, y], [mx.ones(5)])
        assert by_x.tolist() == [4.0] * 5
        assert by_y.tolist() == [2.0] * 5
        assert mx.grad(lambda x: f(x, y).sum())(x).tolist() == [4.0] * 5
        assert mx.grad(lambda y: f(x, y).sum())(y).tolist() == [2.0] * 5
    x, y = random(8), random(8)
    with mx.stream(mx.cpu):
        compiled = mx.compile(lambda x, y: mx.exp(kernels.axpby(x, y, 0.5, 0.25)))
        assert_close(compiled(x, y), mx.exp(0.5 * x + 0.25 * y), "compiled")


@pytest.mark.parametrize("axes", [(0, 0), (1, 1), (0, None), (None, 1), (0, 1)])
def test_task_2_vmap(axes):
    x, y = (random(*{0: (3, 4), 1: (4, 3), None: (4,)}[axis]) for axis in axes)
    with mx.stream(mx.cpu):
        actual = mx.vmap(lambda x, y: kernels.axpby(x, y, 4.0, 2.0), in_axes=axes)(x, y)
        expected = mx.vmap(lambda x, y: 4.0 * x + 2.0 * y, in_axes=axes)(x, y)
    assert_close(actual, expected, f"vmap over {axes}")


def test_task_2_wrong_arguments():
    with pytest.raises(TypeError):
        kernels.axpby("x", mx.ones(2), 1.0, 1.0, stream=mx.cpu)
    with pytest.raises(ValueError, match="broadcast"):
        kernels.axpby(mx.ones(2), mx.ones(3), 1.0, 1.0, stream=mx.cpu)


def axpby_in_metal(x, y, alpha: float, beta: float) -> mx.array:
    dtype = DTYPE_NAMES[x.dtype]
    launch = kernels.extension().metal.axpby_launch(x.size, alpha, beta, dtype)
    z = empty(x.shape, dtype)
    run("axpby/axpby.metal", launch, [as_bound(x), as_bound(y), z])
    return as_array(z)


@pytest.mark.parametrize("size", [1, 255, 256, 1000])
def test_task_2_axpby_in_metal(dtype, size):
    x, y = random(size, dtype=dtype), random(size, dtype=dtype)
    expected = kernels.axpby(x, y, 4.3, -2.1, stream=mx.cpu)
    what = "axpby.metal: in float32, rounded once"
    assert_close(axpby_in_metal(x, y, 4.3, -2.1), expected, what, ulps=1)


def test_task_2_axpby_in_metal_computes_in_float32(dtype):
    x, y = mx.ones(3, dtype=dtype), -mx.ones(3, dtype=dtype)
    # Rounded to 16 bits, alpha would be 1 and the result would cancel.
    z = axpby_in_metal(x, y, 1 + 2.0**-12, 1.0)
    assert_equal(as_numpy(z).tolist(), [2.0**-12] * 3, "a single rounding, of the result")
