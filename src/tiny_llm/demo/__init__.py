"""The demo model that ships with the package, so that everything works offline.

`TARGET_PATH` and `DRAFT_PATH` are folders in MLX format, which `mlx_lm.load` can read.
`scripts/demo_model/README.md` says what the model knows, what it does not, and how it was made.

Reading order: prompts.
"""

from pathlib import Path

TARGET_PATH = Path(__file__).parent / "target"
DRAFT_PATH = Path(__file__).parent / "draft"
