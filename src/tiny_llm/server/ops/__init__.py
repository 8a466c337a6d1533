"""Operations: health, metrics, tokenize, engine view, event log, web UI.

This package must not know how completions are generated.

Reading order: health, tokenize, engine_view, event_log, web_ui.
"""
