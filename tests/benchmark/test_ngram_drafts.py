"""Benchmark of n-gram drafts: cases from a git history, and forced answers."""

import shutil
import subprocess

import pytest

from benchmark import ngram_drafts
from benchmark.ngram_drafts import (
    Case,
    ForcedOutput,
    edit_cases,
    encode,
    first_difference,
    run_cases,
)
from tests.support import tiny_model
from tiny_llm import LLM, UserError
from tiny_llm.cli.batching.workload import TimestampTokenizer

VOCAB_SIZE = 50_000
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


def commit(folder, message, **files):
    """Commits files; keyword arguments map names without .py to contents."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for arguments in (["add", "."], [*identity, "commit", "-q", "-m", message]):
        subprocess.run(["git", "-C", folder, *arguments], check=True)


def lines(first, last):
    """Source text whose lines all differ."""
    return "".join(f"value_{n} = compute(alpha, {n})\n" for n in range(first, last))


@pytest.fixture
def repository(tmp_path):
    """Git repository with edits of a short file and one too long for a prompt."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    commit(tmp_path, "Add files", small=lines(0, 40), long=lines(0, 400))
    changed = lines(0, 20) + "other = 1\n" + lines(21, 40)
    commit(tmp_path, "Rename a value", small=changed)
    commit(tmp_path, "Shorten", long=lines(0, 390))
    return tmp_path


def test_cases_are_edits_of_the_history(repository):
    quote, edit, new = edit_cases(repository, "HEAD", 1, 1000, 40, VOCAB_SIZE)
    assert [case.kind for case in (quote, edit, new)] == ["quote", "edit", "new file"]
    assert edit.name.endswith(" small.py"), (
        "expected small.py, because the other file exceeds the prompt limit"
    )
    before = encode(lines(0, 40), VOCAB_SIZE)
    after = encode(lines(0, 20) + "other = 1\n" + lines(21, 40), VOCAB_SIZE)
    change = first_difference(before, after)
    assert edit.answer == after[change - 20 : change + 20]
    assert quote.answer == before[change - 20 : change + 20]
    assert contains(quote.prompt, quote.answer)
    assert not contains(edit.prompt, edit.answer)
    assert contains(edit.prompt, before)
    assert contains(edit.prompt, encode("Rename a value", VOCAB_SIZE))
    assert not contains(new.prompt, new.answer[:8])
    assert {len(case.answer) for case in (quote, edit, new)} == {40}


def contains(text, part):
    return any(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


def test_a_short_history_is_rejected(repository):
    with pytest.raises(UserError, match="has 1 cases of kind 'quote', expected 2; reduce"):
        edit_cases(repository, "HEAD", 2, 1000, 40, VOCAB_SIZE)


def test_commits_after_the_revision_do_not_count(repository):
    newest = (repository / "small.py").read_text() + "third = 3\n"
    commit(repository, "Edit again", small=newest)
    cases = [edit_cases(repository, rev, 1, 1000, 40, VOCAB_SIZE)[1] for rev in ("HEAD", "HEAD~1")]
    assert [contains(case.answer, encode("third", VOCAB_SIZE)) for case in cases] == [True, False]


def test_a_folder_without_history_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UserError, match="cannot read the git history of .*not a git repository"):
        edit_cases(tmp_path, "HEAD", 1, 1000, 40, VOCAB_SIZE)


def test_words_cover_the_text():
    text = "def f(x_1):\n    return  x_1 + 42  # é\n\n"
    assert "".join(ngram_drafts.WORDS.findall(text)) == text
    assert encode("alpha beta", VOCAB_SIZE)[1] == encode(" beta", VOCAB_SIZE)[0]


def test_forced_answers_with_and_without_drafts(on_cpu, monkeypatch):
    monkeypatch.setattr("tiny_llm.engine.model_runner.SamplerOutput", ForcedOutput)
    llm = LLM((tiny_model(), TimestampTokenizer()), kv_cache_bytes=2**22)
    text = list(range(10, 50))
    quote = Case("quote", "a", text, text[5:35])
    other = Case("new file", "b", text, list(range(60, 90)))
    for cases in ([quote], [other], [quote, other]):
        plain = run_cases(llm, cases, None)
        ngram = run_cases(llm, cases, "ngram")
        assert plain.drafted == 0
        assert plain.steps == plain.tokens
        assert ngram.accepted <= ngram.drafted
        assert ngram.tokens == ngram.steps + ngram.accepted, (
            "expected one token per step, plus the accepted draft tokens"
        )
    assert run_cases(llm, [quote], "ngram").steps < 15, (
        "expected several draft tokens per step, so fewer than 15 steps"
    )
    assert run_cases(llm, [other], "ngram").drafted == 0
