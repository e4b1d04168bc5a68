"""Draws `tandem top`: lines of a given width and height, from the answers of /v1/status. Pure.

GPUs come first, each with two bars: memory and utilisation, measured as filled cells and predicted
as a mark. The queue follows. Where the terminal is small, columns and then rows are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rich.text import Text

from tandem.cli.output import clean
from tandem.reasons.counting import counted

Document = dict[str, Any]

SORTS = ("node", "memory", "utilisation", "temperature", "jobs")
_BAR = 12
#: Columns of a GPU's state and bars: without room for a job's name after them there are no bars.
_BEFORE_JOBS = 63
_GIB = 2**30
_STYLES = {
    "quarantined": "bold red",
    "unavailable": "red",
    "silent": "magenta",
    "slowed": "yellow",
    "shared": "green",
    "exclusive": "blue",
    "single": "cyan",
    "idle": "dim",
}
#: GPUs that are drawn at least, and the lines of the queue at least, where there is room for both.
_LEAST_ROWS = 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The readings of one moment; `gpus` is None where the reader may see none."""

    at: str
    overview: Document
    gpus: Document
    queue: Document
    scope: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """The user's choices for the screen."""

    width: int
    height: int
    sort: str = "node"
    namespace: str = ""
    first: int = 0
    plain: bool = False  # ASCII alone


def frame(shown: Snapshot, view: View) -> list[Text]:
    """Return the lines, no more than the height and none wider than the width."""
    height = max(1, view.height)
    head = _head(shown, view)
    if height <= len(head) + 2:
        lines = head[:height]
    else:
        room = height - len(head) - 1
        gpus, queue = _gpus(shown, view), _queue(shown, view)
        for_queue = min(len(queue), max(_LEAST_ROWS + 1, room - len(gpus)))
        if room < 2 * (_LEAST_ROWS + 1):
            for_queue = 0
        for_gpus = room - for_queue
        lines = [*head, *_cut(gpus, for_gpus, view.first), *queue[:for_queue], _foot(view)]
    return [_fitted(line, view.width) for line in lines[:height]]


def whole(shown: Snapshot, view: View) -> list[Text]:
    """Return all lines of what was read, for a pipe."""
    lines = [*_head(shown, view), *_gpus(shown, view), *_queue(shown, view)]
    return [_fitted(line, view.width) for line in lines]


def _cut(lines: Sequence[Text], room: int, first: int) -> list[Text]:
    """Return the title and as many rows as there is room for, beginning with row `first`."""
    if len(lines) <= room:
        return list(lines)
    rows = lines[1:]
    first = min(first, max(0, len(rows) - (room - 1)))
    return [lines[0], *rows[first : first + room - 1]]


# --- the head ---------------------------------------------------------------------------------


def _head(shown: Snapshot, view: View) -> list[Text]:
    gpus, jobs = shown.overview.get("gpus") or {}, shown.overview.get("jobs") or {}
    states: dict[str, int] = gpus.get("byState") or {}
    title = Text()
    title.append("tandem top", "bold")
    where = view.namespace or shown.scope
    title.append(
        f"  {clock(shown.at)}  {f'namespace {clean(where)}' if where else 'all namespaces'}"
    )
    lines = [title]
    counts = Text(f"GPUs {gpus.get('total', 0):,} on {gpus.get('nodes', 0):,} nodes: ")
    for state, style in _STYLES.items():
        if states.get(state):
            counts.append(f"{states[state]:,} {state}  ", style)
    lines.append(counts)
    phases: dict[str, int] = jobs.get("byPhase") or {}
    said = [f"{phases[phase]:,} {phase.lower()}" for phase in phases if phases[phase]]
    lines.append(Text(f"Jobs {jobs.get('total', 0):,}: {'  '.join(said)}"))
    sharing = sharing_in_words(shown.overview.get("sharing") or {})
    if sharing:
        lines.append(Text(f"Sharing: {sharing}"))
    if shown.error:
        lines.insert(1, Text(f"not up to date: {clean(shown.error)}", "bold red"))
    return lines


