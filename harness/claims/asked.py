"""Questions about filters, and the rows that answer them: of the command, and of ``harness.claims(...)`` in Python."""

import difflib
import inspect
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from harness.base.building import require_known, typed
from harness.base.errors import UsageError
from harness.base.presence import FALSE_ALARMS, lax, told_apart
from harness.claims.answers import Answer, Facts, Filter, Line, Weights, network
from harness.claims.apps import read_app, read_project
from harness.claims.documents import Hocon, read_json, read_yaml
from harness.claims.filters import FILTERS, find_filter
from harness.claims.found import Found, Source, check_number, flat, in_a_line, listed, once, table
from harness.claims.registry import schedule_of, tag, unread, without_noise

Row = dict[str, Any]


@typed
def claims(
    sources: str | Path | list[str | Path] | tuple[str | Path, ...], *, arg: dict[str, Any] | None = None,
    model: str | None = None, rounds: int | None = None, clients: int | None = None, per_round: int | None = None,
    participations: int | None = None, weights: Weights | None = None, examples: int | None = None,
    batch_size: int | None = None, local_epochs: int | None = None, local_steps: int | None = None,
    drop_last: bool | None = None, optimizer: Literal["sgd", "momentum", "adam"] | None = None,
    server_optimizer: str | None = None, parameters: int | None = None, scalars: int | None = None,
    buffers: Literal["none", "float", "int"] | None = None, delta: float | None = None,
    framework_version: str | None = None, **unknown: Any,
) -> list[Row]:  # fmt: skip
    """Return what filters of frameworks claim, beside the epsilon that is proven.

    Args:
        sources: configurations, which are read and never run, or names such as ``flower:LocalDpMod``.
        arg: arguments of the filters by name.
        model: the size of an update by a name, such as ``resnet18``.
        weights: ``equal``, ``private`` or a tuple of numbers.

    The others are facts of the federation, as ``harness claims --help`` names them; ``delta`` is in (0, 1).

    Returns:
        The rows that ``harness claims --json`` prints: a dictionary for each filter, unit and relation.

    Raises:
        UsageError: an unknown filter or fact, a source that cannot be read, or numbers that no epsilon follows from.
    """
    require_known(unknown, inspect.signature(claims).parameters)
    given = {
        "rounds": rounds, "clients": clients, "per_round": per_round, "participations": participations,
        "weights": weights, "examples": examples, "batch_size": batch_size, "local_epochs": local_epochs,
        "local_steps": local_steps, "drop_last": drop_last or None, "optimizer": optimizer,
        "server_optimizer": server_optimizer, "numbers": parameters, "scalars": scalars, "buffers": buffers,
        "delta": delta, "version": framework_version,
    }  # fmt: skip
    named = [sources] if isinstance(sources, str | Path) else sources
    rows, absent = answered(list(map(str, named)), arg or {}, facts_of(given, model))
    if absent:
        raise UsageError(f"not known: {absent[0]}; harness claims lists the filters that are")
    return rows


def facts_of(given: dict[str, Any], model: str | None) -> dict[str, Any]:
    """Return what was given of the federation, and the size of an update by the model's name where no number says
    it."""
    sizes = {} if model is None else dict(zip(("numbers", "scalars"), network(model), strict=True))
    return {**sizes, **{name: value for name, value in given.items() if value is not None}}


def answered(sources: list[str], given: dict[str, Any], facts: dict[str, Any]) -> tuple[list[Row], list[str]]:
    """A row for each line of each filter of the sources, and the classes that nothing is known of."""
    Facts(**{"rounds": max(1, facts.get("participations", 1)), **facts})  # a mistake of the command line is no source's
    rows, unknown = [], []
    sources_read = [source_of(name) for name in dict.fromkeys(sources)]
    settings = {name for source in sources_read for found in source.found for name in given
                if name in found.filter.settings}  # fmt: skip
    if unused := next((name for name in given if name not in settings), None):
        raise UsageError(f"no filter of the sources has an argument {unused!r}; leave --arg {unused}=... out")
    for source in sources_read:
        unknown += [f"{one} ({source.name})" for one in source.unknown]
        for found in source.found:
            where = found.where or source.name
            arguments, known = found.filled(given), found.known(source, facts)
            try:
                answer = without_noise(found.filter, arguments, known) or found.filter.asked(arguments, known)
                answer.unknown += [one] if (one := unread(found.filter.name, known.version)) else []
            except UsageError as mistake:
                raise UsageError(f"{where}: {mistake}") from None
            except (ArithmeticError, ValueError, MemoryError) as mistake:
                raise UsageError(
                    f"{where}: no epsilon follows from these numbers ({mistake}); change the arguments"
                ) from None
            answer.warnings += _lax(answer, known)
            answer.unknown += [text for fact, text in source.unsettled.items() if fact not in facts]
            found.stated(answer, arguments, {**given, **facts})
            version = facts.get("version") or found.version
            rows += list(_rows(found.filter, answer, where, version, schedule_of(found.filter, arguments)))
    return rows, unknown


