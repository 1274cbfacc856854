"""Apps of Flower, and code that calls filters by name: the project's file and Python beside it, read and never run."""

import ast
import re
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.base.errors import UsageError
from harness.claims.code import Code
from harness.claims.filters import FILTERS, find_filter
from harness.claims.found import Found, Source, check_number, flat, in_a_line, is_whole, listed, once, table

Read = Callable[[Path], str]
_MOST_FILES = 50
_MODS = {"ClientSideFixedClipping": "fixedclipping_mod", "ClientSideAdaptiveClipping": "adaptiveclipping_mod"}
#: The packages of filters, where they have another name.
_PACKAGES = {"flower": "flwr", "tff": "tensorflow_federated"}
#: Strategies that draw clients as FedAvg does.
_STRATEGIES = (
    "FedAvg", "FedProx", "FaultTolerantFedAvg", "FedAvgAndroid", "FedAdam", "FedYogi", "FedAdagrad", "FedAvgM",
    "FedOpt", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum", "Bulyan", "QFedAvg", "FedXgbBagging", "FedXgbCyclic",
    "FedXgbNnAvg",
)  # fmt: skip
_CONFIG = ("target_delta", "population_size", "neighboring_relation", "sampling_method", "max_epsilon")
_WITH_EPSILON = ("target_epsilon", "target_delta", "epochs")
#: What belongs to the engine, or to answers alone, and cannot stand in a call.
_NOT_IN_CALLS = {"opacus:PrivacyEngine": ("accountant", "history", "engine", "secure_mode", "sample_rate", "steps")}


def read_project(path: Path, text: str, read: Read) -> Source:
    """Return what a Flower app's pyproject.toml says, and the files of its components."""
    document = _toml(path, text)
    app = table(document, "tool", "flwr", "app")
    if not app:
        raise UsageError(f"{path}: has no table [tool.flwr.app]; give the pyproject.toml of a Flower app")
    source, config = _project(path, document, str(path))
    files = {file: read(file) for file in _app_files(path.parent, table(app, "components"))}
    _read_code(files, config, source)
    if _file(path.parent, table(app, "components").get("clientapp")) not in files:
        source.facts.pop("clients_clip", None)  # the file that may list the mod is not there
    where = f"{path}: [tool.flwr.app.config]"
    known = {name: config[name] for name in FILTERS["flip:local_dp"].settings if name in config}
    # Another filter of the code has the keys for itself, unless the code is FLIP's.
    if known and (not source.found or any("flip" in text for text in files.values())):
        said = "FLIP's local_dp runs, which has these keys"
        source.found.append(Found(FILTERS["flip:local_dp"], known, where, ifs=[said]))
    elif not files and {"noise_multiplier", "clipping_norm", "num_sampled_clients"} <= config.keys():
        central = FILTERS["flower:ServerSideFixedClipping"]
        known = {name: config[name] for name in central.settings if name in config}
        said = "the app uses these keys for fixed clipping; its code is not beside the file"
        source.found.append(Found(central, known, where, ifs=[said]))
    _versions(source, document)
    return source


def read_app(path: Path, text: str, read: Read) -> Source:
    """Return what a file of Python says, with the configuration of the project that it lies in."""
    source, config, document = Source(str(path)), None, {}
    for folder in list(path.resolve().parents)[:3]:
        if (toml := folder / "pyproject.toml").is_file():
            document = _toml(toml, read(toml))
            if table(document, "tool", "flwr", "app"):
                source, config = _project(toml, document, str(path))
            break
    _read_code({path: text}, config, source)
    source.facts.pop("clients_clip", None)  # other files may list the mod
    _versions(source, document)
    return source


