"""What the course's own tests share."""

from tools.course.markers import all_blocks
from tools.course.tree import ROOT

# The tasks that have code to write in this version of the solution.
HAVE_CODE = {block.task for _, block in all_blocks(ROOT / "src").values() if block.task is not None}