def sharing_in_words(sharing: Document) -> str:
    """Return what sharing brings and costs, '' where nothing is shared."""
    if not sharing.get("gpus"):
        return ""
    words = f"{counted(sharing['gpus'], 'GPU')} by {counted(sharing['jobs'], 'job')}"
    gain = sharing.get("gainGpus")
    if gain is not None:
        words += f", worth {gain:+.1f} GPUs ({gain_in_words(sharing)})"
        if sharing["gpusCounted"] < sharing["gpus"]:
            words += f" (known of {sharing['gpusCounted']:,})"
    slowdown = sharing.get("meanSlowdown")
    if slowdown is not None:
        words += f", jobs {slowdown:.0%} slower on average (measured"
        # An extender of an earlier version does not say of how many.
        of = sharing.get("jobsMeasured", sharing["jobs"])
        words += f" of {of:,})" if of < sharing["jobs"] else ")"
    return words


def gain_in_words(sharing: Document) -> str:
    """Return how much of what sharing is worth is measured, and how much only predicted."""
    gain, measured = sharing["gainGpus"], sharing.get("gainMeasuredGpus")
    if measured is None:
        return "predicted"
    if sharing["gpusMeasured"] == sharing["gpusCounted"]:
        return "measured"
    return f"{measured:+.1f} measured, {gain - measured:+.1f} predicted"


def _foot(view: View) -> Text:
    return Text(
        f"q quit  s sort ({view.sort})  n namespace ({clean(view.namespace) or 'all'})"
        "  arrows, PgUp, PgDn scroll",
        "dim",
    )


# --- GPUs -------------------------------------------------------------------------------------