def _toml(path: Path, text: str) -> dict[str, Any]:
    """The document of a project, which another file may lie beside."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as toml ({in_a_line(error)}); fix the file") from None


def _project(path: Path, document: dict[str, Any], name: str) -> tuple[Source, dict[str, Any]]:
    """The facts of a project's file, and its run configuration."""
    source = Source(name)
    where = f"{path}: [tool.flwr.app.config]"
    config = once(flat(table(document, "tool", "flwr", "app", "config")), where)
    if "num_server_rounds" in config:
        source.facts["rounds"] = config["num_server_rounds"]
        source.keys["rounds"] = f"{where}: num-server-rounds"
    federations = table(document, "tool", "flwr", "federations")
    named = federations.get("default") if "default" in federations else _only(federations)
    options = once(flat(table(federations, str(named))), f"{path}: federation {named}")
    if "options.num_supernodes" in options:
        source.facts["clients"] = options["options.num_supernodes"]
        source.keys["clients"] = f"{path}: federation {named}: options.num-supernodes"
    return source, config


def _only(federations: Mapping[str, Any]) -> str | None:
    """The one federation that there is; None where there are several."""
    names = [name for name, one in federations.items() if isinstance(one, dict)]
    return names[0] if len(names) == 1 else None


def _versions(source: Source, document: Mapping[str, Any]) -> None:
    """Adds to each filter which versions of its package the project asks for."""
    lines = [str(one) for one in listed(table(document, "project").get("dependencies"))]
    own = table(document, "tool", "poetry", "dependencies")
    poetry = {canonicalize_name(name): one for name, one in own.items()}
    for found in source.found:
        package = _package(found.filter.name)
        asked = asked_of(package, lines, poetry.get(canonicalize_name(package)))
        if asked is None:
            continue
        found.version, since = asked.text, found.filter.since
        older, below = asked.below(since)
        if version := below or asked.pinned:
            found.facts["version"] = version
        elif older:
            found.unsettled["version"] = f"{package} is {since} or newer, which the project does not demand"


def _package(name: str) -> str:
    """The package of a filter."""
    before = name.partition(":")[0]
    return _PACKAGES.get(before, before)


def _app_files(folder: Path, components: Mapping[str, Any]) -> list[Path]:
    """The files of the packages that the components lie in."""
    files: dict[Path, None] = {}
    for name in components.values():
        if (file := _file(folder, name)) is None:
            continue
        beside = sorted(file.parent.glob("*.py")) if file.parent != folder else [file]
        files.update(dict.fromkeys(one for one in [file, *beside] if one.is_file()))
    return list(files)[:_MOST_FILES]


def _file(folder: Path, component: Any) -> Path | None:
    """The file of a component such as ``app.server:app``; None where that is no name of a module."""
    module = str(component).partition(":")[0]
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", module):
        return None
    return folder.joinpath(*module.split(".")).with_suffix(".py")


# Code.


def _read_code(files: Mapping[Path, str], config: Mapping[str, Any] | None, source: Source) -> None:
    """Adds what the files of an app say."""
    codes: dict[Path, Code] = {}
    for path, text in files.items():
        with _as_python(path), warnings.catch_warnings(action="ignore"):  # of what the file's authors wrote
            codes[path] = Code(ast.parse(text), config)
    own = {name for code in codes.values() for name in code.classes}
    engines = _engines(codes.values())
    starts: list[Any] = []
    for path, code in codes.items():
        with _as_python(path):
            for name, module, call in code.calls:
                starts += _rounds(name, call, code)
                if module is not None and not (module and name in own and not _is_of(module, name)):
                    _note_call(name, module, call, code, engines, source, f"{path}, line {call.lineno}")
                    check_number(source)
    _note_rounds(starts, source)
    names = {name for code in codes.values() for name in code.names()}
    source.facts["secure_sum"] = bool(names & {"SecAggPlusWorkflow", "SecAggWorkflow"})
    for one in source.found:
        if mod := _MODS.get(one.filter.name.rpartition(":")[2]):
            source.facts["clients_clip"] = mod in names


@contextmanager
def _as_python(path: Path) -> Iterator[None]:
    """Tells of errors in a file that is read as Python."""
    try:
        yield
    except (ValueError, RecursionError, MemoryError, SyntaxError) as error:
        raise UsageError(f"{path}: cannot be read as Python ({in_a_line(error)}); fix the file") from None


