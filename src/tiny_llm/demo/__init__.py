"""Demo target and draft models bundled with the package, for offline use.

`TARGET_PATH` and `DRAFT_PATH` are folders in MLX format, readable by `mlx_lm.load`.
`scripts/demo_model/README.md` describes their abilities, limits and training.
"""

from pathlib import Path

TARGET_PATH = Path(__file__).parent / "target"
DRAFT_PATH = Path(__file__).parent / "draft"
