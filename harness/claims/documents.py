"""JSON, YAML and HOCON as text, read by the rules of those who will read it: PyYAML, pyhocon.

What they would read in another way, or what may be read in two ways, is refused.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

DEEPEST, MOST_VALUES = 40, 20_000  # that are looked up in one file: names may refer to names, twice each


def read_json(text: str) -> Any:
    """A document of JSON.

    Raises:
        ValueError: it is none, or has a key twice.
    """
    return json.loads(text, object_pairs_hook=_once_each)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


# YAML.

#: Words that PyYAML, the reader of FedML, APPFL and OpenFL, takes for something else than text (YAML 1.1).
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **{form(word): True for word in ("yes", "true", "on") for form in (str.lower, str.title, str.upper)},
    **{form(word): False for word in ("no", "false", "off") for form in (str.lower, str.title, str.upper)},
}
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_BROKEN = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?")


def read_yaml(text: str) -> Any:
    """A document of YAML 1.1: ``no`` and ``off`` are booleans, and ``1e-5`` without a point is a text.

    Raises:
        ValueError: it is none, has a key twice, or an anchor, an alias or a tag.
    """
    from ruamel.yaml import YAML  # here, since few sources are of this kind
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        events = _events(YAML(typ="safe", pure=True).parse(text))
        document = _value(event, events) if (event := next(events, None)) else None
        if (more := next(events, None)) is not None:
            raise ValueError(f"line {more.start_mark.line}: but found another document")
        return document
    except MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{line}{error.problem}") from None
    except YAMLError as error:
        raise ValueError(error) from None


def _events(events: Any) -> Iterator[Any]:
    """The events of the documents' content."""
    for event in events:
        if getattr(event, "anchor", None) is not None or getattr(event, "tag", None) is not None:
            raise ValueError(f"line {event.start_mark.line + 1} has an anchor, an alias or a tag")
        if not type(event).__name__.startswith(("Stream", "Document")):
            yield event


def _value(event: Any, events: Iterator[Any], depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    kind = type(event).__name__
    if kind == "ScalarEvent":
        return _plain(event.value) if event.implicit[0] else event.value
    if kind == "SequenceStartEvent":
        return [_value(one, events, depth + 1) for one in _until(events, "SequenceEndEvent")]
    made: dict[Any, Any] = {}
    for one in _until(events, "MappingEndEvent"):
        line = one.start_mark.line + 1
        key = _value(one, events, depth + 1)
        if isinstance(key, list | dict) or key == "<<":
            raise ValueError(f"line {line}: a key that is no text is not read here; write it out")
        if key in made:
            raise ValueError(f"line {line}: found duplicate key {str(key)!r}")
        made[key] = _value(next(events), events, depth + 1)
    return made


def _until(events: Iterator[Any], end: str) -> Iterator[Any]:
    while type(event := next(events)).__name__ != end:
        yield event


def _plain(text: str) -> Any:
    """Return what a word without quotes is; numbers in other forms, such as octal ones and times of day, stay text."""
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text.replace("_", ""))
    return float(text.replace("_", "")) if _BROKEN.fullmatch(text) else text


# HOCON.


