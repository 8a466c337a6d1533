"""Model families: their configs, and one decoder for all families.

A new family requires an entry in `registry`; a new kind of layer also requires changes to
`decoder` and `../checkpoint/tensor_shapes.py`. The course's models are in `qwen3_week1.py` to
`qwen3_week3.py`.

Reading order: config_fields, rope, config, linear, gemma4, registry, experts,
tensor_layout, attention_backends, gated_delta_net, decoder.
"""
