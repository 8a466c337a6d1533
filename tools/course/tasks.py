"""Table of the course's days and tasks, used by starter, tests and book.

A day is a chapter of the book, a test file `tests/week_N/test_day_M.py` and a few tasks. Tests of
task K are named `test_task_K_…`. A task id such as 1.3.2 is week, day and number.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

OPTIONAL_WEEKS = {5}  # its days are not needed for the course to be complete


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        id: such as "1.3.2".
        title: subject of the task.
        needs: other tasks of this or a later day that its tests require. Earlier days are
            always required.
        metal: whether it is a Metal kernel, which runs in the emulator without a Mac.
        optional: not required to complete the course, like all tasks of an optional week.
    """

    id: str
    title: str
    needs: tuple[str, ...] = ()
    metal: bool = False
    optional: bool = False

    @property
    def week(self) -> int:
        """1 to 5."""
        return int(self.id.split(".")[0])

    @property
    def day(self) -> int:
        """The day it is filed under."""
        return int(self.id.split(".")[1])

    @property
    def is_optional(self) -> bool:
        """Whether the course is complete without it."""
        return self.optional or self.week in OPTIONAL_WEEKS

    @property
    def number(self) -> int:
        """K of `test_task_K_…`."""
        return int(self.id.split(".")[2])


@dataclass(frozen=True)
class Day:
    """One chapter of the book and its tests.

    Days 2.2 and 2.3, 2.4 and 2.5, 2.6 and 2.7 belong together: the numbers of the second day's
    tasks go on from the first's.

    Attributes:
        week: 1 to 5.
        day: its number in the week.
        title: the chapter's heading, after its number.
        tasks: in the order of the chapter.
    """

    week: int
    day: int
    title: str
    tasks: tuple[Task, ...] = field(default=())

    @property
    def id(self) -> str:
        """Such as "2.2"."""
        return f"{self.week}.{self.day}"

    @property
    def name(self) -> str:
        """Such as "week 2, day 2"."""
        return f"week {self.week}, day {self.day}"

    @property
    def chapter(self) -> str:
        """The chapter's heading: "Day 2.2: quantized matmul on the CPU"."""
        return f"Day {self.id}: {self.title}"

    @property
    def test_file(self) -> str:
        """Where its tests are, from the root of the project."""
        return f"tests/week_{self.week}/test_day_{self.day}.py"


REQUIRED_DAYS = (
    Day(
        1,
        1,
        "attention and multi-head attention",
        (
            Task("1.1.1", "softmax and scaled_dot_product_attention_simple"),
            Task("1.1.2", "linear and SimpleMultiHeadAttention"),
        ),
    ),
    Day(
        1,
        2,
        "rotary positional encoding",
        (Task("1.2.1", "traditional RoPE"), Task("1.2.2", "non-traditional RoPE")),
    ),
    Day(
        1,
        3,
        "grouped-query attention and the causal mask",
        (
            Task("1.3.1", "grouped attention"),
            Task("1.3.2", "the causal mask"),
            # Qwen3 norms its heads, and the norm is the next chapter's.
            Task("1.3.3", "Qwen3's attention", needs=("1.4.1",)),
        ),
    ),
    Day(
        1,
        4,
        "RMSNorm and the MLP",
        (Task("1.4.1", "RMSNorm"), Task("1.4.2", "silu and Qwen3MLP")),
    ),
    Day(
        1,
        5,
        "the Qwen3 model",
        (
            Task("1.5.1", "the transformer block"),
            Task("1.5.2", "Embedding"),
            Task("1.5.3", "Qwen3ModelWeek1"),
        ),
    ),
    Day(1, 6, "generating text, prefill and decode", (Task("1.6.1", "simple_generate"),)),
    Day(
        1,
        7,
        "sampling, and building the extension",
        (
            Task("1.7.1", "temperature, top-k, top-p"),
            Task("1.7.2", "the extension and axpby"),
        ),
    ),
    Day(
        2,
        1,
        "the KV cache",
        (
            Task("2.1.1", "TinyKvFullCache"),
            Task("2.1.2", "attention with the cache"),
            Task("2.1.3", "Qwen3ModelWeek2"),
            Task("2.1.4", "simple_generate_with_kv_cache"),
        ),
    ),
    Day(
        2,
        2,
        "quantized matmul on the CPU",
        (
            Task("2.2.1", "QuantizedWeights and quantized_linear", needs=("2.2.2",)),
            Task("2.2.2", "quantized_matmul on the CPU", needs=("2.2.1",)),
        ),
    ),
    Day(
        2,
        3,
        "quantized matmul in Metal, and in the model",
        (
            Task("2.3.3", "quantized_matmul in Metal", metal=True),
            Task("2.3.4", "quantized weights in the model"),
        ),
    ),
    Day(
        2,
        4,
        "flash attention on the CPU",
        (
            Task("2.4.1", "the wrapper of flash_attention", needs=("2.4.2",)),
            Task("2.4.2", "flash attention on the CPU", needs=("2.4.1",)),
        ),
    ),
    Day(
        2,
        5,
        "flash attention in Metal, and in the model",
        (
            Task("2.5.3", "flash attention in Metal", metal=True),
            Task("2.5.4", "flash attention in the model"),
        ),
    ),
    Day(
        2,
        6,
        "chunks of a prompt, and requests side by side",
        (
            Task("2.6.1", "RoPE with a list of offsets, the mask for L ≠ S"),
            Task("2.6.2", "BatchingKvCache"),
        ),
    ),
    Day(
        2,
        7,
        "continuous batching",
        (
            Task("2.7.3", "batches in the model"),
            Task("2.7.4", "batch_generate", needs=("2.7.5",)),
            Task("2.7.5", "chunked prefill", needs=("2.7.4",)),
        ),
    ),
    Day(
        3,
        1,
        "the paged KV cache",
        (
            Task("3.1.1", "TinyKvPagedPool"),
            Task("3.1.2", "TinyKvPagedCache"),
            Task("3.1.3", "dense gather and Qwen3ModelWeek3"),
        ),
    ),
    Day(
        3,
        2,
        "paged attention",
        (
            Task("3.2.1", "the batch's metadata"),
            Task("3.2.2", "paged_attention"),
            Task("3.2.3", "paged attention in the model"),
            Task("3.2.4", "paged attention in batch_generate"),
        ),
    ),
    Day(
        3,
        3,
        "the scheduler, the prefix cache and preemption",
        (
            Task("3.3.1", "ragged batches"),
            Task("3.3.2", "admission and the token budget"),
            Task("3.3.3", "the prefix cache"),
            Task("3.3.4", "preemption"),
        ),
    ),
    Day(
        3,
        4,
        "speculative decoding",
        (
            Task("3.4.1", "greedy, with rewind"),
            Task("3.4.2", "rejection sampling", needs=("3.4.1",)),
        ),
    ),
    Day(
        4,
        1,
        "measure",
        (
            Task("4.1.1", "the clock"),
            Task("4.1.2", "a comparison in turns"),
            Task("4.1.3", "bytes, operations and the limit"),
            Task("4.1.4", "which kernel is slow"),
        ),
    ),
    Day(
        4,
        2,
        "factored integers and vectors",
        (
            Task("4.2.1", "the factored product"),
            Task("4.2.2", "the product in vectors"),
            Task("4.2.3", "a matrix and a few rows in Metal", metal=True, optional=True),
        ),
    ),
    Day(
        4,
        3,
        "prepacked weights, prefetching",
        (
            Task("4.3.1", "prepacked weights"),
            Task("4.3.2", "the product of prepacked weights"),
            Task("4.3.3", "prefetching, and how far ahead"),
        ),
    ),
    Day(
        4,
        4,
        "panels for many rows",
        (
            Task("4.4.1", "panels of float32"),
            Task("4.4.2", "panels of bfloat16 pairs"),
        ),
    ),
    Day(
        4,
        5,
        "threads, and fused operations",
        (
            Task("4.5.1", "chunks that threads claim"),
            Task("4.5.2", "addition and RMSNorm in one pass"),
            Task("4.5.3", "norm and rotation of the heads in one pass"),
            Task("4.5.4", "SwiGLU in one pass"),
        ),
    ),
    Day(
        4,
        6,
        "flash attention in vectors, split keys",
        (
            Task("4.6.1", "scores in vectors"),
            Task("4.6.2", "the online softmax in vectors"),
            Task("4.6.3", "split keys"),
        ),
    ),
    Day(
        4,
        7,
        "graph capture",
        (
            Task("4.7.1", "what a node costs"),
            Task("4.7.2", "steps, constants and liveness"),
            Task("4.7.3", "replaying a captured graph"),
            Task("4.7.4", "a model's step as one node"),
        ),
    ),
)

