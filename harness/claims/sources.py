"""Configurations of frameworks, read and never run: which filters they name, with which arguments and facts.

Python is parsed as text. A value is taken where it is a literal, a name that is assigned once, or a key of the
configuration beside it; every other one has to be given. Nothing is imported and nothing is called.
"""

import ast
import json
import operator
import os
import re
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.base.errors import UsageError
from harness.claims.answers import REQUIRED, Filter
from harness.claims.filters import FILTERS, find_filter

_MOST_BYTES, _MOST_FILES, _MOST_FILTERS, _DEEPEST = 1 << 20, 50, 100, 40
_MOST_VALUES = 20_000  # that are looked up in one file: names may refer to names, twice each
_MODS = {"ClientSideFixedClipping": "fixedclipping_mod", "ClientSideAdaptiveClipping": "adaptiveclipping_mod"}


@dataclass
class Found:
    """A filter of a source, with the arguments that are known.

    Attributes:
        open: arguments whose value the source does not say, and where they stand. ifs: what nobody said.
    """

    filter: Filter
    arguments: dict[str, Any]
    where: str
    open: dict[str, str] = field(default_factory=dict)
    ifs: list[str] = field(default_factory=list)

    def filled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments, with those ``given`` on the command line before those of the source.

        Raises:
            UsageError: one that it needs is known of neither.
        """
        own = {name: value for name, value in given.items() if name in self.filter.settings}
        for name, text in self.open.items():
            if name not in own and self.filter.settings.get(name) is REQUIRED:
                raise UsageError(f"{self.where}: {name} = {text} is no literal and no key; add --arg {name}=VALUE")
        return self.filter.arguments({**self.arguments, **own}, self.where)


@dataclass
class Source:
    """What was read: filters, facts as they are named in :class:`harness.claims.answers.Facts`, unknown classes."""

    name: str
    found: list[Found] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    version: str | None = None


def read_source(path: Path) -> Source:
    """What a file says.

    Raises:
        UsageError: it cannot be read, is no configuration that is known here, or names no known filter.
    """
    text = _text(path)
    try:
        if path.suffix == ".toml":
            return _flower(path, text)
        if path.suffix == ".py":
            return _app(path, text)
        if path.suffix in (".json", ".conf"):
            return _document(path, Hocon(text).document() if path.suffix == ".conf" else json.loads(text))
        if path.suffix in (".yaml", ".yml"):
            return _document(path, _yaml(text))
    except (ValueError, RecursionError, MemoryError, SyntaxError) as error:
        said = " ".join(str(error).split())[:120] or "nested too deeply"
        raise UsageError(f"{path}: cannot be read as {path.suffix[1:]} ({said}); fix the file") from None
    raise UsageError(f"{path}: no configuration of a known kind; give a .toml, .py, .json, .conf or .yaml file")


def _yaml(text: str) -> Any:
    """A document of YAML 1.2, in which "no" is a text. Ready objects come of it and no references, which may grow.

    Raises:
        ValueError: it is none, has a key twice, or an anchor, an alias or a tag.
    """
    from ruamel.yaml import YAML  # here, since few sources are of this kind
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        depth = 0
        for event in YAML(typ="safe", pure=True).parse(text):
            depth += type(event).__name__.endswith("StartEvent") - type(event).__name__.endswith("EndEvent")
            if depth > _DEEPEST:
                raise ValueError("nested too deeply")
            if getattr(event, "anchor", None) is not None or getattr(event, "tag", None) is not None:
                raise ValueError(f"line {event.start_mark.line + 1} has an anchor, an alias or a tag")
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{line}{error.problem}") from None
    except YAMLError as error:
        raise ValueError(error) from None


def _text(path: Path) -> str:
    try:
        if not os.path.isfile(path):
            raise UsageError(f"{path}: neither a file nor a known filter; harness claims lists the filters")
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path}: larger than 1 MiB; give the configuration alone")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not text in UTF-8; save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a file that can be read") from None


# Flower: pyproject.toml, and the app's files beside it.


def _flower(path: Path, text: str) -> Source:
    document = tomllib.loads(text)
    app = _table(document, "tool", "flwr", "app")
    if not app:
        raise UsageError(f"{path}: has no table [tool.flwr.app]; give the pyproject.toml of a Flower app")
    config = dict(_flat(_table(app, "config")))
    source = Source(str(path))
    _flower_facts(document, config, source)
    files = _app_files(path.parent, _table(app, "components"))
    _read_code({file: _text(file) for file in files}, config, source, str(path))
    known = {name: config[name] for name in FILTERS["flip:local_dp"].settings if name in config}
    if known:
        source.found.append(Found(FILTERS["flip:local_dp"], known, f"{path}: [tool.flwr.app.config]"))
    elif not files and {"noise_multiplier", "clipping_norm", "num_sampled_clients"} <= config.keys():
        central = FILTERS["flower:ServerSideFixedClipping"]
        known = {name: config[name] for name in central.settings if name in config}
        said = "the app uses these keys for fixed clipping; its code is not beside the file"
        source.found.append(Found(central, known, f"{path}: [tool.flwr.app.config]", ifs=[said]))
    return _checked(source)


def _table(document: Any, *names: str) -> dict[str, Any]:
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Keys joined by dots, with underscores for dashes."""
    for key, value in table.items():
        name = f"{before}{key}".replace("-", "_")
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _flower_facts(document: dict[str, Any], config: Mapping[str, Any], source: Source) -> None:
    if isinstance(rounds := config.get("num_server_rounds"), int) and not isinstance(rounds, bool):
        source.facts["rounds"] = rounds
    for name, value in _flat(_table(document, "tool", "flwr", "federations")):
        if name.endswith("options.num_supernodes") and isinstance(value, int):
            source.facts["clients"] = value
    for one in _listed(_table(document, "project").get("dependencies")):
        if found := re.match(r"flwr(?:\[[^\]]*\])?\s*([=~><!]=?.*)?$", str(one)):
            source.version = f"flwr {found[1] or ''}".strip()
            if pinned := _PINNED.fullmatch((found[1] or "").strip()):
                source.facts["version"] = pinned[1]


