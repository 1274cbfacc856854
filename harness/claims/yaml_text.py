"""The part of YAML 1.2 that configurations use, read line by line; whatever could mean two things is refused.

Mappings and lists in blocks or in brackets, quoted and plain values of the core schema ("no" is a text), block texts,
comments. Anchors, aliases, tags, merge keys, directives, several documents and keys that stand twice are refused.
"""

import json
import re
from typing import Any

_DEEPEST = 40
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\']|\'\')*\'')
_FLOW = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\']|\'\')*\'|[\[\]{},]|:(?=\s|$)|(?:[^\s\[\]{},:]|:(?!\s|$))+|\s+')
_INTEGER = re.compile(r"[-+]?\d{1,400}|0o[0-7]{1,400}|0x[0-9a-fA-F]{1,400}")
_FLOAT = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False, ".nan": float("nan"),
          ".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf")}  # fmt: skip


class Yaml:
    """One document.

    Raises:
        ValueError: it is not that, with the number of the line.
    """

    def __init__(self, text: str) -> None:
        self.lines = text.removeprefix("\ufeff").splitlines()
        self.place = 0
        if self._line() and self.lines[self.place].rstrip() == "---":
            self.place += 1

    def document(self) -> Any:
        """The whole file."""
        found = self._line()
        value = self._block(found[0], 0) if found else None
        if self._line():
            raise self._fault("stands where nothing is expected")
        return value

    def _fault(self, why: str) -> ValueError:
        return ValueError(f"line {self.place + 1} {why}")

    def _line(self) -> tuple[int, str] | None:
        """The indentation and the text of the next line that has any, without its comment; the place is on it."""
        while self.place < len(self.lines):
            raw = self.lines[self.place]
            text = _uncommented(raw.strip())
            if text:
                indent = len(raw) - len(raw.lstrip())
                if "\t" in raw[:indent] or text.startswith("%"):
                    raise self._fault("begins with a tab or a directive")
                if indent == 0 and (text == "..." or (text.split()[0] == "---" and self.place)):
                    raise self._fault("begins another document; give one")
                return indent, text
            self.place += 1
        return None

    def _block(self, indent: int, depth: int) -> Any:
        found = self._line()
        if depth > _DEEPEST:
            raise self._fault("is nested too deeply")
        if found is None:
            return None
        if found[1] == "-" or found[1].startswith("- "):
            return self._items(indent, depth)
        if _split(found[1]) is not None:
            return self._members(indent, depth)
        return self._value(found[1], indent, depth)

    def _items(self, indent: int, depth: int) -> list[Any]:
        items: list[Any] = []
        while (found := self._line()) and found[0] == indent and (found[1] == "-" or found[1].startswith("- ")):
            rest = found[1][1:].lstrip()
            inner = indent + len(found[1]) - len(rest)
            if rest and (_split(rest) is not None or rest == "-" or rest.startswith("- ")):
                self.lines[self.place] = " " * inner + rest  # a mapping or a list that begins behind the dash
                items.append(self._block(inner, depth + 1))
            else:
                items.append(self._value(rest, indent, depth))
        return self._closed(items, indent)

    def _members(self, indent: int, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        while (found := self._line()) and found[0] == indent and (parts := _split(found[1])) is not None:
            key, rest = parts
            if key in made or key == "<<":
                raise self._fault(f"has the key {key[:40]!r} a second time" if key in made else "merges keys")
            made[key] = self._value(rest, indent, depth, listed=True)
        return self._closed(made, indent)

    def _closed(self, made: Any, indent: int) -> Any:
        if (found := self._line()) and found[0] > indent:
            raise self._fault("does not fit the lines above it")
        return made

    def _value(self, text: str, indent: int, depth: int, listed: bool = False) -> Any:
        """What stands behind a key or a dash; the place goes behind it."""
        if text[:1] in ("&", "*", "!", "?", "@", "`"):
            raise self._fault("has an anchor, an alias, a tag or a reserved sign")
        if text[:1] in ("|", ">"):
            return self._text(indent, " " if text[0] == ">" else "\n")
        if text[:1] in ("[", "{"):
            return self._flow(text)
        self.place += 1
        if text:
            if (found := self._line()) and found[0] > indent:
                raise self._fault("goes on a value; write it in one line")
            return self._scalar(text)
        found = self._line()
        if found and (found[0] > indent or (listed and found[0] == indent and found[1].startswith("-"))):
            return self._block(found[0], depth + 1)
        return None

    def _text(self, indent: int, joint: str) -> str:
        self.place, kept = self.place + 1, []
        while self.place < len(self.lines):
            raw = self.lines[self.place]
            if raw.strip() and len(raw) - len(raw.lstrip()) <= indent:
                break
            kept.append(raw.strip())
            self.place += 1
        return joint.join(kept).strip()

    def _flow(self, text: str) -> Any:
        """Brackets, over as many lines as they need."""
        tokens = more = self._tokens(text)
        still = 0  # open
        while (still := still + sum((one in ("[", "{")) - (one in ("]", "}")) for one in more)) > 0:
            self.place += 1
            if (found := self._line()) is None:
                raise self._fault("ends within brackets")
            more = self._tokens(found[1])
            if len(tokens) > 10_000:
                raise self._fault("goes on with brackets for too long")
            tokens = tokens + more
        value, rest = self._flowed(tokens, 0, 0)
        if rest != len(tokens):
            raise self._fault("has something behind its brackets")
        self.place += 1
        return value

    def _tokens(self, text: str) -> list[str]:
        tokens, place = [], 0
        while place < len(text):
            if not (found := _FLOW.match(text, place)):
                raise self._fault("has a quote that does not end")
            tokens += [found[0]] if found[0].strip() else []
            place = found.end()
        return tokens

    def _flowed(self, tokens: list[str], place: int, depth: int) -> tuple[Any, int]:
        if depth > _DEEPEST or place >= len(tokens):
            raise self._fault("is nested too deeply, or ends within brackets")
        opened = tokens[place]
        if opened not in ("[", "{"):
            words = place
            while words < len(tokens) and tokens[words] not in ("[", "]", "{", "}", ",", ":"):
                words += 1
            return self._scalar(" ".join(tokens[place:words])), max(words, place + 1)
        closed, place = "]" if opened == "[" else "}", place + 1
        items: list[Any] = []
        made: dict[str, Any] = {}
        while place < len(tokens) and tokens[place] != closed:
            value, place = self._flowed(tokens, place, depth + 1)
            if opened == "{":
                if tokens[place : place + 1] != [":"] or str(value) in made:
                    raise self._fault("has a key without a value, or a second time")
                made[str(value)], place = self._flowed(tokens, place + 1, depth + 1)
            else:
                items.append(value)
            if tokens[place : place + 1] == [","]:
                place += 1
            elif tokens[place : place + 1] != [closed]:
                raise self._fault("misses a comma or a bracket")
        return items if opened == "[" else made, place + 1

    def _scalar(self, text: str) -> Any:
        if text[:1] in ("&", "*", "!", "@", "`", "%"):
            raise self._fault("has an anchor, an alias, a tag or a reserved sign")
        if text[:1] in ('"', "'"):
            if not _QUOTED.fullmatch(text):
                raise self._fault("has a quote that does not end in it")
            return json.loads(text) if text[0] == '"' else text[1:-1].replace("''", "'")
        if text in _WORDS or (text.lower() in _WORDS and text in (text.lower(), text.title(), text.upper())):
            return _WORDS[text.lower()]
        if _INTEGER.fullmatch(text):
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
        return float(text) if _FLOAT.fullmatch(text) else text


def _uncommented(text: str) -> str:
    """A line without its comment: from a # at its begin or behind a space, outside quotes."""
    if "#" not in text:
        return text
    place, fresh = 0, True  # whether a quote could begin here
    while place < len(text):
        sign = text[place]
        if sign == "#" and (place == 0 or text[place - 1].isspace()):
            return text[:place].rstrip()
        if sign in "\"'" and fresh and (found := _QUOTED.match(text, place)):
            place = found.end()
            continue
        fresh = sign.isspace() or sign in "[{,:"
        place += 1
    return text


def _split(text: str) -> tuple[str, str] | None:
    """The key of a line and what stands behind it; None where it has no key."""
    if text[:1] in ('"', "'"):
        if not (found := _QUOTED.match(text)):
            return None
        rest = text[found.end() :].lstrip()
        return (found[0][1:-1], rest[1:].lstrip()) if rest[:1] == ":" and rest[1:2] in ("", " ") else None
    if text[:1] in ("[", "{", "|", ">", "&", "*", "!"):
        return None
    place = text.find(": ")
    place = len(text) - 1 if place < 0 and text.endswith(":") else place
    return None if place < 1 else (text[:place].rstrip(), text[place + 1 :].lstrip())