# The course is complete without these.
OPTIONAL_DAYS = (
    Day(
        5,
        1,
        "a mixture of experts",
        (
            Task("5.1.1", "the router's choice"),
            Task("5.1.2", "products sorted by expert"),
            Task("5.1.3", "each chosen expert once", needs=("5.1.2",)),
            Task("5.1.4", "the weighted sum"),
        ),
    ),
    Day(
        5,
        2,
        "one model on two processes",
        (
            Task("5.2.1", "tokens and heads of a rank"),
            Task("5.2.2", "rows and columns of a rank"),
            Task("5.2.3", "sums over the ranks"),
            Task("5.2.4", "the split vocabulary"),
        ),
    ),
)

DAYS = (*REQUIRED_DAYS, *OPTIONAL_DAYS)
TASKS = {task.id: task for day in DAYS for task in day.tasks}


def day_of(week: int, day: int) -> Day:
    """The day with this week and number.

    Raises:
        LookupError: no such day; the message lists all days.
    """
    for chapter in DAYS:
        if (chapter.week, chapter.day) == (week, day):
            return chapter
    known = ", ".join(chapter.id for chapter in DAYS)
    raise LookupError(f"unknown day {week}.{day}; give one of {known}")


def day_with_task(day: Day, number: int) -> Day:
    """The day with task K: the given day, or the other one of its pair.

    Returns:
        `day` itself if neither has the task.
    """
    place = DAYS.index(day)
    for other in DAYS[max(0, place - 1) : place + 2]:
        second = max(day, other, key=DAYS.index)
        is_pair = other is day or (other.week == day.week and second.tasks[0].number > 1)
        if is_pair and any(task.number == number for task in other.tasks):
            return other
    return day


def day_of_task(task_id: str) -> Day:
    """The chapter that has a task."""
    week, day, _ = task_id.split(".")
    return day_of(int(week), int(day))


def with_needs(tasks: Iterable[str]) -> set[str]:
    """Tasks, and all that their tests need of the same or of later days."""
    found: set[str] = set()
    waiting = list(tasks)
    while waiting:
        task = waiting.pop()
        if task not in found:
            found.add(task)
            waiting += TASKS[task].needs
    return found


def unwritten_message(task_id: str, what: str) -> str:
    """Placeholder message of an unwritten task.

    Args:
        task_id: such as "1.1.1".
        what: name of the function, such as "softmax".
    """
    task, day = TASKS[task_id], day_of_task(task_id)
    return (
        f"{day.name}, task {task.number}: {what} is yours to write; see the book, '{day.chapter}'"
    )
