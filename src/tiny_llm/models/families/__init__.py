"""Families of models: what `config.json` says of one, and the decoder that runs it.

    fields              reads single fields, and refuses what makes no sense
    rope                how RoPE is stretched beyond the context of the training
    config              a decoder's sizes and parts, settled once
    registry            turns a `config.json` into a `DecoderConfig`: the quirks of each family
    linear              a linear layer, in whatever form its weights are stored
    mlp                 the feed-forward layer
    experts             a mixture of experts in its place
    expert_products     how the chosen experts are multiplied
    attention_backends  how the decoder attends to pages
    decoder             the decoder that the config describes

A new family is a row in `registry`; a part that no family has yet also needs `decoder` and
`../tensor_shapes.py`. The course's models are Qwen3's, in `qwen3_week1.py` to `qwen3_week3.py`. The
decoder here runs layers over pages as Week 3 does, but with layers of its own, whose parts the
config chooses.
"""
