"""Random seeds of the pipeline."""

CORPUS_SEED = 20
HELD_OUT_SEED = 21
WEIGHT_SEED = 22