#: "==1.12.0", "==1.12.*" and "~=1.12.0": one minor version.
_PINNED = re.compile(r"(?:==|~=(?=\s*\d+\.\d+\.\d))\s*(\d+(?:\.\d+)*)(?:\.\*)?")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _app_files(folder: Path, components: Mapping[str, Any]) -> list[Path]:
    """The files of the packages that the components lie in."""
    files: dict[Path, None] = {}
    for name in components.values():
        module = str(name).partition(":")[0]
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", module):
            continue
        file = folder.joinpath(*module.split(".")).with_suffix(".py")
        beside = sorted(file.parent.glob("*.py")) if file.parent != folder else [file]
        files.update(dict.fromkeys(one for one in [file, *beside] if one.is_file()))
    return list(files)[:_MOST_FILES]


def _app(path: Path, text: str) -> Source:
    source, config = Source(str(path)), {}
    for folder in list(path.resolve().parents)[:3]:
        if (toml := folder / "pyproject.toml").is_file():
            document = tomllib.loads(_text(toml))
            config = dict(_flat(_table(document, "tool", "flwr", "app", "config")))
            _flower_facts(document, config, source)
            break
    _read_code({path: text}, config, source, str(path))
    return _checked(source)


def _checked(source: Source) -> Source:
    if len(source.found) + len(source.unknown) > _MOST_FILTERS:
        raise UsageError(f"{source.name}: names more than {_MOST_FILTERS} filters; give the part that is asked about")
    if not source.found and not source.unknown:
        raise UsageError(f"{source.name}: names no filter that is known here; harness claims lists them")
    return source


# Python as text.

