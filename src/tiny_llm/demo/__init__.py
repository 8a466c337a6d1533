"""Demo models bundled for offline use: target, draft and hybrid.

The paths are folders in MLX format. `mlx_lm.load` reads those of the target and the draft model.
`scripts/demo_model/README.md` describes their abilities, limits and training.
"""

from pathlib import Path

TARGET_PATH = Path(__file__).parent / "target"
DRAFT_PATH = Path(__file__).parent / "draft"
HYBRID_PATH = Path(__file__).parent / "hybrid"