def _is_of(module: str, name: str) -> bool:
    """Return whether a module belongs to the package of the filter of this name."""
    found = find_filter(name)
    return found is not None and module.partition(".")[0] == _package(found.name)


def _rounds(name: str, call: ast.Call, code: Code) -> Iterator[Any]:
    """The rounds that a call starts, None where they are no literal; nothing where it starts none."""
    settings = {"ServerConfig": ("num_rounds",), "start": ("grid", "initial_arrays", "num_rounds")}.get(name)
    if settings is None or (name == "start" and not {word.arg for word in call.keywords} & set(settings)):
        return
    known, unsaid = code.arguments(call, dict.fromkeys(settings))
    default = 1 if name == "ServerConfig" else 3  # flwr 1.42.0
    yield None if "num_rounds" in unsaid else known.get("num_rounds", default)


def _note_rounds(starts: list[Any], source: Source) -> None:
    found = set(map(repr, starts))
    if len(found) == 1 and is_whole(starts[0]):
        source.facts["rounds"] = starts[0]
        source.keys["rounds"] = f"{source.name}: num_rounds of the code"
    elif found and "rounds" not in source.facts:
        source.unsettled["rounds"] = "the job has 1 round: the code has no one number for it; add --rounds"
    elif found:
        source.unsettled["rounds"] = f"the job has {source.facts['rounds']} rounds, as num-server-rounds says"


@dataclass(frozen=True)
class _Engines:
    """Statements of all calls of ``PrivacyEngine``: their accountants, whether one is not stated, and whether all are
    secure.

    Attributes:
        own: the files that define a class of this name.
    """

    kinds: frozenset[str]
    unsaid: bool
    secure: bool
    own: tuple[Code, ...]


def _engines(codes: Iterable[Code]) -> _Engines:
    made = [(code, module, call) for code in codes for name, module, call in code.calls if name == "PrivacyEngine"]
    said = [code.arguments(call, {"accountant": None, "secure_mode": None}) for code, _, call in made]
    kinds = {str(known.get("accountant", unsaid.get("accountant", "prv"))) for known, unsaid in said}
    secure = bool(said) and all(known.get("secure_mode") is True for known, _ in said)
    own = dict.fromkeys(code for code, module, _ in made if module is None)
    return _Engines(frozenset(kinds), any("accountant" in unsaid for _, unsaid in said), secure, tuple(own))


def _note_call(
    name: str, module: str, call: ast.Call, code: Code, engines: _Engines, source: Source, where: str
) -> None:
    found = find_filter(name)
    if name == "PrivacyEngine" or found is None or name not in found.aliases or found.name == "flower:SecAggPlus":
        return
    one = Found(found, {}, where)
    if module and not _is_of(module, name):
        one.ifs.append(f"{name} of {module} does what {name} of {_package(found.name)} does")
    if found.name.startswith("nvflare:"):
        one.ifs.append("the job lets it filter what train returns, at the clients")
    if found.name == "opacus:PrivacyEngine":
        if code in engines.own:
            return  # of an engine that the file defines
        if call.args:
            raise UsageError(f"{where}: {name} takes its arguments by name; name them")
    extra = _WITH_EPSILON if name == "make_private_with_epsilon" else ()
    hidden = _NOT_IN_CALLS.get(found.name, ())
    settings = dict.fromkeys([*(key for key in found.settings if key not in hidden), *extra])
    known, unsaid = code.arguments(call, settings)
    if not isinstance(found.settings, _ANYTHING):
        new = [key for key in [*known, *unsaid] if key not in settings]
        one.ifs += [f"{key}, which is not known here, changes nothing" for key in new]
        one.arguments = {key: value for key, value in known.items() if key in found.settings}
        one.open = {key: text for key, text in unsaid.items() if key in found.settings}
    if "accountant" in one.open and "accountant" in settings:
        _note_accountant(one, call, code)
    if extra:
        _note_target(one, known, unsaid, where)
    if found.name == "opacus:PrivacyEngine":
        one.open.pop("max_grad_norm", None)  # no epsilon depends on it
        _note_engine(one, call, code, engines)
    if "strategy" in settings:
        _note_strategy(one, call, code)
    source.found.append(one)