_STRATEGIES = ("FedAvg", "FedProx", "FedAdam", "FedYogi", "FedAdagrad", "FedAvgM", "FedMedian", "FedTrimmedAvg", "Krum")
_NUMBERS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool, "str": str}


class _Unsaid(Exception):
    """A value that the source does not say."""


class Code:
    """One file: the names that it assigns, what it calls, and values as far as they are literals.

    Args:
        config: keys of the configuration, flat, with underscores.
    """

    def __init__(self, tree: ast.Module, config: Mapping[str, Any]) -> None:
        self.config, self.tree = config, tree
        self.assigned: dict[str, list[ast.expr]] = {}
        self.imported: dict[str, str] = {}
        self.looked_up = 0
        for node in ast.walk(tree):
            self._note(node)

    def _note(self, node: ast.AST, before: str = "") -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.assigned.setdefault(f"{before}{target.id}", []).append(node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None and isinstance(node.target, ast.Name):
            self.assigned.setdefault(f"{before}{node.target.id}", []).append(node.value)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            self.imported.update({one.asname: one.name for one in node.names if one.asname})
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                self._note(inner, f"{node.name}.")

    def name_of(self, node: ast.expr) -> str:
        """The last part of a name or attribute, as it was imported; empty for everything else."""
        if isinstance(node, ast.Attribute):
            return node.attr
        name = node.id if isinstance(node, ast.Name) else ""
        return self.imported.get(name, name).rpartition(".")[2]

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """A literal, or what follows from literals.

        Raises:
            _Unsaid: it is neither.
        """
        self.looked_up += 1
        if depth > _DEEPEST or self.looked_up > _MOST_VALUES:
            raise _Unsaid
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._number(node.operand, depth)
        if isinstance(node, ast.BinOp) and type(node.op) in _NUMBERS:
            try:
                return _NUMBERS[type(node.op)](self._number(node.left, depth), self._number(node.right, depth))
            except (ArithmeticError, ValueError):
                raise _Unsaid from None
        if isinstance(node, ast.Call):
            return self._called(node, depth)
        if isinstance(node, ast.Subscript):
            return self._configured(node.value, node.slice)
        if isinstance(node, ast.Name):
            return self._once(node.id, depth)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, depth)
        raise _Unsaid

    def _number(self, node: ast.expr, depth: int) -> int | float:
        value = self.value(node, depth + 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e30:
            raise _Unsaid
        return value

    def _once(self, name: str, depth: int) -> Any:
        values = self.assigned.get(name, [])
        if not values or len({ast.dump(value) for value in values}) > 1:
            raise _Unsaid
        return self.value(values[0], depth + 1)

    def _called(self, node: ast.Call, depth: int) -> Any:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            try:
                return self._configured(node.func.value, node.args[0])
            except _Unsaid:
                if len(node.args) != 2 or not self._is_config(node.func.value):
                    raise
                return self.value(node.args[1], depth + 1)
        cast = _CASTS.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if cast is None or len(node.args) != 1 or node.keywords:
            raise _Unsaid
        value = self.value(node.args[0], depth + 1)
        try:
            return cast(value)
        except (TypeError, ValueError, OverflowError):
            raise _Unsaid from None

    def _is_config(self, node: ast.expr) -> bool:
        text = ast.unparse(node)
        if re.search(r"conf|cfg", text, re.IGNORECASE):
            return True
        return any("run_config" in ast.unparse(value) for value in self.assigned.get(text, []))

    def _configured(self, whole: ast.expr, key: ast.expr) -> Any:
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str) and self._is_config(whole)):
            raise _Unsaid
        return self._key(key.value)

    def _key(self, name: str) -> Any:
        """A key of the configuration, under any of its last parts."""
        name = name.replace("-", "_")
        while name not in self.config:
            _, dot, name = name.partition(".")
            if not dot:
                raise _Unsaid
        return self.config[name]

    def _attribute(self, node: ast.Attribute, depth: int) -> Any:
        text = ast.unparse(node)
        if text in self.assigned:
            return self._once(text, depth)
        if self._is_config(node.value):
            return self._key(text)
        raise _Unsaid

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Every call, with the last part of its name."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield self.name_of(node.func), node

    def names(self) -> set[str]:
        """Every name that is read, as it was imported."""
        read = (node for node in ast.walk(self.tree) if isinstance(node, ast.Name | ast.Attribute))
        return {self.name_of(node) for node in read}