def _gpus(shown: Snapshot, view: View) -> list[Text]:
    if shown.gpus.get("refused"):
        return [Text(clean(shown.gpus["refused"]), "dim")]
    rows: list[Document] = shown.gpus.get("rows") or []
    total = int(shown.gpus.get("total") or 0)
    name_width = max([3, *(len(place_name(row)) for row in rows)])
    name_width = min(name_width, max(8, view.width // 4))
    jobs = [_jobs(row) for row in rows]
    longest = max((len(each.partition(" ")[0]) for each in jobs), default=0)
    bars = view.width >= name_width + _BEFORE_JOBS + longest
    title = f"{'GPU':<{name_width}} {'STATE':<11} "
    if bars:
        title += f"{'MEMORY GiB':<{_BAR + 15}} {'LOAD %':<{_BAR + 9}} "
    else:
        title += f"{'MEM':>4} {'LOAD':>4} "
    if total > len(rows):
        title += f"JOBS ({len(rows):,} of {total:,} GPUs)"
    else:
        title += "JOBS"
    lines = [Text(title, "bold")]
    for row, of_row in zip(rows, jobs, strict=True):
        line = Text(f"{_short(place_name(row), name_width):<{name_width}} ")
        state = str(row.get("state") or "")
        line.append(f"{state:<11} ", _STYLES.get(state, ""))
        used, promised = row.get("memoryUsedBytes"), row.get("memoryPromisedBytes") or 0
        capacity = row.get("memoryCapacityBytes") or 0
        load, expected = row.get("utilisationPercent"), row.get("utilisationPromisedPercent") or 0
        if bars:
            line.append_text(bar(used, promised, capacity, plain=view.plain))
            figures = f"{_gib(used)}/{_gib(promised)}/{_gib(capacity)}"
            line.append(f" {figures:<14} ")
            line.append_text(bar(load, expected, 100, plain=view.plain))
            line.append(f" {_whole(load)}/{_whole(expected)}".ljust(9) + " ")
        else:
            share = None if used is None or not capacity else 100 * used / capacity
            line.append(f"{_whole(share):>4} {_whole(load):>4} ")
        line.append(of_row)
        lines.append(line)
    return lines


def bar(measured: float | None, predicted: float, most: float, *, plain: bool = False) -> Text:
    """Return a bar: cells filled as far as measured, and a mark where it was predicted."""
    full, mark, empty = ("#", "|", ".") if plain else ("█", "┃", "·")
    filled = _cells(measured or 0.0, most)
    cells = [full if index < filled else empty for index in range(_BAR)]
    text = Text()
    at = min(_BAR - 1, max(0, _cells(predicted, most) - 1)) if predicted > 0 else None
    over = measured is not None and predicted > 0 and measured > predicted * 1.05
    for index, cell in enumerate(cells):
        if index == at:
            text.append(mark, "bold")
        else:
            text.append(cell, ("yellow" if over else "green") if cell == full else "dim")
    return text


def _cells(value: float, most: float) -> int:
    return max(0, min(_BAR, round(_BAR * value / most))) if most > 0 else 0


def place_name(place: Document) -> str:
    """Return a GPU as people call it, node/number; by its UUID where that is not known."""
    number = place.get("number", place.get("index"))
    return clean(f"{place.get('node')}/{number if number is not None else place.get('gpu')}")


def _jobs(row: Document) -> str:
    said = []
    for job in row.get("jobs") or ():
        name = clean(f"{job.get('namespace')}/{job.get('name')}")
        slowdown = job.get("slowdown")
        said.append(f"{name} (+{slowdown:.0%})" if slowdown else name)
    if said:
        return ", ".join(said)
    return clean(row["reason"]) if row.get("reason") else "-"


def _gib(value: float | None) -> str:
    return "?" if value is None else f"{value / _GIB:.1f}".removesuffix(".0")


def _whole(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


# --- the queue --------------------------------------------------------------------------------


def _queue(shown: Snapshot, view: View) -> list[Text]:
    rows: list[Document] = shown.queue.get("rows") or []
    total = int(shown.queue.get("total") or 0)
    if not total:
        return [Text("QUEUE  empty", "bold")]
    width = min(max(len(_job_name(row)) for row in rows), max(10, view.width // 3))
    more = f" ({len(rows):,} of {total:,})" if total > len(rows) else ""
    lines = [
        Text(f"{'#':>4} {'WAITING':<{width}} {'SINCE':>6} {'STARTS IN':<13} WHY{more}", "bold")
    ]
    for row in rows:
        position = row.get("position")
        line = f"{'-' if position is None else position + 1:>4} "
        line += f"{_short(_job_name(row), width):<{width}} "
        line += f"{span(row.get('waitingSince') or row.get('queuedAt'), shown.at):>6} "
        line += f"{starts_in(row.get('expectedStart'), shown.at):<13} "
        lines.append(
            Text(line + clean(row.get("short") or row.get("message") or row.get("reason") or ""))
        )
    return lines


def _job_name(row: Document) -> str:
    return clean(f"{row.get('namespace')}/{row.get('name')}")


# --- times ------------------------------------------------------------------------------------


def seconds_between(earlier: str | None, later: str | None) -> float | None:
    """Return the seconds from one time of Kubernetes to another; None where one is none."""
    try:
        begin = datetime.fromisoformat((earlier or "").replace("Z", "+00:00"))
        end = datetime.fromisoformat((later or "").replace("Z", "+00:00"))
        return (end - begin).total_seconds()
    except (ValueError, TypeError):  # TypeError: one has no zone
        return None


def in_words(seconds: float) -> str:
    """Return a time in its two largest units at most: 45s, 12m, 3h05m, 2d04h."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole}s"
    minutes = round(whole / 60)
    if minutes < 90:
        return f"{minutes}m"
    if minutes < 48 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    return f"{minutes // 1440}d{minutes % 1440 // 60:02d}h"


def span(earlier: str | None, later: str | None) -> str:
    """Return how much later the second time is, in short."""
    seconds = seconds_between(earlier, later)
    return "-" if seconds is None else in_words(seconds)


def starts_in(expected: Document | None, now: str) -> str:
    """Return in how long a start is expected: `5m..12m`, or `5m or later`."""
    earliest = seconds_between(now, (expected or {}).get("earliest"))
    if expected is None or earliest is None:
        return "-"
    latest = seconds_between(now, expected.get("latest"))
    if latest is None:
        return f"{in_words(earliest)} or later"
    return f"{in_words(earliest)}..{in_words(latest)}"


def clock(at: str) -> str:
    """Return the time of day of a time of Kubernetes, in UTC."""
    return clean(at[11:19]) + " UTC" if len(at) >= 19 else ""


# --- fitting ----------------------------------------------------------------------------------


def _short(name: str, width: int) -> str:
    """Return a name that is cut in the middle: its end often tells more than its middle."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}~{name[len(name) - end :]}"


def _fitted(line: Text, width: int) -> Text:
    line = line.copy()
    line.truncate(max(1, width), overflow="crop")
    return line


def scrolled(view: View, by: int, rows: Iterable[object]) -> View:
    """Return a view that begins so many rows further, within what there is."""
    return replace(view, first=max(0, min(view.first + by, len(list(rows)) - 1)))