#: Settings that have every name.
_ANYTHING = type(FILTERS["paper:LoRA"].settings)


def _note_accountant(one: Found, call: ast.Call, code: Code) -> None:
    """Adds the settings of the PrivacyConfig of a strategy's accountant, where they are literals."""
    node = next((word.value for word in call.keywords if word.arg == "accountant"), None)
    for name, inside in (("RdpAccountant", "config"), ("PrivacyConfig", "")):
        node = code.followed(node)
        if not isinstance(node, ast.Call) or code.name_of(node.func) != name:
            return
        if name == "PrivacyConfig":
            known, unsaid = code.arguments(node, dict.fromkeys(_CONFIG))
            if "target_delta" not in unsaid:
                one.arguments["accountant"] = known
                del one.open["accountant"]
            return
        node = next((word.value for word in node.keywords if word.arg == inside), *node.args[:1] or [None])


def _note_target(one: Found, known: Mapping[str, Any], unsaid: Mapping[str, str], where: str) -> None:
    """Adds what ``make_private_with_epsilon`` asks for."""
    for name in _WITH_EPSILON:
        value, kind = known.get(name), int if name == "epochs" else int | float
        if isinstance(value, bool) or not isinstance(value, kind) or not value > 0:
            said, whole = unsaid.get(name, value), "whole " * (name == "epochs")
            raise UsageError(
                f"{where}: {name} = {said} is no literal {whole}number above 0; write it, or ask about "
                "opacus:PrivacyEngine with --arg noise_multiplier=VALUE"
            )
    one.target = (known["target_epsilon"], known["target_delta"])
    one.facts["delta"] = known["target_delta"]
    one.facts["local_epochs"] = known["epochs"]
    one.unsettled["local_epochs"] = f"a round trains {known['epochs']} epochs"


def _note_engine(one: Found, call: ast.Call, code: Code, engines: _Engines) -> None:
    """Adds the accountant of the engine, and whether one engine lives through all rounds."""
    if not engines.kinds:
        one.unsettled["accountant"] = "the engine, which is made elsewhere, has the accountant prv"
    elif len(engines.kinds) > 1 or engines.unsaid:
        one.open["accountant"] = " or ".join(sorted(engines.kinds))
    else:
        one.arguments["accountant"] = min(engines.kinds)
    one.arguments["secure_mode"] = engines.secure
    maker = _maker(call, code)
    one.arguments["engine"] = "kept" if maker in (None, "", "__init__") else "per-round"
    if maker == "__init__":
        one.unsettled["engine"] = "one client object lives through all rounds, which client_fn does not do"
    elif maker == "":
        one.unsettled["engine"] = "one engine lives through all rounds"