def _read_code(files: Mapping[Path, str], config: Mapping[str, Any], source: Source, whole: str) -> None:
    """Adds what the files of an app say."""
    names: set[str] = set()
    for path, text in files.items():
        try:
            with warnings.catch_warnings(action="ignore"):  # of what the file's authors wrote
                code = Code(ast.parse(text), config)
            names |= code.names()
            for name, call in code.calls():
                _note_call(name, call, code, source, f"{path}, line {call.lineno}")
        except (ValueError, RecursionError, MemoryError, SyntaxError) as error:
            said = " ".join(str(error).split())[:120] or "nested too deeply"
            raise UsageError(f"{path}: cannot be read as Python ({said}); fix the file") from None
    source.facts["secure_sum"] = bool(names & {"SecAggPlusWorkflow", "SecAggWorkflow"})
    if whole.endswith(".toml"):
        for one in source.found:
            if mod := _MODS.get(one.filter.name.rpartition(":")[2]):
                source.facts["clients_clip"] = mod in names
    _per_round(source.facts)


def _note_call(name: str, call: ast.Call, code: Code, source: Source, where: str) -> None:
    if name in _STRATEGIES:
        _note_strategy(name, _known(call, {}, code)[0], source.facts)
    elif name in ("ServerConfig", "start"):
        rounds = _known(call, {}, code)[0].get("num_rounds")
        if isinstance(rounds, int) and rounds > 0:
            source.facts.setdefault("rounds", rounds)
    elif name != "PrivacyEngine" and (found := find_filter(name)) and name in found.aliases:
        if found.name == "flower:SecAggPlus":
            return
        arguments, unsaid = _known(call, found.settings, code)
        kept = {key: value for key, value in arguments.items() if key in found.settings}
        if "accountant" in unsaid and "accountant" in found.settings:
            kept["accountant"] = _accountant(call, code)
            del unsaid["accountant"]
        unsaid = {key: text for key, text in unsaid.items() if key in found.settings}
        ifs = []
        if found.name == "opacus:PrivacyEngine":
            maker = _maker(call, code)
            kept.setdefault("engine", "kept" if maker in ("", "__init__") else "per-round")
            ifs += ["one client object lives through all rounds, which client_fn does not do"] * (maker == "__init__")
        source.found.append(Found(found, kept, where, unsaid, ifs))


_CONFIG = ("target_delta", "population_size", "neighboring_relation", "sampling_method", "max_epsilon")


def _accountant(call: ast.Call, code: Code) -> dict[str, Any]:
    """The settings of the PrivacyConfig of a strategy's accountant, as far as they are literals."""
    node = next((word.value for word in call.keywords if word.arg == "accountant"), None)
    for name, inside in (("RdpAccountant", "config"), ("PrivacyConfig", "")):
        if isinstance(node, ast.Name) and len(values := code.assigned.get(node.id, [])) == 1:
            node = values[0]
        if not isinstance(node, ast.Call) or code.name_of(node.func) != name:
            return {}
        if name == "PrivacyConfig":
            return _known(node, dict.fromkeys(_CONFIG), code)[0]
        node = next((word.value for word in node.keywords if word.arg == inside), *node.args[:1] or [None])
    return {}


