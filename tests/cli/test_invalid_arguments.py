"""Contract of invalid arguments: command, flags, sentence; exit status 2."""

import pytest

from tests.cli.support import run_command
from tests.cli.test_bench import SMALL
from tiny_llm.cli import batch, bench, chat, check_installation, entrypoint, main, serve

# Arguments before those of a row.
DEFAULTS = {main: ["--max-tokens", "80"], batch: ["--model", "demo"], bench: SMALL}
PINNED = ["--kv-cache-bytes", "1e8", "--max-memory", "15e7"]
ONE, TWO = ["--model", "demo"], ["--model", "demo", "--model", "demo-draft"]
SENTENCES = {
    main: [
        (["--model", "nonsense"], "unknown model 'nonsense'"),
        (["--model", ""], "unknown model ''"),
        (["--model", "qwen3-8b"], "not on this machine"),
        (["--model", "/tmp"], "has no config.json"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", " \n"], "the prompt is empty"),
        (["--prompt", "word " * 3000], "the model's context length is"),
        (["--sampler-temp", "-1"], "temperature must be a number ≥ 0 (0 is greedy), got -1.0"),
        (["--sampler-temp", "nan"], "temperature must be a number ≥ 0 (0 is greedy), got nan"),
        (["--sampler-temp", "warm"], "invalid float value: 'warm'"),
        (["--sampler-top-p", "0"], "top-p must be in (0, 1] (1 keeps every token), got 0.0"),
        (["--sampler-top-p", "1.01"], "top-p must be in (0, 1] (1 keeps every token), got 1.01"),
        (["--sampler-top-k", "0"], "top-k must be an integer of at least 1, got 0"),
        (["--sampler-top-k", "2.5"], "invalid int value: '2.5'"),
        (["--max-tokens", "0"], "--max-tokens: must be at least 1, got 0"),
        (["--seed", "-1"], "--seed: must be between 0 and 18446744073709551615, got -1"),
        (["--loader", "week9"], "--loader: invalid choice: 'week9' (choose from"),
        (["--device", "tpu"], "--device: invalid choice: 'tpu' (choose from"),
        (["--solution", "theirs"], "--solution: invalid choice: 'theirs' (choose from"),
        (["--solution", "mine"], "--solution mine requires a learner's tree"),
        (["--solution", "mlx", "--loader", "week1"], "--loader has no effect with --solution mlx"),
        (["--solution", "mlx", "--enable-flash-attn"], "--enable-flash-attn has no effect"),
        (["--enable-flash-attn", "--loader", "engine"], "has no effect on the engine"),
        (["--enable-flash-attn", "--loader", "week1"], "week1 does not have this kernel"),
        (["--enable-flash-attn", "--loader", "week3"], "week3 does not have this kernel"),
        (["--no-enable-flash-attn", "--loader", "week3"], "week3 has only paged attention"),
        (["--draft-model", "demo-draft", "--loader", "week1"], "week1 has no KV cache to rewind"),
        (["--block-size", "0"], "--block-size: must be at least 1, got 0"),
        (["--block-size", "16", "--loader", "week2"], "--block-size: only the engine has a"),
        (["--num-drafts", "2", "--solution", "mlx"], "--num-drafts has no effect with"),
        (["--num-drafts", "2"], "num_drafts=2 requires draft_model or speculative='ngram'"),
        (["--prefix-cache-disk-bytes", "1e9"], "requires prefix_cache_dir"),
        (["--temperatur", "1"], "unrecognized arguments: --temperatur 1"),
    ],
    batch: [
        (["--loader", "week1"], "--loader week1 has no KV cache and cannot batch"),
        (["--loader", "week2", "--draft-model", "demo-draft"], "only the engine verifies draft"),
        (["--solution", "mlx", "--draft-model", "demo-draft"], "only the engine verifies draft"),
        (["--speculative", "suffix"], "--speculative: invalid choice: 'suffix' (choose from"),
        (["--speculative", "ngram", "--loader", "week2"], "only the engine supports n-gram"),
        (["--speculative", "ngram", "--solution", "mlx"], "--speculative has no effect with"),
        (
            ["--speculative", "ngram", "--draft-model", "demo-draft"],
            "--draft-model: not allowed with argument --speculative",
        ),
        (["--attention-backend", "xformers"], "--attention-backend: invalid choice: 'xformers'"),
        (
            ["--attention-backend", "flash", "--loader", "week2"],
            "only the engine has selectable attention backends; omit it",
        ),
        (
            ["--attention-backend", "paged", "--solution", "mlx"],
            "--attention-backend has no effect",
        ),
        (["--kv-cache-dtype", "fp8"], "--kv-cache-dtype: invalid choice: 'fp8'"),
        (["--activation-bits", "4"], "--activation-bits: invalid choice: 4"),
        (["--activation-bits", "8", "--loader", "week2"], "only the engine rounds activations"),
        (["--kv-cache-dtype", "int8", "--loader", "week2"], "only the engine has an 8-bit"),
        (["--loader", "week2", "--record", "run.json"], "--record: only the engine records"),
        (["--loader", "week3", "--kv-cache-bytes", "9"], "--kv-cache-bytes: only the engine has"),
        (["--kv-cache-bytes", "9"], "kv_cache_bytes must be at least 262144 (a page of 32"),
        (["--kv-cache-bytes", "1e3"], "(a page of 32 tokens), got 1000"),
        (["--kv-cache-bytes", "1.5"], "must be a whole number such as 536870912 or 1e9, got 1.5"),
        (["--kv-cache-bytes", "1e400"], "must be a whole number such as"),
        (["--kv-cache-bytes", "much"], "must be a whole number such as"),
        (["--record", "/no/such/run.json"], "the folder '/no/such' does not exist"),
        (["--batch-size", "0"], "--batch-size: must be at least 1, got 0"),
        (["--prefill-step", "-1"], "--prefill-step: must be at least 1, got -1"),
        (["--prompt", "Hello!"], "unrecognized arguments: --prompt Hello!"),
    ],
    bench: [
        (["--num-seqs", "0"], "--num-seqs: must be at least 1, got 0"),
        (["--min-input-len", "0"], "--min-input-len: must be at least 1, got 0"),
        (
            ["--min-input-len", "30"],
            "--max-input-len must be at least --min-input-len (30), got 20.",
        ),
        (["--max-output-len", "0"], "--max-output-len: must be at least 1, got 0"),
        (["--min-output-len", "-1"], "--min-output-len: must be at least 1, got -1"),
        (["--max-input-len", "2043"], "exceed the context length of 'demo', 2048 tokens"),
        (["--warmup", "-1"], "--warmup: must be at least 0, got -1"),
        (["--sampler-temp", "1"], "unrecognized arguments: --sampler-temp 1"),
        (["--num-seqs", "many"], "invalid int value: 'many'"),
        (["--request-rate", "0"], "--request-rate: must be at least 0.01, got 0"),
        (["--request-rate", "9", "--loader", "week3"], "only the engine accepts requests"),
        (["--goodput", "ttft:9"], "--goodput requires --request-rate"),
        (["--goodput", "e2el:9"], "--goodput: must be ttft:MS or tpot:MS, got e2el:9"),
        (["--goodput", "tpot:"], "--goodput: "),
    ],
    entrypoint: [
        ([], "no command given; choose one of main, chat, batch, serve, bench, models"),
        (["serve-me"], "unknown command serve-me; choose one of main, chat"),
        (["--print-completion", "dos"], "--print-completion: invalid choice: 'dos' (choose from"),
        (["--loader", "week2"], "unrecognized arguments: --loader"),
    ],
    check_installation: [(["--draft-model", "demo"], "--draft-model requires --model.")],
    chat: [
        (["--url", "localhost:8000"], "the URL must start with http"),
        (["--url", "http://x:y"], "the request to http://x:y/v1 failed: Invalid port: 'y'."),
        (["--url", "http://127.0.0.1:9"], "`tiny-llm serve` starts a server"),
        (["--url", "http://x", "--device", "cpu"], "--device has no effect with --url"),
        (["--url", "http://x", "--speculative", "ngram"], "--speculative has no effect with"),
        (["--url", "http://x", "--solution", "mlx"], "--solution mlx has no effect with --url"),
        (["--url", "http://x", "--enable-thinking"], "--reasoning-effort high"),
        (["--url", "http://x", "--api-key", "k\udce9"], "the API key is not UTF-8 at character 1"),
        (["--url", "http://x", "--api-key", ""], "--api-key must not be empty"),
        (["--api-key", "k"], "--api-key requires --url"),
    ],
    serve: [
        (["--host", "0.0.0.0"], "exposes the server to other machines without an API key"),
        (["--port", "70000"], "--port: must be between 0 and 65535, got 70000"),
        (["--watchdog", "0"], "--watchdog: must be at least 0.001, got 0"),
        (["--max-queue", "-1"], "--max-queue: must be at least 0, got -1"),
        (["--generation-config", "mine"], "--generation-config: invalid choice: 'mine'"),
        (["--block-size", "0"], "--block-size: must be at least 1, got 0"),
        (["--model", "nothing"], "unknown model 'nothing'"),
        (["--chat-template", "/nowhere"], "the chat template /nowhere cannot be read"),
        ([*ONE, "--lora-modules", "sql"], "argument --lora-modules: must be NAME=DIR, got sql"),
        (
            [*ONE, "--lora-modules", "a=x", "a=y"],
            "--lora-modules: 'a' is already the name of the model",
        ),
        (
            [*ONE, "--lora-modules", "demo=x"],
            "--lora-modules: 'demo' is already the name of the model",
        ),
        (
            [*ONE, "--lora-modules", "a=x", "--adapter-path", "y"],
            "adapter_path and lora_modules cannot be combined",
        ),
        ([*TWO, "--max-memory", "9000000"], "the model 'demo' needs"),
        ([*TWO, "--max-memory", "1e18"], "must be at most the machine's memory"),
        ([*TWO, "--draft-model", "demo-draft"], "--draft-model supports a single --model, got 2"),
        ([*TWO, "--task", "embed"], "pass the task as --model PATH=TASK"),
        ([*TWO, "--record", "x.json"], "--record supports a single --model"),
        ([*TWO, "--tensor-parallel-size", "2"], "--tensor-parallel-size supports a single --model"),
        ([*TWO, "--served-model-name", "x"], "--served-model-name supports a single --model"),
        ([*TWO, "--model", "demo=pin"], "two models have the API name 'demo'"),
        ([*TWO, "--model", "demo=embedd"], "invalid options 'embedd'; use at most one task"),
        ([*TWO, "--model", "demo=embed,score"], "use at most one task"),
        (
            [*TWO, "--model", "demo=blok-size=1"],
            "unknown option 'blok_size'; did you mean block_size?",
        ),
        ([*TWO, "--model", "demo=block-size=0"], "block_size: must be at least 1, got 0."),
        ([*TWO, "--model", "demo=lora-modules=a"], "use the flag --lora-modules instead"),
        *(
            (["--model", "demo=pin", "--model", "demo-draft", *PINNED], words)
            for words in ("'demo-draft' needs", "for other pinned models")
        ),
    ],
}


@pytest.mark.parametrize(
    ("command", "argv", "sentence"),
    [(command, *row) for command, rows in SENTENCES.items() for row in rows],
    ids=lambda value: (
        " ".join(value)[:40] if isinstance(value, list) else getattr(value, "__name__", "")[13:]
    ),
)
def test_invalid_arguments_print_one_sentence(capsys, monkeypatch, command, argv, sentence):
    if command is serve:
        pytest.importorskip("fastapi", reason="the server's libraries are not installed")
        monkeypatch.delenv("TINY_LLM_API_KEY", raising=False)
    status, out, err = run_command(capsys, command, *DEFAULTS.get(command, ()), *argv)
    assert (status, out) == (2, "")
    [last] = [line for line in err.splitlines() if not line.startswith("model: ")]
    name = "tiny-llm" if command is entrypoint else command.__name__.rpartition(".")[2]
    assert last.startswith(f"{name.replace('_', '-')}: ")
    assert sentence in last
