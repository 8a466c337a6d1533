"""Perplexity benchmark: arguments that leave nothing to predict."""

import pytest

from benchmark import perplexity


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("The KV cache.", ["--windows", "0"], "--windows must be at least 1, got 0."),
        ("", [], "--text must have at least 2 tokens, got 0."),
    ],
)
def test_nothing_to_predict_is_rejected(demo, tmp_path, monkeypatch, capsys, text, flags, message):
    file = tmp_path / "text"
    file.write_text(text)
    monkeypatch.setattr(perplexity, "load_weights", lambda _: demo)
    monkeypatch.setattr("sys.argv", ["perplexity", "--gguf", "x", "--text", str(file), *flags])
    assert perplexity.main() == 2
    assert capsys.readouterr().err == f"perplexity: {message}\n"