def _maker(call: ast.Call, code: Code) -> str:
    """The name of the function that makes both the model private and the engine; empty where none does."""
    for node in ast.walk(code.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = list(ast.walk(node))
            if call in inside:
                makes = any(isinstance(one, ast.Call) and code.name_of(one.func) == "PrivacyEngine" for one in inside)
                return node.name if makes else ""
    return ""


def _known(call: ast.Call, settings: Mapping[str, Any], code: Code) -> tuple[dict[str, Any], dict[str, str]]:
    """The arguments of a call whose values are known, and the text of the others."""
    named = {word.arg: word.value for word in call.keywords if word.arg}
    named = {**dict(zip(settings, call.args, strict=False)), **named}
    known, unsaid = {}, {}
    for name, node in named.items():
        try:
            known[name] = code.value(node)
        except _Unsaid:
            unsaid[name] = ast.unparse(node)[:60]
    return known, unsaid


def _note_strategy(name: str, arguments: Mapping[str, Any], facts: dict[str, Any]) -> None:
    facts["server_optimizer"] = name if name != "FedAvg" else None
    for new, old, fact in (
        ("fraction_train", "fraction_fit", "_fraction"),
        ("min_train_nodes", "min_fit_clients", "_least"),
    ):
        if isinstance(value := arguments.get(new, arguments.get(old)), int | float):
            facts[fact] = value


def _per_round(facts: dict[str, Any]) -> None:
    """K = max(int(N fraction), least), as Flower draws clients."""
    fraction, least = facts.pop("_fraction", 1.0), facts.pop("_least", 2)
    if "clients" in facts:
        facts["per_round"] = min(facts["clients"], max(int(facts["clients"] * fraction), int(least)))


# NVFlare, Opacus, and names with arguments.


def _document(path: Path, document: Any) -> Source:
    source = Source(str(path))
    if not isinstance(document, dict):
        raise UsageError(f"{path}: holds no object; give a configuration, an accountant's state or a named filter")
    if "history" in document:
        state = {"history": document["history"], "accountant": document.get("mechanism", "prv")}
        source.found.append(Found(FILTERS["opacus:PrivacyEngine"], {"noise_multiplier": 1.0, **state}, str(path)))
    elif isinstance(document.get("defense"), str):
        if found := find_filter(document["defense"]):
            arguments = {key: value for key, value in document.items() if key not in ("defense", "args")}
            source.found.append(Found(found, {**arguments, **_table(document, "args")}, str(path)))
        else:
            source.unknown.append(document["defense"])
    elif not _platform(path, document, source):
        _filters_of(path, document, source)
        if not source.found and not source.unknown:
            raise UsageError(f"{path}: has no task_result_filters and no history; give the client's configuration")
    return _checked(source)


def _filters_of(path: Path, document: dict[str, Any], source: Source) -> None:
    """Adds the filters of a client's configuration, or those of every scope of a site's privacy.json."""
    for scope in _listed(document.get("scopes")):
        name = str(scope.get("name")) if isinstance(scope, dict) else ""
        default = ", the default" if name == document.get("default_scope") else ""
        for entry in _filter_entries(scope):
            _note_entry(entry, source, f"{path}: scope {name}{default}")
    for entry in _filter_entries({key: one for key, one in document.items() if key != "scopes"}):
        _note_entry(entry, source, str(path))


#: Facts by the keys that FedML and APPFL have for them.
_FACTS = {
    "comm_round": "rounds", "client_num_in_total": "clients", "client_num_per_round": "per_round",
    "batch_size": "batch_size", "epochs": "local_epochs", "num_global_epochs": "rounds",
    "num_local_steps": "local_steps", "num_local_epochs": "local_epochs", "train_batch_size": "batch_size",
    "num_clients": "clients",
}  # fmt: skip


def _platform(path: Path, document: dict[str, Any], source: Source) -> bool:
    """Adds the filters of FedML, APPFL or OpenFL; False where the document is of none of them."""
    flat = {key.rpartition(".")[2]: value for key, value in _flat(document)}
    names = [name for key, name in (("enable_dp", "fedml:dp"), ("use_dp", "appfl:dp")) if key in flat]
    if not names and {"noise_multiplier", "sample_rate"} <= _table(document, "differential_privacy").keys():
        names = ["openfl:GlobalDP1", "openfl:GlobalDP2"]
    for name in names:
        known = {key: flat[key] for key in FILTERS[name].settings if flat.get(key) is not None}
        ifs = [f"the tutorial's implementation {name[-1]} runs"] if name.startswith("openfl") else []
        source.found.append(Found(FILTERS[name], known, f"{path}: {name.partition(':')[0]}", ifs=ifs))
    for key, fact in _FACTS.items() if names else ():
        if isinstance(value := flat.get(key), int) and not isinstance(value, bool):
            source.facts[fact] = value
    if isinstance(kind := flat.get("client_optimizer", flat.get("optim")), str) and names:
        source.facts["optimizer"] = "momentum" if kind.lower() == "sgd" and flat.get("momentum") else kind.lower()
    return bool(names)


def _filter_entries(value: Any, inside: bool = False) -> Iterator[dict[str, Any]]:
    """Every filter that lists of filters name, but for those of what a client receives."""
    if isinstance(value, dict):
        if (
            inside
            and isinstance(value.get("path", value.get("name", value.get("class_path"))), str)
            and not any(key.endswith("filters") for key in value)
        ):
            yield value
            return
        for key, one in value.items():
            if key != "task_data_filters":
                yield from _filter_entries(one, inside or str(key).endswith("filters"))
    elif isinstance(value, list):
        for one in value:
            yield from _filter_entries(one, inside)


def _note_entry(entry: Mapping[str, Any], source: Source, where: str) -> None:
    name = str(entry.get("path", entry.get("name", entry.get("class_path"))))
    found = find_filter(name)
    if found is None or found.acts not in ("s1",):
        source.unknown.append(name)
        return
    ifs = []
    if "." in name and not name.startswith("nvflare."):
        ifs.append(f"{name} does what the class of that name in NVFlare does")
    source.found.append(Found(found, dict(_table(entry, "args")), f"{where}: {name}", ifs=ifs))


class Hocon:
    """The part of HOCON that NVFlare's configurations use: objects, lists, values, comments, ``${a.b}``.

    Raises:
        ValueError: it is not that, or includes other files.
    """

    _SKIPPED = re.compile(r"\s+|#[^\n]*|//[^\n]*")
    _TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[{}\[\],:=]|\$\{[^}\n]*\}|(?:[^\s{}\[\],:="#$/]|/(?!/))+')

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
        return self._resolved(self.root)

    def _peek(self) -> str:
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
            if token == "include" or token in "{}[]:=":
                raise ValueError(f"{token!r} is not read here; write the value into the file")
            key = _unquoted(token)
            if self._peek() in ("=", ":"):
                self.place += 1
            into[str(key)] = self._value()
        self.place += bool(end)

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
            self.place += 1
            return items
        return token if token.startswith("${") else _unquoted(token)

    def _resolved(self, value: Any, depth: int = 0) -> Any:
        self.resolved += 1
        if depth > _DEEPEST or self.resolved > 10 * _MOST_VALUES:
            raise ValueError("nested too deeply, or a reference to itself")
        if isinstance(value, dict):
            return {key: self._resolved(one, depth + 1) for key, one in value.items()}
        if isinstance(value, list):
            return [self._resolved(one, depth + 1) for one in value]
        if isinstance(value, str) and value.startswith("${"):
            found: Any = self.root
            for part in value[2:-1].lstrip("?").split("."):
                found = found.get(part) if isinstance(found, dict) else None
            return value if found is None else self._resolved(found, depth + 1)
        return value


def _unquoted(token: str) -> Any:
    if token.startswith('"""'):
        return token[3:-3]
    try:
        return json.loads(token)
    except ValueError:
        return token
