"""Ignored request fields, named in the log and in a response header."""

import logging
from collections.abc import Iterable
from urllib.parse import quote

from .errors import bad_request, current_record

log = logging.getLogger("tiny_llm.server")

HEADER = b"x-tiny-llm-ignored-fields"
MAX_FIELDS = 32  # maximum number of fields named per request
MAX_NAME_CHARS = 100  # maximum length of a name
MAX_LOGGED_FIELDS = 1000  # maximum number of fields named in the log

_logged: set[tuple[str, str]] = set()  # paths of endpoints and fields


def ignore_fields(fields: Iterable[str]) -> None:
    """Names ignored fields: in the log once per process, and in the response's header.

    Args:
        fields: paths without list indexes, e.g. `messages[].clear_at`; `path=value` if only the
            value is ignored. Characters outside printable ASCII are percent-encoded.
    """
    names: dict[str, None] = {}
    for field in fields:
        name = quote(field[:MAX_NAME_CHARS], "[]=.", errors="replace")[:MAX_NAME_CHARS]
        names[name] = None
        if len(names) == MAX_FIELDS:
            break
    if not names:
        return
    record = current_record()
    if record.strict_fields:
        name = next(iter(names))
        raise bad_request(f"{name} is not a supported field; remove it.", name, "unknown_parameter")
    record.ignored_fields = [*record.ignored_fields, *names]
    new = [name for name in names if (record.path, name) not in _logged]
    if new and len(_logged) < MAX_LOGGED_FIELDS:
        _logged.update((record.path, name) for name in new)
        log.warning("ignored fields of %s: %s", record.path, ", ".join(new))