def _maker(call: ast.Call, code: Code) -> str | None:
    """The function that makes the model private, if it makes the engine too; else empty, and None outside of any."""
    for node in ast.walk(code.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = list(ast.walk(node))
            if call in inside:
                makes = any(isinstance(one, ast.Call) and code.name_of(one.func) == "PrivacyEngine" for one in inside)
                return node.name if makes else ""
    return None


# Strategies.


def _note_strategy(one: Found, call: ast.Call, code: Code) -> None:
    """Adds the strategy that a wrapper wraps, and how many clients it draws, where the code says so."""
    first = call.args[0] if call.args and not isinstance(call.args[0], ast.Starred) else None
    wrapped = next((word.value for word in call.keywords if word.arg == "strategy"), first)
    node = code.followed(wrapped, without=call)
    one.arguments.pop("strategy", None)
    module = code.origin(node.func) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or module is None or module.partition(".")[0] not in ("", "flwr"):
        return
    name = one.facts["server_optimizer"] = code.name_of(node.func)
    one.drawn = _drawn(node, code) if name in _STRATEGIES else None


_SHARES, _LEAST = ("fraction_train", "fraction_fit"), ("min_train_nodes", "min_fit_clients")


def _drawn(strategy: ast.Call, code: Code) -> tuple[float, int] | None:
    """The share of clients that Flower draws, and the least number; None where one of them is no literal."""
    known, unsaid = code.arguments(strategy, dict.fromkeys((*_SHARES, *_LEAST)))
    if strategy.args or unsaid.keys() & {*_SHARES, *_LEAST}:
        return None
    part = next((known[name] for name in _SHARES if name in known), 1.0)
    least = next((known[name] for name in _LEAST if name in known), 2)
    if isinstance(part, bool) or not isinstance(part, int | float) or not 0 <= part <= 1:
        return None
    return (part, least) if is_whole(least) else None


# --------------------------------------------------------------------------------------
# Which versions of a package a project asks for, and whether they lie below one that fixed a filter.


@dataclass
class Asked:
    """Requirements that dependencies set for one package.

    Attributes:
        ranges: one for each line that names it; None for one that is no range, such as an address.
    """

    text: str
    ranges: list[SpecifierSet | None] = field(default_factory=list)

    @property
    def pinned(self) -> str | None:
        """The one version that every line names; None where there is none."""
        found = {str(one).removeprefix("==") for one in self.ranges}
        text = found.pop() if len(found) == 1 else ""
        return None if not text or set("*<>=~!,") & set(text) else _short(text)

    def below(self, since: str) -> tuple[bool, str | None]:
        """Return whether an older version may be installed, and one of the older ones if no other may be."""
        limit, newer, older = Version(since), False, []
        for one in self.ranges:
            try:
                admitted = [] if one is None else [v for v in _candidates(one, limit) if one.contains(v, True)]
            except InvalidVersion:  # of a comparison by letters
                admitted = []
            newer |= not admitted or any(version >= limit for version in admitted)
            older += [version for version in admitted if version < limit] if admitted else [Version("0")]
        return bool(older), None if newer or not older else _short(str(max(older)))


def asked_of(package: str, dependencies: Iterable[str], poetry: object = None) -> Asked | None:
    """Return what lines of dependencies ask of a package, without markers and extras; None where none names it.

    Args:
        poetry: the package's version in Poetry's table of dependencies, where it has one.
    """
    found = Asked(package)
    for line in dependencies:
        try:
            required = Requirement(line)
        except InvalidRequirement:
            continue
        if canonicalize_name(required.name) == canonicalize_name(package):
            found.ranges.append(None if required.url else required.specifier)
    if poetry is not None:
        found.ranges.append(_poetry(poetry))
    if not found.ranges:
        return None
    found.text = " or ".join(dict.fromkeys(f"{package} {'' if one is None else one}".strip() for one in found.ranges))
    return found


def _poetry(said: object) -> SpecifierSet | None:
    text = said.get("version") if isinstance(said, dict) else said
    if not isinstance(text, str):
        return None
    try:
        if text[:1] in "^~" and text[1:2] != "=":
            low = Version(text.lstrip("^~"))
            above = f"{low.major + 1}" if text[0] == "^" and low.major else f"{low.major}.{low.minor + 1}"
            return SpecifierSet(f">={low},<{above}")
        return SpecifierSet(f"=={text}" if text[:1].isdigit() else text.replace("*", ""))
    except (InvalidSpecifier, InvalidVersion):
        return None


def _candidates(asked: SpecifierSet, limit: Version) -> list[Version]:
    """Versions among which one is admitted on each side of the limit, if any is: the ends of ranges and beside them."""
    ends = [limit, *(Version(one.version.removesuffix(".*")) for one in asked)]
    beside = [Version(f"{end.base_version}.0.0.1") for end in ends]
    return [Version("0"), Version("9999"), *ends, *beside, *(_before(end) for end in ends)]


def _before(version: Version) -> Version:
    release = list(version.release)
    while release and release[-1] == 0:
        release.pop()
    return Version(".".join(map(str, [*release[:-1], release[-1] - 1, 9999]))) if release else Version("0")


def _short(text: str) -> str | None:
    """A version without epoch and local parts."""
    try:
        version = Version(text)
    except InvalidVersion:
        return None
    return ".".join(map(str, version.release)) + "".join(map(str, version.pre or ()))
