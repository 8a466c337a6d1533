"""Operations: health, metrics, tokenize, web UI with engine view.

This package must not know how completions are generated.

Reading order: health, tokenize, web_ui.
"""
