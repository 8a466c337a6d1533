"""Table of the course's days and tasks, for starter, tests and book.

A day is a chapter of the book, a test file `tests/week_N/test_day_M.py` and a few tasks. Tests of
task K are named `test_task_K_…`. A task id such as 1.3.2 is week, day and number.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

OPTIONAL_WEEKS = {5, 6, 7}  # not required to complete the course


@dataclass(frozen=True)
class Task:
    """One task of the course.

    Attributes:
        id: week, day and number, such as "1.3.2".
        needs: other tasks of the same or a later day that the task's tests require. Earlier days
            are always required.
        metal: whether the task is a Metal kernel, which the emulator runs if there is no Mac.
        optional: whether the course is complete without the task; implied in an optional week.
    """

    id: str
    title: str
    needs: tuple[str, ...] = ()
    metal: bool = False
    optional: bool = False

    @property
    def week(self) -> int:
        """Week of the task, 1 to 7."""
        return int(self.id.split(".")[0])

    @property
    def day(self) -> int:
        """Number of the task's day in the week."""
        return int(self.id.split(".")[1])

    @property
    def is_optional(self) -> bool:
        """Whether the course is complete without the task."""
        return self.optional or self.week in OPTIONAL_WEEKS

    @property
    def number(self) -> int:
        """Number of the task: K in `test_task_K_…`."""
        return int(self.id.split(".")[2])


