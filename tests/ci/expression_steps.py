"""How many steps a backtracking engine takes for a regular expression, counted instead of timed.

The steps are those of Python's engine: one for each part of the expression that is tried at a
place, and one for each character of a repeated class. Its shortcuts change the number by a factor,
and never how it grows with the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from re import _constants as op  # the parsed form of an expression has no public name
from re import _parser as parser
from typing import Any

Items = list[tuple[Any, Any]]
#: Texts of this many characters, and of two and four times as many, are compared.
LENGTH = 32
#: What the ends of a text may add to the steps, whatever its length.
SLACK = 8
#: No linear expression takes so many for these texts.
MOST = 100_000
#: A repetition of so many at most costs the same whatever the text's length. It is run with fewer,
#: so that short texts show how the steps grow.
BOUNDED, RUN_WITH = 300, 4
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
_ANY_OF = "a1A_ -./:,;\"'\\\n()[]{}<>=x0bn"


class TooManyStepsError(Exception):
    """More than a linear expression takes for any of the texts."""


class Steps:
    """One expression, and the steps that it has taken."""

    def __init__(self, pattern: str | bytes, flags: int = 0) -> None:
        if isinstance(pattern, bytes):
            pattern = pattern.decode("latin-1")
        self.parsed = parser.parse(pattern, flags)
        self._flags = self.parsed.state.flags
        self._groups: dict[int, str] = {}
        self._text = ""
        self.count = 0

    def run(self, text: str, method: str) -> int:
        """Return the steps of a search through the whole text, or of one attempt at its start."""
        self._text, self.count, self._groups = text, 0, {}
        items = list(self.parsed)
        if method in ("match", "fullmatch"):
            for end in self._all(items, 0):
                if method == "match" or end == len(text):
                    break
            return self.count
        start = 0
        while start <= len(text):
            self._groups = {}
            end = next(self._all(items, start), None)
            start = start + 1 if end is None or end == start else end
        return self.count

    def _all(self, items: Items, at: int) -> Iterator[int]:
        """Yield the places at which a match of all items could end."""
        if not items:
            yield at
            return
        if self.count > MOST:
            raise TooManyStepsError
        for end in self._one(items[0], at):
            yield from self._all(items[1:], end)

    def _one(self, item: tuple[Any, Any], at: int) -> Iterator[int]:
        self.count += 1
        code, value = item
        if code in _REPEATS:
            least, most, body = value
            if least < RUN_WITH < most <= BOUNDED:
                most = RUN_WITH
            yield from self._repeat(code, least, int(most), list(body), at)
        elif code is op.BRANCH:
            for branch in value[1]:
                yield from self._all(list(branch), at)
        elif code is op.SUBPATTERN:
            number, _, _, body = value
            for end in self._all(list(body), at):
                before = self._groups.get(number, "")
                self._groups[number] = self._text[at:end]
                yield end
                self._groups[number] = before
        elif code is op.ATOMIC_GROUP:
            yield from list(self._all(list(value), at))[:1]
        elif code in (op.ASSERT, op.ASSERT_NOT):
            if self._look(code, value, at):
                yield at
        elif code is op.GROUPREF:
            said = self._groups.get(value, "")
            if self._text.startswith(said, at):
                yield at + len(said)
        elif code is op.AT:
            if self._stands(value, at):
                yield at
        elif at < len(self._text) and self._is(item, self._text[at]):
            yield at + 1

    def _look(self, code: Any, value: tuple[int, Any], at: int) -> bool:
        direction, body = value
        items = list(body)
        if direction > 0:
            found = any(True for _ in self._all(items, at))
        else:
            width = body.getwidth()[0]
            found = at >= width and any(end == at for end in self._all(items, at - width))
        return found == (code is op.ASSERT)

    def _repeat(self, code: Any, least: int, most: int, body: Items, at: int) -> Iterator[int]:
        if len(body) == 1 and _is_single(body[0]):
            end = at
            while end < len(self._text) and end - at < most and self._is(body[0], self._text[end]):
                self.count += 1
                end += 1
            ends = range(end, at + least - 1, -1)
            if code is op.MIN_REPEAT:
                ends = range(at + least, end + 1)
            elif code is op.POSSESSIVE_REPEAT:
                ends = ends[:1]
            for each in ends:
                self.count += 1
                yield each
            return
        found = self._times(body, least, most, at, 0, greedy=code is not op.MIN_REPEAT)
        yield from list(found)[:1] if code is op.POSSESSIVE_REPEAT else found

    def _times(
        self, body: Items, least: int, most: int, at: int, done: int, *, greedy: bool
    ) -> Iterator[int]:
        if not greedy and done >= least:
            yield at
        if done < most:
            for end in self._all(body, at):
                if end > at or done < least:
                    yield from self._times(body, least, most, end, done + 1, greedy=greedy)
        if greedy and done >= least:
            yield at

    def _stands(self, where: Any, at: int) -> bool:
        text, lines = self._text, bool(self._flags & re.MULTILINE)
        if where in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            return at == 0 or (lines and where is op.AT_BEGINNING and text[at - 1] == "\n")
        if where is op.AT_END_STRING:
            return at == len(text)
        if where is op.AT_END:
            return at == len(text) or text[at:] == "\n" or (lines and text[at] == "\n")
        sides = [
            0 <= i < len(text) and _in_category(op.CATEGORY_WORD, text[i]) for i in (at - 1, at)
        ]
        return (sides[0] != sides[1]) == (where is op.AT_BOUNDARY)

    def _is(self, item: tuple[Any, Any], letter: str) -> bool:
        """Say whether one character is of a literal or of a class."""
        code, value = item
        letters = {letter}
        if self._flags & re.IGNORECASE:
            letters |= {letter.lower(), letter.upper()}
        if code is op.ANY:
            return letter != "\n" or bool(self._flags & re.DOTALL)
        if code is op.LITERAL:
            return chr(value) in letters
        if code is op.NOT_LITERAL:
            return chr(value) not in letters
        assert code is op.IN, code
        inside = any(_of_class(each, one) for each in value for one in letters)
        return inside != (value[0][0] is op.NEGATE)

    # --- texts that an attacker would try -------------------------------------------------------

    def attacks(self) -> Iterator[tuple[str, str]]:
        """Yield what comes first and what is then repeated: of all parts, alone and in pairs."""
        parts = list(dict.fromkeys(part for part in _parts(list(self.parsed), self) if part))
        firsts = ["", *self.samples(list(self.parsed))[:2]]
        units = dict.fromkeys([*parts, *(a + b for a, b in product(parts, repeat=2))])
        yield from product(dict.fromkeys(firsts), units)

    def samples(self, items: Items) -> list[str]:
        """Return short texts that the items match: each branch once, each repetition once."""
        found = [""]
        for item in items:
            found = [text + more for text in found for more in self._samples_of(item)][:12]
        return found

    def _samples_of(self, item: tuple[Any, Any]) -> list[str]:
        code, value = item
        if code in _REPEATS:
            least, _, body = value
            return [text * max(1, int(least)) for text in self.samples(list(body))]
        if code is op.BRANCH:
            return [text for branch in value[1] for text in self.samples(list(branch))]
        if code is op.SUBPATTERN:
            return self.samples(list(value[3]))
        if code is op.ATOMIC_GROUP:
            return self.samples(list(value))
        if code in (op.AT, op.ASSERT, op.ASSERT_NOT, op.GROUPREF):
            return [""]
        if code is op.LITERAL:
            return [chr(value)]
        return [next((each for each in _ANY_OF if self._is(item, each)), "")]


def grows(expression: Steps, method: str) -> str:
    """Return a text for which the steps grow faster than its length, '' where there is none."""
    if not _is_unbounded(list(expression.parsed)):
        return ""  # an attempt at one place takes so many steps at most, whatever follows
    for first, unit in expression.attacks():
        for last in ("", "\0"):
            count = max(2, -(-LENGTH // len(unit)))
            text = f"{first!r} + {unit!r} * n + {last!r}"
            try:
                one, two, four = (
                    expression.run(first + unit * (n * count) + last, method) for n in (1, 2, 4)
                )
            except TooManyStepsError:
                return text
            if four - 2 * two > (two - 2 * one) + SLACK:
                return text
    return ""


def _is_unbounded(items: Items) -> bool:
    return any(
        (code in _REPEATS and int(value[1]) > BOUNDED)
        or any(_is_unbounded(list(body)) for body in _bodies(code, value))
        for code, value in items
    )


def _parts(items: Items, of: Steps) -> Iterator[str]:
    """Yield texts of each part of an expression, and of each run of literals."""
    word = ""
    for code, value in [*items, (None, None)]:
        if code is op.LITERAL:
            word += chr(value)
            continue
        yield word
        word = ""
        if code is None:
            break
        yield from of._samples_of((code, value))
        for body in _bodies(code, value):
            yield from _parts(list(body), of)


def _bodies(code: Any, value: Any) -> Iterable[Any]:
    if code in _REPEATS:
        return [value[2]]
    if code is op.BRANCH:
        return value[1]
    if code is op.SUBPATTERN:
        return [value[3]]
    if code is op.ATOMIC_GROUP:
        return [value]
    return [value[1]] if code in (op.ASSERT, op.ASSERT_NOT) else []


def _is_single(item: tuple[Any, Any]) -> bool:
    return item[0] in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)


def _of_class(entry: tuple[Any, Any], letter: str) -> bool:
    code, value = entry
    if code is op.LITERAL:
        return letter == chr(value)
    if code is op.RANGE:
        return value[0] <= ord(letter) <= value[1]
    return code is op.CATEGORY and _in_category(value, letter)


def _in_category(category: Any, letter: str) -> bool:
    if category in (op.CATEGORY_DIGIT, op.CATEGORY_NOT_DIGIT):
        return letter.isdecimal() == (category is op.CATEGORY_DIGIT)
    if category in (op.CATEGORY_SPACE, op.CATEGORY_NOT_SPACE):
        return letter.isspace() == (category is op.CATEGORY_SPACE)
    return (letter.isalnum() or letter == "_") == (category is op.CATEGORY_WORD)
