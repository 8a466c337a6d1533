"""Operations: health, metrics, tokenization, the engine view, the event log and the web UI.

Must not know how completions are generated.

Reading order: health, tokenize, engine_view, event_log, web_ui.
"""