def _rows(one: Filter, answer: Answer, where: str, version: str | None, schedule: str) -> Iterator[Row]:
    """The fields of a statement for each line, and what else there is to know."""
    newest = f"newest known: {one.source}{'' if one.ran else ' (read, not run)'}"
    for line, proven in zip(answer.lines, answer.proven, strict=True):
        holds = not proven.exceeded if line.claimed is not None and line.judged else None
        epsilon = _finite(proven.epsilon)
        yield {
            "defense": one.name, "acts": one.acts, "view": line.view, "claimed_epsilon": _finite(line.claimed),
            "claimed_delta": line.claimed_delta, "epsilon": epsilon, "delta": line.delta, "unit": line.unit,
            "adjacency": None if line.epsilon is None else line.relation, "sampler": line.sampler,
            "conversion": None if epsilon is None else line.conversion, "schedule": schedule,
            "guarantee": "none" if epsilon is None else tag(line.unit, line.view), "notes": line.why,
            "rounds": line.rounds, "mu": line.mu, "holds": holds, "by_adjacency": _by_adjacency(line, answer),
            "epsilon_at_claimed_delta": _finite(_at_claim(proven)),
            "told_apart": None if epsilon is None else told_apart(
                FALSE_ALARMS, mu=line.mu, epsilon=epsilon, delta=line.delta
            ),
            "delta_at_claimed_epsilon": None if proven.epsilon is None else proven.delta_at_claim,
            "would_be": _finite(line.epsilon) if answer.fails else None,
            "conditions": {"fails": answer.fails, "unknown": [*answer.unknown, *line.ifs]}, "warnings": answer.warnings,
            "remarks": answer.notes, "source": where, "version": version or newest,
        }  # fmt: skip


def _lax(answer: Answer, facts: Facts) -> list[str]:
    """Return what is wrong with the deltas of what is proven."""
    counts = {"example": (facts.examples or 0) * (facts.clients or 1), "client": facts.clients}
    deltas = dict.fromkeys((line.delta, line.unit) for line in answer.proven if line.epsilon is not None)
    return [said for delta, unit in deltas if (said := lax(delta, unit, counts.get(unit)))]


def _by_adjacency(line: Line, answer: Answer) -> dict[str, float | None]:
    """Return what is proven for each relation of two neighbors, of the same view, unit, rounds and delta, and as far as
    it rests on Poisson samples, which another line does without."""
    return {one.relation: _finite(one.epsilon) for one in answer.proven if _same(one) == _same(line)}


def _same(line: Line) -> tuple[Any, ...]:
    return line.view, line.unit, line.rounds, line.delta, line.sampler == "poisson"


def _at_claim(line: Any) -> float | None:
    """Return what is proven at the claim's own delta; None where nothing is claimed or proven."""
    if line.claimed is None or line.epsilon is None:
        return None
    return line.epsilon if line.at_claim is None else line.at_claim


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


# --------------------------------------------------------------------------------------
# Configurations of frameworks, read and never run: which filters they name, with which arguments and facts.
#
# A value is taken where the file says it for certain; every other one has to be given, or is printed as "if".


_MOST_BYTES = 1 << 20


def source_of(name: str) -> Source:
    """A file, or a known filter by its name.

    Raises:
        UsageError: it is neither, or the file cannot be read.
    """
    if not name.strip():
        raise UsageError("a source is empty; name a file, or a filter such as flower:LocalDpMod")
    if not os.path.exists(name):
        if found := find_filter(name):
            return Source(name, [Found(found, {}, "")])
        if ":" in name:
            near = difflib.get_close_matches(name, FILTERS, 1, 0.8)
            meant = f"; did you mean {near[0]}?" if near else "; harness claims lists those that are known"
            raise UsageError(f"unknown filter {name!r}{meant}")
    return read_source(Path(name))


