"""A file of options, ``--config``: TOML, or YAML 1.2 where its name ends so. Both give the same options."""

import tomllib
from pathlib import Path
from typing import Any

from harness.base.errors import UsageError, in_one_line
from harness.results.files import MOST_OF_A_DOCUMENT, Unreadable, read_bytes

_YAML = (".yaml", ".yml")
_DEEPEST = 50
_OPENS = {"SequenceStartEvent": 1, "MappingStartEvent": 1, "SequenceEndEvent": -1, "MappingEndEvent": -1}


def read_options(path: Path) -> dict[str, Any]:
    """The options by their names, as the file has them.

    Raises:
        UsageError: it cannot be read, or is not what its name says.
    """
    yaml = path.suffix.lower() in _YAML
    kind, example = ("YAML", "attack: [cpl]") if yaml else ("TOML", 'attack = ["cpl"]')
    try:
        text = read_bytes(path, MOST_OF_A_DOCUMENT).decode()
        content = _yaml(text) if yaml else tomllib.loads(text)
    except Unreadable as problem:
        raise UsageError(f"{str(path)!r} {problem.reason}; check --config") from problem
    except (ValueError, RecursionError) as error:  # of its kind, no text, of too many digits, or nested too deeply
        why = in_one_line(error).partition(": ")[2] or in_one_line(error)
        raise UsageError(f"{str(path)!r} is not {kind} ({why}); write for example {example}") from error
    return content


def _yaml(text: str) -> dict[str, Any]:
    """A mapping of YAML 1.2: ``1e-5`` is a number, ``no`` a word.

    Raises:
        ValueError: it is none; a key twice, an anchor, an alias, a tag, or a directive of another version.
    """
    from ruamel.yaml import YAML  # here, since few files are of this kind
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    depth = 0
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            depth += _OPENS.get(type(event).__name__, 0)
            if depth > _DEEPEST:  # before the rest is read, which would take minutes
                raise ValueError("nested too deeply")
            if getattr(event, "anchor", None) is not None or getattr(event, "tag", None) is not None:
                raise ValueError(f"line {event.start_mark.line + 1} has an anchor, an alias or a tag; write it out")
            if getattr(event, "value", None) == "<<":
                raise ValueError("it has a key << of YAML 1.1; write out what it stands for")
            if getattr(event, "version", None) not in (None, (1, 2), [1, 2]):
                raise ValueError("it says to be of another version than 1.2")
        content = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{line}{str(error.problem).splitlines()[0]}") from None
    except (YAMLError, AssertionError, NotImplementedError) as error:
        raise ValueError(str(error) or type(error).__name__) from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError("it is no list of names, each with a value")
    return content
