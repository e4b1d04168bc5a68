"""Log lines that no caller can forge: a record is one line that quotes the caller's values."""

from __future__ import annotations

import logging
import re
from typing import Any

#: Values of these characters alone stand in a line as they are.
_MOST = 4096  # characters of one value
_PLAIN = re.compile(r"[\w.,:;/@+%()\[\]{}<>*#-]*", re.ASCII)
FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class _Shown(str):
    """A value as a line shows it: plain, or quoted, with escapes of what cannot be printed."""

    __slots__ = ()

    def __str__(self) -> str:
        return str.__str__(self) if _PLAIN.fullmatch(self) else repr(self)

    def __repr__(self) -> str:
        return escaped(super().__repr__())


def escaped(text: str) -> str:
    """Return a text with escapes in place of line breaks, control and formatting characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class LineFormatter(logging.Formatter):
    """Quotes the values of a record, and indents the lines of a traceback.

    Most values are names that the API server has checked. Some are whatever a client has sent: a
    review of the webhook, a path, the text of an error. None of them can begin a line, end a quoted
    value or steer a terminal.
    """

    def __init__(self) -> None:
        super().__init__(FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, and below it the traceback where there is one."""
        shown = logging.makeLogRecord(record.__dict__)
        if isinstance(record.args, tuple):
            shown.args = tuple(map(_shown, record.args))
        shown.msg, shown.args = escaped(shown.getMessage()), ()
        shown.exc_info = shown.exc_text = shown.stack_info = None
        lines = [super().format(shown)]
        if record.exc_info:
            lines += self.formatException(record.exc_info).splitlines()
        if record.stack_info:
            lines += record.stack_info.splitlines()
        return "\n  ".join(map(escaped, lines))


def _shown(value: Any) -> Any:  # noqa: ANN401 - whatever is logged
    """Return a value that shows itself quoted where it is a text, or an error with one."""
    if not isinstance(value, str | BaseException):
        return value
    text = str(value)
    return _Shown(text if len(text) <= _MOST else f"{text[:_MOST]}…")


def configure_log(level: str) -> None:
    """Log to stderr from this level on; of the HTTP client, which tells of each request, less."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
