"""Wrong solutions for Week 6, days 3 and 6: 8-bit KV and disk caches."""

from tests.course.wrong import Wrong

WRONG = [
    Wrong(
        "6.3.1 scale", "uses the maximum instead of the maximum magnitude", "mx.abs(x).max", "x.max"
    ),
    Wrong("6.3.1 scale", "one scale for all rows", "axis=-1, keepdims=True", "keepdims=True"),
    Wrong(
        "6.3.1 scale", "the scale divides by 128 instead of 127", "largest / 127", "largest / 128"
    ),
    Wrong(
        "6.3.1 scale",
        "the scale of a non-finite row is 0 instead of NaN",
        'mx.where(is_finite, largest / 127, float("nan"))',
        "mx.where(is_finite, largest / 127, 0.0)",
    ),
    Wrong(
        "6.3.1 scale",
        "the scale's inverse can be infinite",
        "mx.where(scale < SMALLEST_NORMAL, 0.0, scale)",
        "scale",
    ),
    Wrong(
        "6.3.2 quantize",
        "truncates instead of rounding",
        "mx.round(x * (1 / scale))",
        "x * (1 / scale)",
    ),
    Wrong(
        "6.3.2 quantize",
        "divides by the scale instead of multiplying by its inverse",
        "x * (1 / scale)",
        "x / scale",
    ),
    Wrong(
        "6.3.2 quantize",
        "the scale is stored before the integers",
        "[integers, mx.view(scale, mx.int8)]",
        "[mx.view(scale, mx.int8), integers]",
    ),
    Wrong(
        "6.3.2 quantize",
        "the scale is converted to int8",
        "mx.view(scale, mx.int8)",
        "mx.broadcast_to(scale, (*scale.shape[:-1], SCALE_BYTES)).astype(mx.int8)",
    ),
    Wrong(
        "6.3.2 quantize",
        "one scale for the whole call",
        "scale = row_scales(x)",
        "scale = mx.broadcast_to(row_scales(x.reshape(1, -1))[0], (*x.shape[:-1], 1))",
    ),
    Wrong(
        "6.3.2 dequantize",
        "integers are read as unsigned",
        "rows[..., :-SCALE_BYTES].astype",
        "mx.view(mx.contiguous(rows[..., :-SCALE_BYTES]), mx.uint8).astype",
    ),
    Wrong(
        "6.3.2 dequantize",
        "the scale is read from one byte",
        "mx.view(mx.contiguous(rows[..., -SCALE_BYTES:]), mx.float32)",
        "rows[..., -1:].astype(mx.float32)",
    ),
    Wrong(
        "6.3.3 write",
        "slot −1 writes to the last row of the last page",
        "if slot >= 0",
        "",
    ),
    Wrong("6.3.3 write", "heads and tokens are not transposed", ".swapaxes(1, 2)", ""),
    Wrong(
        "6.3.3 write",
        "page and row indices are swapped",
        "pages[slots // page_size, :, slots % page_size]",
        "pages[slots % page_size, :, slots // page_size]",
    ),
    Wrong("6.3.3 write", "the caller's pages are modified", "pages = mx.array(pages)", ""),
    Wrong(
        "6.3.4 read",
        "dequantizes the whole pool",
        "return dequantize_rows(pages[page_ids]), table",
        "return dequantize_rows(pages), block_table",
    ),
    Wrong(
        "6.3.4 read",
        "page ids are not renumbered",
        "pages[page_ids]), table",
        "pages[page_ids]), block_table",
    ),
    Wrong(
        "6.3.4 read",
        "pages are sorted by id",
        "mx.maximum(block_table.flatten(), 0)",
        "mx.sort(mx.maximum(block_table.flatten(), 0))",
    ),
    Wrong("6.6.1 key", "the key ignores the preceding pages", "parent + tokens", "tokens"),
    Wrong(
        "6.6.1 key",
        "token ids are joined without a separator",
        'array("q", token_ids).tobytes()',
        '"".join(map(str, token_ids)).encode()',
    ),
    Wrong(
        "6.6.1 key",
        "token ids are truncated to one byte",
        'array("q", token_ids).tobytes()',
        "bytes(token % 256 for token in token_ids)",
    ),
    Wrong("6.6.1 prefix", "includes pages after a gap", "break", "continue"),
    Wrong(
        "6.6.1 prefix",
        "every page is hashed as the first",
        "parent = page_key(parent, token_ids)",
        "parent = page_key(bytes(KEY_BYTES), token_ids)",
    ),
    Wrong("6.6.2 header", "the checksum covers only the payload", ", zlib.crc32(prefix)", ""),
    Wrong("6.6.2 header", "the length includes the header", "len(payload)", "len(payload) + 48"),
    Wrong(
        "6.6.2 write", "the file is not synced to disk", "os.fsync(file.fileno())", "file.flush()"
    ),
    Wrong(
        "6.6.2 write",
        "short writes are not continued",
        "rest = rest[file.write(rest) :]",
        "rest = rest[max(len(rest), file.write(rest)) :]",
    ),
    Wrong(
        "6.6.3 verify",
        "the checksum is not compared",
        "header != page_header(key, payload)",
        "header[:44] != page_header(key, payload)[:44]",
    ),
    Wrong(
        "6.6.3 verify",
        "the header's key is not compared",
        "page_header(key, payload)",
        "page_header(bytes(header[16:36]), payload)",
    ),
    Wrong(
        "6.6.3 verify",
        "the file's size is not compared",
        "status.st_size != HEADER_BYTES + num_bytes",
        "status.st_size == 0",
    ),
    Wrong(
        "6.6.4 publish",
        "the page is written directly under its final name",
        """\
            write_page_file(temporary, key, payload)
            target.parent.mkdir(exist_ok=True)
            temporary.replace(target)
""",
        """\
            target.parent.mkdir(exist_ok=True)
            write_page_file(target, key, payload)
""",
    ),
    Wrong(
        "6.6.4 publish",
        "the temporary file is left behind after an error",
        "temporary.unlink(missing_ok=True)",
        "pass",
    ),
    Wrong("6.6.4 publish", "the error is swallowed", "raise", "return"),
    Wrong("6.6.4 publish", "the file is not renamed", "temporary.replace(target)", "pass"),
]
