"""log_lines: a line of a log as an object; the token ids of a long prompt without JSON, four times as fast."""

from __future__ import annotations

import json
import re
import warnings

import numpy as np

from quire.trace.prompts.fields import Fields
from quire.trace.read.lines import Wrong
from quire.trace.read.not_a_trace import is_table
from quire.trace.units import Int32

LONGEST_LOG_LINE = 1 << 25  # bytes
LEAST = 512  # bytes of ids: fewer are left to JSON
NUMBERS = b"0123456789, "
_PROMPT = re.compile(rb'(?<!\\)"prompt(?:_token_ids)?"\s*:\s*\[')


def take_ids(text: bytes) -> tuple[bytes, Int32 | None]:
    """The line with `[0]` in place of a list of ids, and the ids; the line as it is where there is no such list."""
    match = _PROMPT.search(text)
    if match is None:
        return text, None
    begin, end = match.end(), text.find(b"]", match.end())
    inside = text[begin:end]
    if len(inside) < LEAST or inside.translate(None, NUMBERS) or _PROMPT.search(text, end) is not None:
        return text, None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of what is no list of numbers: JSON's way says what is wrong
        try:
            ids = np.fromstring(inside, np.int64, sep=",")
        except (DeprecationWarning, ValueError):
            return text, None
    if len(ids) != inside.count(b",") + 1 or ids.max() >= 1 << 31:
        return text, None
    return text[: begin - 1] + b"[0]" + text[end + 1 :], ids.astype(np.int32)


def read_object(text: bytes) -> Fields:
    """The object of a line; raises Wrong."""
    try:
        fields = json.loads(text)
    except UnicodeDecodeError as error:
        raise Wrong(f"its byte {error.start + 1:,} is no UTF-8", "write the log as UTF-8, or pass --skip-bad") from None
    except (ValueError, RecursionError) as error:
        if is_table(text):
            cure = "give the log of the prompts; for lengths there are quire trace make, and quire plan of its trace"
            raise Wrong("it is a table of lengths (CSV), without prompts", cure) from None
        if type(error) is ValueError:  # of Python's own limit
            raise Wrong("it has a number of thousands of digits", "write numbers that are times or token ids") from None
        cure = "write one JSON object per line, as for quire trace make (docs/trace.md); plain text is not read"
        raise Wrong(f"it is not JSON ({type(error).__name__})", cure) from None
    if not isinstance(fields, dict):
        raise Wrong("it is not a JSON object", "write one JSON object per line")
    return fields