@dataclass(frozen=True)
class Day:
    """One chapter of the book and its tests.

    Days 2.2 and 2.3, 2.4 and 2.5, 2.6 and 2.7 are pairs: the second day continues the first's
    task numbers.
    """

    week: int
    day: int
    title: str
    tasks: tuple[Task, ...] = field(default=())

    @property
    def id(self) -> str:
        """Identifier such as "2.2"."""
        return f"{self.week}.{self.day}"

    @property
    def name(self) -> str:
        """Name such as "week 2, day 2"."""
        return f"week {self.week}, day {self.day}"

    @property
    def chapter(self) -> str:
        """The chapter's heading: "Day 2.2: quantized matmul on the CPU"."""
        return f"Day {self.id}: {self.title}"

    @property
    def test_file(self) -> str:
        """Path of the day's tests, relative to the project's root."""
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
        "RoPE",
        (Task("1.2.1", "traditional RoPE"), Task("1.2.2", "non-traditional RoPE")),
    ),
    Day(
        1,
        3,
        "grouped-query attention and the causal mask",
        (
            Task("1.3.1", "grouped attention"),
            Task("1.3.2", "the causal mask"),
            # Qwen3 normalizes each head, with the next day's RMSNorm.
            Task("1.3.3", "Qwen3's attention", needs=("1.4.1",)),
        ),
    ),
    Day(
        1, 4, "RMSNorm and the MLP", (Task("1.4.1", "RMSNorm"), Task("1.4.2", "silu and Qwen3MLP"))
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
            Task("2.1.1", "TinyKvFullCache", needs=("2.1.5",)),
            Task("2.1.2", "attention with the cache"),
            Task("2.1.3", "Qwen3ModelWeek2"),
            Task("2.1.4", "simple_generate_with_kv_cache"),
            Task("2.1.5", "growth in place", needs=("2.1.1",)),
        ),
    ),
    Day(
        2,
        2,
        "quantized matmul on the CPU",
        (
            Task("2.2.0", "a primitive by hand"),
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
        "ragged batches and the scheduler",
        (
            Task("3.3.1", "ragged batches"),
            Task("3.3.2", "page ownership"),
            Task("3.3.3", "admission and the token budget"),
        ),
    ),
    Day(
        3,
        4,
        "the prefix cache and preemption",
        (
            Task("3.4.1", "the tree of pages"),
            Task("3.4.2", "references and eviction"),
            Task("3.4.3", "preemption"),
        ),
    ),
    Day(
        3,
        5,
        "speculative decoding",
        (
            Task("3.5.1", "greedy, with rewind"),
            Task("3.5.2", "rejection sampling", needs=("3.5.1",)),
        ),
    ),
    Day(
        4,
        1,
        "measure",
        (
            Task("4.1.1", "the clock"),
            Task("4.1.2", "an interleaved comparison"),
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

OPTIONAL_DAYS = (
    Day(
        5,
        1,
        "streaming and cancellation",
        (
            Task("5.1.1", "server-sent events"),
            Task("5.1.2", "a response in pieces"),
            Task("5.1.3", "an error after the headers", needs=("5.1.2",)),
            Task("5.1.4", "cancellation", needs=("5.1.2", "5.1.3")),
        ),
    ),
    Day(
        5,
        2,
        "backpressure",
        (
            Task("5.2.1", "a queue that merges"),
            Task("5.2.2", "the reader", needs=("5.2.1",)),
            Task("5.2.3", "the engine thread's loop"),
            Task("5.2.4", "waking the event loop"),
        ),
    ),
    Day(
        5,
        3,
        "load",
        (
            Task("5.3.1", "Poisson arrivals"),
            Task("5.3.2", "latencies from event times"),
            Task("5.3.3", "the open loop", needs=("5.3.2",)),
            Task("5.3.4", "percentiles and goodput", needs=("5.3.3",)),
        ),
    ),
    Day(
        5,
        4,
        "grammar masks",
        (
            Task("5.4.1", "the grammar of JSON"),
            Task("5.4.2", "bits and logits"),
            Task("5.4.3", "masks after draft tokens", needs=("5.4.2",)),
            Task("5.4.4", "forced tokens", needs=("5.4.2", "5.4.3")),
        ),
    ),
    Day(
        5,
        5,
        "thoughts and tool calls in a stream",
        (
            Task("5.5.1", "text that may begin a tag"),
            Task("5.5.2", "reasoning and content", needs=("5.5.1",)),
            Task("5.5.3", "a tool call while it is being written", needs=("5.5.1",)),
            Task("5.5.4", "the thinking budget"),
        ),
    ),
    Day(
        5,
        6,
        "n-gram drafts",
        (
            Task("5.6.1", "the longest agreeing prefix"),
            Task("5.6.2", "which drafts pay"),
            Task("5.6.3", "the n-gram index", needs=("5.6.2",)),
            Task("5.6.4", "what followed", needs=("5.6.1", "5.6.3")),
        ),
    ),
    Day(
        5,
        7,
        "replicas and prefix-aware routing",
        (
            Task("5.7.1", "the routing key"),
            Task("5.7.2", "an index of prefixes"),
            Task("5.7.3", "the router's choice"),
            Task("5.7.4", "requests in flight, and lost replicas", needs=("5.7.2", "5.7.3")),
        ),
    ),
    Day(
        6,
        1,
        "a mixture of experts",
        (
            Task("6.1.1", "the router's choice"),
            Task("6.1.2", "products sorted by expert"),
            Task("6.1.3", "each chosen expert once", needs=("6.1.2",)),
            Task("6.1.4", "the weighted sum"),
        ),
    ),
    Day(
        6,
        2,
        "one model on two processes",
        (
            Task("6.2.1", "tokens and heads of a rank"),
            Task("6.2.2", "rows and columns of a rank"),
            Task("6.2.3", "sums over the ranks"),
            Task("6.2.4", "the split vocabulary"),
        ),
    ),
    Day(
        6,
        3,
        "keys and values in 8 bits",
        (
            Task("6.3.1", "the scale of a row"),
            Task("6.3.2", "a row and back"),
            Task("6.3.3", "rows into pages"),
            Task("6.3.4", "the pages of a step"),
        ),
    ),
    Day(
        6,
        4,
        "a Gated DeltaNet",
        (
            Task("6.4.1", "a causal convolution with a state"),
            Task("6.4.2", "unit keys, decay and correction"),
            Task("6.4.3", "the delta rule"),
            Task(
                "6.4.4",
                "the gated norm and the layer",
                needs=("6.4.1", "6.4.2", "6.4.3"),
            ),
        ),
    ),
    Day(
        6,
        5,
        "checkpoints of the state",
        (
            Task("6.5.1", "a hit needs a state"),
            Task("6.5.2", "read here, write there"),
            Task("6.5.3", "where the next turn continues"),
            Task(
                "6.5.4",
                "which checkpoint to evict",
                needs=("6.5.1", "6.5.2", "6.5.3"),
            ),
        ),
    ),
    Day(
        6,
        6,
        "a prefix cache on disk",
        (
            Task("6.6.1", "keys in a chain"),
            Task("6.6.2", "the page file"),
            Task("6.6.3", "verification"),
            Task("6.6.4", "publishing a page"),
        ),
    ),
    Day(
        7,
        1,
        "a model that acts",
        (
            Task("7.1.1", "validated arguments"),
            Task("7.1.2", "one result for each call", needs=("7.1.1",)),
            Task("7.1.3", "one step", needs=("7.1.1", "7.1.2")),
            Task("7.1.4", "until the answer", needs=("7.1.1", "7.1.2", "7.1.3")),
        ),
    ),
    Day(
        7,
        2,
        "tools with limits",
        (
            Task("7.2.1", "inside one folder"),
            Task("7.2.2", "an edit that cannot go wrong"),
            Task("7.2.3", "the atomic write"),
            Task("7.2.4", "bounded output", needs=("7.2.1",)),
        ),
    ),
    Day(
        7,
        3,
        "compaction",
        (
            Task("7.3.1", "what is old"),
            Task("7.3.2", "whole turns"),
            Task("7.3.3", "rare, large steps", needs=("7.3.1", "7.3.2")),
        ),
    ),
    Day(
        7,
        4,
        "fork and select",
        (
            Task("7.4.1", "branches of a run"),
            Task("7.4.2", "selection by an observable check"),
            Task("7.4.3", "a vote"),
            Task("7.4.4", "shared pages"),
        ),
    ),
    Day(
        7,
        5,
        "evaluation",
        (
            Task("7.5.1", "the seed of a case"),
            Task("7.5.2", "a case and its outcome", needs=("7.5.1",)),
            Task("7.5.3", "a confidence interval"),
            Task("7.5.4", "a report that repeats", needs=("7.5.3",)),
        ),
    ),
)

DAYS = (*REQUIRED_DAYS, *OPTIONAL_DAYS)
TASKS = {task.id: task for day in DAYS for task in day.tasks}


def day_of(week: int, day: int) -> Day:
    """The day with this week and number; raises `LookupError` if there is none."""
    for chapter in DAYS:
        if (chapter.week, chapter.day) == (week, day):
            return chapter
    known = ", ".join(chapter.id for chapter in DAYS)
    raise LookupError(f"unknown day {week}.{day}; give one of {known}.")


def day_with_task(day: Day, number: int) -> Day:
    """The day of the pair that has task `number`; `day` if neither has it."""
    index = DAYS.index(day)
    for other in DAYS[max(0, index - 1) : index + 2]:
        second = max(day, other, key=DAYS.index)
        is_pair = other is day or (other.week == day.week and second.tasks[0].number > 1)
        if is_pair and any(task.number == number for task in other.tasks):
            return other
    return day


def day_of_task(task_id: str) -> Day:
    """The day of the task with an id such as "1.3.2"."""
    week, day, _ = task_id.split(".")
    return day_of(int(week), int(day))


def with_needs(tasks: Iterable[str]) -> set[str]:
    """The given tasks, and all tasks of the same or later days that their tests require."""
    found: set[str] = set()
    pending = list(tasks)
    while pending:
        task = pending.pop()
        if task not in found:
            found.add(task)
            pending += TASKS[task].needs
    return found


def unwritten_message(task_id: str, what: str) -> str:
    """Placeholder message of an unwritten task; `what` is the function's name."""
    task, day = TASKS[task_id], day_of_task(task_id)
    return (
        f"{day.name}, task {task.number}: {what} is yours to write; see the book, '{day.chapter}'"
    )