class Hocon:
    """The part of HOCON that NVFlare's configurations use: objects, paths, lists, values, comments, ``${a.b}``.

    As pyhocon reads it: objects of one path are merged, the last value of a path counts.

    Raises:
        ValueError: it is not that, or includes other files.
    """

    _SKIPPED = re.compile(r"[^\S\n]+|#[^\n]*|//[^\n]*")
    _TOKEN = re.compile(r'\n|"(?:[^"\\\n]|\\.)*"|[{}\[\],:=]|\$\{[^}\n]*\}|(?:[^\s{}\[\],:="#$/+]|/(?!/)|\+(?!=))+')

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        place = 0
        while place < len(text):
            if found := self._SKIPPED.match(text, place):
                place = found.end()
                continue
            if text.startswith('"""', place):
                close = text.find('"""', place + 3)
                end = close + 3 if close > 0 else place
            else:
                end = found.end() if (found := self._TOKEN.match(text, place)) else place
            if end == place:
                raise ValueError(f"cannot go on at {text[place : place + 20]!r}")
            self.tokens.append(text[place:end])
            place = end
        self.place, self.resolved, self.root = 0, 0, {}

    def document(self) -> dict[str, Any]:
        """The whole file."""
        braced = self._peek() == "{"
        self.place += braced
        self._members(self.root, "}" if braced else "")
        if self._peek():
            raise ValueError(f"{self._peek()!r} stands behind the end")
        return self._resolved(self.root)

    def _peek(self, lines: bool = True) -> str:
        """The next token, after ends of ``lines``; empty at the end."""
        while lines and self.place < len(self.tokens) and self.tokens[self.place] == "\n":
            self.place += 1
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise ValueError("the file ends too early")
        self.place += 1
        return token

    def _members(self, into: dict[str, Any], end: str) -> None:
        while self._peek() != end:
            token = self._next()
            if token == ",":
                continue
            if token == "include" or token in "{}[]:=" or token.startswith(("${", '"""')):
                raise ValueError(f"{token!r} is not read here; write the value into the file")
            parts = [str(_unquoted(token))] if token.startswith('"') else token.split(".")
            if not all(parts):
                raise ValueError(f"{token!r} is no path of keys")
            if self._peek() in ("=", ":"):
                self.place += 1
            elif self._peek() != "{":
                raise ValueError(f"{token!r} has no value")
            _merge(into, parts, value := self._value())
            if not isinstance(value, dict):
                self._ended()
        self.place += bool(end)

    def _ended(self) -> None:
        """A value ends with its line, a comma, or what it stands in."""
        if self._peek(lines=False) not in ("\n", ",", "}", "]", ""):
            raise ValueError(f"{self._peek()!r} stands behind a value; write one value a line")

    def _value(self) -> Any:
        token = self._next()
        if token == "{":
            made: dict[str, Any] = {}
            self._members(made, "}")
            return made
        if token == "[":
            items: list[Any] = []
            while self._peek() != "]":
                if self._peek() == ",":
                    self.place += 1
                else:
                    items.append(self._value())
                    self._ended()
            self.place += 1
            return items
        if token in "}],:=":
            raise ValueError(f"{token!r} stands where a value should")
        if token.startswith("${"):
            return _Reference(token[2:-1])
        words = [token]
        while self._peek(lines=False) not in (*"\n,}]{[:=", "") and not self._peek(lines=False).startswith("${"):
            words.append(self._next())
        return _unquoted(token) if len(words) == 1 else " ".join(str(_unquoted(word)) for word in words)

    def _resolved(self, value: Any, depth: int = 0) -> Any:
        self.resolved += 1
        if depth > DEEPEST or self.resolved > 10 * MOST_VALUES:
            raise ValueError("nested too deeply, or a reference to itself")
        if isinstance(value, dict):
            return {key: self._resolved(one, depth + 1) for key, one in value.items()}
        if isinstance(value, list):
            return [self._resolved(one, depth + 1) for one in value]
        if isinstance(value, _Reference):
            found: Any = self.root
            for part in value.path.split("."):
                found = self._resolved(found, depth + 1) if isinstance(found, _Reference) else found
                if not isinstance(found, dict) or part not in found:
                    raise ValueError(f"${{{value.path}}} is not in the file; write the value into it")
                found = found[part]
            return self._resolved(found, depth + 1)
        return value


class _Reference:
    def __init__(self, path: str) -> None:
        self.path = path


def _merge(into: dict[str, Any], parts: list[str], value: Any) -> None:
    """Sets the value of a path. An object is merged into the one that is there."""
    *before, last = parts
    for part in before:
        into = into.setdefault(part, {})
        if not isinstance(into, dict):
            raise ValueError(f"{'.'.join(parts)} lies in what is no object; write the value into the file")
    there = into.get(last)
    if isinstance(value, dict) and isinstance(there, dict):
        for key, one in value.items():
            _merge(there, [key], one)
    elif isinstance(there, _Reference) or (there is not None and isinstance(value, _Reference)):
        raise ValueError(f"{'.'.join(parts)} is set twice, once by a reference; write the value into the file")
    else:
        into[last] = value


def _unquoted(token: str) -> Any:
    if token.startswith('"""'):
        return token[3:-3]
    if token.startswith('"'):
        return json.loads(token)
    if (word := token.lower()) in ("true", "false", "null"):
        return json.loads(word)
    if re.fullmatch(r"[-+]?\d{1,300}", token):
        return int(token)
    return float(token) if re.fullmatch(r"[-+]?(?:\d+\.\d+|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?", token) else token