def read_source(path: Path) -> Source:
    """Return what a file says.

    Raises:
        UsageError: it cannot be read, is no configuration that is known here, or names no known filter.
    """
    text = _text(path)
    try:
        if path.suffix == ".toml":
            return _checked(read_project(path, text, _text))
        if path.suffix == ".py":
            return _checked(read_app(path, text, _text))
        if path.suffix in (".json", ".conf"):
            return _document(path, Hocon(text).document() if path.suffix == ".conf" else read_json(text))
        if path.suffix in (".yaml", ".yml"):
            return _document(path, read_yaml(text))
    except (ValueError, RecursionError, MemoryError, SyntaxError) as error:
        raise UsageError(f"{path}: cannot be read as {path.suffix[1:]} ({in_a_line(error)}); fix the file") from None
    except OSError as error:  # of a path that it names
        raise UsageError(
            f"{path}: a file that it names cannot be read ({error.strerror}); fix its name or the file"
        ) from None
    raise UsageError(f"{path}: no configuration of a known kind; give a .toml, .py, .json, .conf or .yaml file")


def _text(path: Path) -> str:
    try:
        if os.path.isdir(path):
            raise UsageError(f"{path}: a folder; give a file in it, such as its pyproject.toml")
        if not os.path.isfile(path):
            raise UsageError(f"{path}: neither a file nor a known filter; harness claims lists the filters")
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path}: larger than 1 MiB; give the configuration alone")
        return path.read_bytes().decode("utf-8-sig" if path.suffix == ".py" else "utf-8")  # as their readers do
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not text in UTF-8; save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a file that can be read") from None


def _checked(source: Source) -> Source:
    check_number(source)
    if not source.found and not source.unknown:
        raise UsageError(f"{source.name}: names no filter that is known here; harness claims lists them")
    return source


def _document(path: Path, document: Any) -> Source:
    """Return what a document of any format says: an accountant's state, a named filter, a platform's or NVFlare's
    file."""
    source = Source(str(path))
    if not isinstance(document, dict):
        raise UsageError(f"{path}: holds no object; give a configuration, an accountant's state or a named filter")
    if "history" in document:
        state = {"history": document["history"], "accountant": document.get("mechanism", "prv")}
        source.found.append(Found(FILTERS["opacus:PrivacyEngine"], state, str(path)))
    elif isinstance(document.get("defense"), str):
        if found := find_filter(document["defense"]):
            beside = {key: value for key, value in document.items() if key not in ("defense", "args")}
            if not isinstance(inside := document.get("args", {}), dict):
                raise UsageError(f"{path}: args {inside!r} must be an object of arguments; write one")
            arguments = once(iter([*beside.items(), *inside.items()]), str(path))
            source.found.append(Found(found, arguments, str(path)))
        else:
            source.unknown.append(document["defense"])
    elif not _platform(path, document, source):
        _filters_of(path, document, source)
        if not source.found and not source.unknown:
            raise UsageError(f"{path}: has no task_result_filters and no history; give the client's configuration")
    return _checked(source)


# FedML, APPFL, OpenFL.

#: Facts by the keys that FedML and APPFL have for them.
_FACTS_BY_KEY = {
    "comm_round": "rounds", "client_num_in_total": "clients", "client_num_per_round": "per_round",
    "batch_size": "batch_size", "epochs": "local_epochs", "num_global_epochs": "rounds",
    "num_local_steps": "local_steps", "num_local_epochs": "local_epochs", "train_batch_size": "batch_size",
    "num_clients": "clients",
}  # fmt: skip
#: The key that APPFL does not look at, by its mode of training.
_UNUSED = {"epoch": "num_local_steps", "step": "num_local_epochs"}
_OPTIMIZERS = ("client_optimizer", "optim", "momentum", "weight_decay")


def _platform(path: Path, document: dict[str, Any], source: Source) -> bool:
    """Adds the filters of FedML, APPFL or OpenFL; False where the document is of none of them."""
    pairs = [(key.rpartition(".")[2], value) for key, value in flat(document)]
    keys = {key for key, _ in pairs}
    names = [name for key, name in (("enable_dp", "fedml:dp"), ("use_dp", "appfl:dp")) if key in keys]
    private = table(document, "differential_privacy")
    if not names and {"noise_multiplier", "sample_rate"} <= private.keys():
        names, pairs = ["openfl:GlobalDP1", "openfl:GlobalDP2"], list(flat(private))
    read = {*_FACTS_BY_KEY, *_OPTIMIZERS, *(key for name in names for key in FILTERS[name].settings)}
    said = once(((key, value) for key, value in pairs if key in read), str(path)) if names else {}
    for name in names:
        known = {key: said[key] for key in FILTERS[name].settings if said.get(key) is not None}
        ifs = [f"the tutorial's implementation {name[-1]} runs"] if name.startswith("openfl") else []
        source.found.append(Found(FILTERS[name], known, f"{path}: {name.partition(':')[0]}", ifs=ifs))
    modes = {value for key, value in pairs if key == "mode" and isinstance(value, str)} & _UNUSED.keys()
    unused = _UNUSED[modes.pop()] if len(modes) == 1 else None
    for key, fact in _FACTS_BY_KEY.items():
        if (value := said.get(key)) is None or key == unused:
            continue
        if source.facts.setdefault(fact, value) != value:
            raise UsageError(f"{path}: {key} = {value} contradicts {source.facts[fact]} of another key; keep one")
        source.keys.setdefault(fact, f"{path}: {key}")
    if names:
        _note_optimizer(path, said, source)
    return bool(names)


