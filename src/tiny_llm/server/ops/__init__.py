"""Operations: health, metrics, tokenize, engine view, event log, web UI.

This package must not know how completions are generated.

Reading order: health, tokenize, engine_view, web_ui.
"""
