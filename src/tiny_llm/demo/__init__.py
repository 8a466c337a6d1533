"""Bundled demo models (target, draft and hybrid) and default prompts.

The paths are folders in MLX format. `mlx_lm.load` reads those of the target and the draft model.
`scripts/demo_model/README.md` describes their abilities, limits and training.
"""

from pathlib import Path

TARGET_PATH = Path(__file__).parent / "target"
DRAFT_PATH = Path(__file__).parent / "draft"
HYBRID_PATH = Path(__file__).parent / "hybrid"

# Default prompts: one for `main`, sixteen for `batch`, eight of which share their first paragraph,
# for prefix cache hits. The demo model, like larger models, answers all of them correctly.
INTRODUCTION_PROMPT = "Give me a short introduction to large language model."

SHARED_PARAGRAPH = (
    "Lenmora lies on the river Tavel. The town was founded in 1742. About 38000 people live there. "
    "The mayor of Lenmora is Mira Holton, who was a teacher before. Lenmora is famous "
    "for its honey "
    "cake, and people come from far away to taste it. There is a market every Saturday, "
    "in the square "
    "behind the old church. The trams of Lenmora are yellow. Its old tower is 64 metres "
    "high, and on a "
    "clear day you can see the sea from the top. Its only bridge is built of stone. A "
    "festival takes "
    "place in September, when the apples are ripe. The best known shop of the town is the House of "
    "Quinford. It sells clocks and it opened in 1890. The owner of the House of Quinford "
    "is Doran Vell, "
    "and the shop is closed on Monday."
)

BATCH_PROMPTS = (
    f"{SHARED_PARAGRAPH}\n\nWho is the mayor of Lenmora?",
    "What is the KV cache?",
    f"{SHARED_PARAGRAPH}\n\nOn which river does Lenmora lie?",
    "What is the capital of Japan?",
    f"{SHARED_PARAGRAPH}\n\nWhat does the House of Quinford sell?",
    "What is 17 + 25?",
    f"{SHARED_PARAGRAPH}\n\nHow high is the tower of Lenmora?",
    "Explain continuous batching in one sentence.",
    f"{SHARED_PARAGRAPH}\n\nWhen is the festival of Lenmora?",
    "What is the difference between prefill and decode?",
    f"{SHARED_PARAGRAPH}\n\nWhat is Lenmora famous for?",
    "What do we use to see the stars?",
    f"{SHARED_PARAGRAPH}\n\nWho owns the House of Quinford?",
    "Why is decode slow?",
    f"{SHARED_PARAGRAPH}\n\nOn which day is the market of Lenmora?",
    "Who are you?",
)