def _note_optimizer(path: Path, said: Mapping[str, Any], source: Source) -> None:
    kind = said.get("client_optimizer", said.get("optim"))
    if kind is None:
        return
    if not isinstance(kind, str):
        raise UsageError(f"{path}: the optimizer must be a name, got {kind!r}; write for example SGD")
    source.facts["optimizer"] = kind.lower()
    for name in ("momentum", "weight_decay") if kind.lower() == "sgd" else ():
        if said.get(name, 0) not in (0, None, False):
            source.facts["optimizer"] = "momentum" if name == "momentum" else f"sgd with {name}"


# NVFlare.

Entry = tuple[dict[str, Any], Any]


def _filters_of(path: Path, document: dict[str, Any], source: Source) -> None:
    """Adds the filters of a client's configuration, or those of every scope of a site's privacy.json."""
    at_server = "workflows" in document or path.name.startswith("config_fed_server")
    for scope in listed(document.get("scopes")):
        name = str(scope.get("name")) if isinstance(scope, dict) else ""
        default = ", the default" if name == document.get("default_scope") else ""
        for entry, chain in _filter_entries(scope):
            _note_entry(entry, chain, source, f"{path}: scope {name}{default}", at_server)
    for entry, chain in _filter_entries({key: one for key, one in document.items() if key != "scopes"}):
        _note_entry(entry, chain, source, str(path), at_server)


def _filter_entries(value: Any, inside: bool = False, chain: Mapping[str, Any] | None = None) -> Iterator[Entry]:
    """Every filter that lists of filters name, but for those of what a client receives; and the chain it lies in."""
    if isinstance(value, dict):
        if (
            inside
            and isinstance(value.get("path", value.get("name", value.get("class_path"))), str)
            and not any(str(key).endswith("filters") for key in value)
        ):
            yield value, chain or {}
            return
        for key, one in value.items():
            if key != "task_data_filters":
                held = value if inside and str(key).endswith("filters") else chain
                yield from _filter_entries(one, inside or str(key).endswith("filters"), held)
    elif isinstance(value, list):
        for one in value:
            yield from _filter_entries(one, inside, chain)


def _note_entry(entry: Mapping[str, Any], chain: Any, source: Source, where: str, at_server: bool) -> None:
    name = str(entry.get("path", entry.get("name", entry.get("class_path"))))
    found = find_filter(name)
    if found is None or found.acts not in ("s1",):
        source.unknown.append(name)
        return
    if not isinstance(arguments := entry.get("args", {}), dict):
        raise UsageError(f"{where}: {name} has args {arguments!r}; write an object of arguments")
    one = Found(found, dict(arguments), f"{where}: {name}")
    if "." in name and not name.startswith("nvflare."):
        one.ifs.append(f"{name} does what the class of that name in NVFlare does")
    if at_server:
        one.fails.append("the filter acts at the server, which receives raw updates")
    _note_chain(one, chain)
    source.found.append(one)


#: Tasks of NVFlare's own workflows that are not training.
_OTHER_TASKS = ("validate", "submit_model", "get_weights", "share_config", "end_task")


def _note_chain(one: Found, chain: Mapping[str, Any]) -> None:
    """Adds of which tasks, and in which direction, a chain filters results: names of tasks count as they are."""
    direction = str(chain.get("direction", "out")).lower()
    if direction == "in":
        one.fails.append('direction "in" filters what comes in, and the update goes out')
    elif direction not in ("out", "inout"):
        raise UsageError(f"{one.where}: unknown direction {chain['direction']!r}; write in, out or inout")
    if "tasks" not in chain:
        return
    tasks = chain["tasks"]
    if not (isinstance(tasks, list) and tasks and all(isinstance(task, str) for task in tasks)):
        raise UsageError(f'{one.where}: tasks {tasks!r} is no list of names, as NVFlare demands; write ["train"]')
    if "train" in tasks:
        return
    said = ", ".join(tasks)
    if set(tasks) <= set(_OTHER_TASKS):
        one.fails.append(f"the filter acts on {said} alone: what train returns leaves as it is")
    else:
        one.ifs.append(f"clients train in {said} alone: what another task returns leaves as it is")
