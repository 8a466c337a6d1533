"""Model families: configs, and one decoder for all of them.

A new family is a row in `registry`; a new part also needs `decoder` and
`../checkpoint/tensor_shapes.py`. The course's models are in `qwen3_week1.py` to `qwen3_week3.py`.

Reading order: config_fields, rope, config, registry, linear, mlp, experts, expert_matmul,
attention_backends, decoder.
"""
