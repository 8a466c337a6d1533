"""`pdm run compare-layers`: first module whose output differs from mlx_lm's.

All arrays are float32, and each Week 1 module receives the input of mlx_lm's module, so an error
appears only in the module that causes it.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx

from tools.course.solution_flag import parse_with_tree, restart_in_tree

# Relative threshold: above float32 rounding errors (1e-6), below the effects of mistakes (1e-3).
TOLERANCE = 1e-4

Part = tuple[str, Callable[[mx.array], mx.array], Callable[[mx.array], mx.array]]


def difference(ours: mx.array, theirs: mx.array) -> float:
    """Maximum error relative to max |theirs|; inf for NaNs or unequal shapes."""
    if ours.shape != theirs.shape or bool(mx.any(mx.isnan(ours))):
        return float("inf")
    return float(mx.max(mx.abs(ours - theirs)) / mx.max(mx.abs(theirs)))


def parts(ours: Any, theirs: Any) -> Iterator[Part]:
    """Modules from embedding to LM head: (name, Week 1's module, mlx_lm's).

    A transformer block is split in two: x + attention(norm(x)) and x + MLP(norm(x)).
    """
    yield "embedding", ours.embedding, theirs.model.embed_tokens
    for index, (our, their) in enumerate(zip(ours.layers, theirs.model.layers, strict=True)):
        yield f"layer {index} attention", partial(_attention, our), partial(_attention, their)
        yield f"layer {index} MLP", partial(_mlp, our), partial(_mlp, their)
    yield "last norm", ours.norm, theirs.model.norm
    if theirs.args.tie_word_embeddings:
        yield "head", ours.embedding.as_linear, theirs.model.embed_tokens.as_linear
    else:
        yield "head", partial(_multiply, ours.w_lm_head), theirs.lm_head


# Works for Week 1's and mlx_lm's blocks, because their modules have the same names.
def _attention(block: Any, x: mx.array) -> mx.array:
    return x + block.self_attn(block.input_layernorm(x), mask="causal")


def _mlp(block: Any, x: mx.array) -> mx.array:
    return x + block.mlp(block.post_attention_layernorm(x))


def _multiply(weight: mx.array, x: mx.array) -> mx.array:
    return x @ weight.T


def compare(ours: Any, theirs: Any, ids: mx.array) -> Iterator[tuple[str, float]]:
    """Yields each module's name and its relative error on mlx_lm's input.

    Args:
        ours: a `Qwen3ModelWeek1` with the weights of `theirs`.
        theirs: mlx_lm's model, unquantized, in float32.
        ids: token ids of the prompt, shape (1, number of tokens).
    """
    x = ids
    for name, our, their in parts(ours, theirs):
        expected = their(x)
        yield name, difference(our(x), expected)
        x = expected


def main() -> int:
    """Exit status: 0, or 1 if a module differs by more than rounding."""
    parser = argparse.ArgumentParser(prog="compare-layers", description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--prompt", default="The capital of France is")
    args, tree = parse_with_tree(parser)
    restart_in_tree(tree, "tools.compare_layers")

    from mlx_lm.utils import dequantize_model

    from tiny_llm import Qwen3ModelWeek1, load

    theirs, tokenizer = load(args.model)
    theirs = dequantize_model(theirs)
    theirs.set_dtype(mx.float32)
    ours = Qwen3ModelWeek1(theirs)
    ids = mx.array([tokenizer.encode(args.prompt)])
    for name, error in compare(ours, theirs, ids):
        verdict = "ok" if error <= TOLERANCE else "differs"
        print(f"{name:20} {error:8.1e}  {verdict}")
        if error > TOLERANCE:
            print(f"the first module that differs: {name}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
