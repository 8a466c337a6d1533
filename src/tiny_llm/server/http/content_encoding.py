"""Content-Encoding of request bodies: bounded, incremental decoding."""

import zlib
from collections.abc import Callable, Iterator
from typing import Any

from .errors import ApiError, bad_request

PIECE_BYTES = 2**16  # maximum size of a decoded piece: a kilobyte may decode to a megabyte
DECODERS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "deflate": zlib.decompressobj,
}
ERRORS: tuple[type[Exception], ...] = (zlib.error, EOFError)
try:
    from compression import zstd  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # before Python 3.14
    pass
else:
    WINDOW = {zstd.DecompressionParameter.window_log_max: 23}  # 8 MiB, the bound of RFC 9659
    DECODERS["zstd"] = lambda: zstd.ZstdDecompressor(options=WINDOW)
    ERRORS = (*ERRORS, zstd.ZstdError)


class BodyDecoder:
    """Decodes a body; `encoding` is its Content-Encoding header, "" without one."""

    def __init__(self, encoding: str):
        self._encoding, self._decoder = encoding.strip().lower(), None
        if self._encoding in DECODERS:
            self._decoder = DECODERS[self._encoding]()
        elif self._encoding not in ("", "identity"):
            known = ", ".join(DECODERS)
            reason = f"Content-Encoding must be one of {known}, got '{self._encoding[:100]}'."
            raise ApiError(415, reason, headers={"Accept-Encoding": known})

    def decode(self, data: bytes, is_last: bool) -> Iterator[bytes]:
        """Decodes received data in pieces; raises an `ApiError` (400) if it is malformed."""
        decoder: Any = self._decoder
        if decoder is None:
            yield data
            return
        try:
            is_drained = not data
            while not is_drained:
                piece = decoder.decompress(data, PIECE_BYTES)
                data = getattr(decoder, "unconsumed_tail", b"")  # zstd keeps it
                is_drained = decoder.eof or len(piece) < PIECE_BYTES
                yield piece
        except ERRORS as error:
            raise self._malformed() from error
        if decoder.unused_data or (is_last and not decoder.eof):
            raise self._malformed()

    def _malformed(self) -> ApiError:
        return bad_request(f"The body is not valid {self._encoding}.")
