"""``harness claims``: what filters of frameworks claim, beside what is proven of them."""

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from harness.base.errors import UsageError, in_a_row
from harness.base.presence import percent_up
from harness.cli.app import DONE, MISTAKE, REGRESSION, app, print_json
from harness.cli.grouping import Grouped
from harness.cli.options import JsonOption, with_output
from harness.cli.sketch import among

Row = dict[str, Any]
_ANY = "any"  # relation, of a row that has no number in either
_COLUMNS = ("defense", "acts", "unit", "relation", "view", "claimed", "proven", "over", "why")


def _among(*allowed: str) -> Callable[[typer.CallbackParam, str | None], str | None]:
    """Return what lets an option through where it is one of these."""

    def checked(param: typer.CallbackParam, value: str | None) -> str | None:
        if value is not None and value not in allowed:
            raise UsageError(f"unknown {param.opts[0]} {value!r}; choose {', '.join(allowed)}")
        return value

    return checked


_WORDS = {
    "unit": ("client", "example"), "relation": ("replace", "zero-out", "add-remove"),
    "optimizer": ("sgd", "momentum", "adam"), "buffers": ("none", "float", "int"), "fail_on": ("claim", "none"),
}  # fmt: skip


def _word(name: str, about: str) -> Any:
    """An option that is one of the words of its name."""
    return typer.Option(callback=_among(*_WORDS[name]), autocompletion=among(_WORDS[name]), help=about)


_Sources = Annotated[
    list[str] | None,
    typer.Argument(help="Configurations (.toml, .py, .json, .conf, .yaml), or names such as flower:LocalDpMod."),
]
_Defense = Annotated[
    list[str] | None, typer.Option(help="A filter, such as flower:LocalDpMod; repeated.", autocompletion=among(()))
]
_Arg = Annotated[
    list[str] | None, typer.Option("--arg", "--defense-arg", help="key=value, an argument of the filter; repeated.")
]
_Weights = Annotated[str | None, typer.Option(help="Clients' weights in the mean: equal, private or public:100,200.")]
_Model = Annotated[
    str | None,
    typer.Option(help="Model that sets the size of an update, such as resnet18 or lenet.", autocompletion=among(())),
]
_FailOn = Annotated[str, _word("fail_on", "claim: exit code 1 if a claim is exceeded or has no proof. none: never.")]


@app.command("claims", cls=Grouped)
@with_output
def claims_command(
    sources: _Sources = None,
    defense: _Defense = None,
    arg: _Arg = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds (from the source, else 1).")] = None,
    clients: Annotated[int | None, typer.Option(help="Clients of the federation.")] = None,
    per_round: Annotated[int | None, typer.Option(help="Clients that take part in a round.")] = None,
    participations: Annotated[int | None, typer.Option(help="Rounds that one client takes part in (all).")] = None,
    weights: _Weights = None,
    examples: Annotated[int | None, typer.Option(help="Examples of one client.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Batch size of a client.")] = None,
    local_epochs: Annotated[int | None, typer.Option(help="Local epochs per round (1).")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Local steps per round, instead of epochs.")] = None,
    drop_last: Annotated[bool, typer.Option("--drop-last", help="The loader drops a smaller last batch.")] = False,
    optimizer: Annotated[str | None, _word("optimizer", "Of clients: sgd, momentum or adam.")] = None,
    server_optimizer: Annotated[str | None, typer.Option(help="FedAvg, FedAdam, FedYogi, FedAvgM, ...")] = None,
    model: _Model = None,
    parameters: Annotated[int | None, typer.Option(help="Number of values in an update, with buffers.")] = None,
    scalars: Annotated[int | None, typer.Option(help="Number of 0-dimensional arrays in an update.")] = None,
    buffers: Annotated[str | None, _word("buffers", "Buffers of the model: none, float or int.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta, in (0, 1) (from the source, else 1e-5).")] = None,
    unit: Annotated[str | None, _word("unit", "Show client or example; both by default.")] = None,
    relation: Annotated[str | None, _word("relation", "Show replace, zero-out or add-remove; all by default.")] = None,
    framework_version: Annotated[
        str | None, typer.Option(help="Version, such as 2.7.2; the newest known by default.")
    ] = None,
    fail_on: _FailOn = "claim",
    as_json: JsonOption = False,
) -> int:
    """Print what filters of Flower, NVFlare, Opacus and others claim, beside the epsilon that is proven.

    Configurations are read and never run. Without a source it lists the filters that it knows.
    """
    given = {
        "rounds": rounds, "clients": clients, "per_round": per_round, "participations": participations,
        "weights": _weights(weights), "examples": examples, "batch_size": batch_size, "local_epochs": local_epochs,
        "local_steps": local_steps, "drop_last": drop_last or None, "optimizer": optimizer,
        "server_optimizer": server_optimizer, "numbers": parameters, "scalars": scalars, "buffers": buffers,
        "delta": delta, "version": framework_version,
    }  # fmt: skip
    from harness.claims.asked import answered, facts_of

    facts = facts_of(given, model)
    if not (names := [*(sources or []), *(defense or [])]):
        return _known(as_json, bool(facts or arg))
    rows, unknown = answered(names, _assigned(arg or []), facts)
    _print(_chosen(rows, unit, relation), unknown, as_json)
    failed = fail_on == "claim" and any(row["holds"] is False for row in rows)
    return MISTAKE if unknown else REGRESSION if failed else DONE


def _chosen(rows: list[Row], unit: str | None, relation: str | None) -> list[Row]:
    """The rows of that unit and relation; one without a relation is of any.

    Raises:
        UsageError: there are none.
    """
    shown = [
        row for row in rows
        if unit in (None, row["unit"]) and (relation in (None, row["adjacency"]) or row["adjacency"] is None)
    ]  # fmt: skip
    if rows and not shown:
        there = ", ".join(dict.fromkeys(f"{row['unit']} {row['adjacency'] or _ANY}" for row in rows))
        asked = " ".join(f"--{name} {value}" for name, value in (("unit", unit), ("relation", relation)) if value)
        raise UsageError(f"no row for {asked}; there are rows for: {there}")
    return shown


_TELLS = (
    "acts: s2 on a local step, s1 on the sent update, s0 at the server; d: delta; mu: exact (Gaussian DP); TPR: the "
    "most that any membership inference attack reaches at 1% false positives"
)


def _print(rows: list[Row], unknown: list[str], as_json: bool) -> None:
    """The rows, and the classes that nothing is known of."""
    if as_json:
        print_json({"rows": rows, "not_known": unknown})
        return
    from harness.cli.console import keep, room

    absent = [f"not known: {name}; harness claims lists the filters that are" for name in unknown]
    below = [*absent, *([_TELLS] if any(row["told_apart"] is not None for row in rows) else [])]
    lines = [in_a_row(line) for line in (*(_table(rows) if rows else ()), *below)]
    most = room()
    if most is not None and any(len(line) > most for line in lines):
        parts = [in_a_row(line) for line in (*_paragraphs(rows), *below)]
        lines = [piece for line in parts for piece in _wrapped(line, most)]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    if rows:
        keep(("What is claimed and what is proven", list(_COLUMNS), [False] * len(_COLUMNS),
              [list(_cells(row)) for row in rows]))  # fmt: skip
    for line in (*(line.strip() for row in _groups(rows) for line in row[1]), *below):
        keep(line)


def _wrapped(line: str, most: int) -> list[str]:
    """A line within ``most`` characters; what goes on is indented further."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, max(most, 20), subsequent_indent=indent, break_on_hyphens=False)


def _groups(rows: list[Row]) -> Iterator[tuple[list[Row], list[str]]]:
    """The rows filter by filter, each with the lines that must be known to read them."""
    group: list[Row] = []
    for place, row in enumerate(rows):
        group.append(row)
        following = rows[place + 1] if place + 1 < len(rows) else None
        if following is None or (following["source"], following["defense"]) != (row["source"], row["defense"]):
            ifs = dict.fromkeys(one for each in group for one in each["conditions"]["unknown"])
            yield group, [
                *(f"  does not hold: {one}" for one in row["conditions"]["fails"]), *(f"  if: {one}" for one in ifs),
                *(f"  warning: {one}" for one in row["warnings"]), *(f"  note: {one}" for one in row["remarks"]),
                f"  of: {row['source']}; {row['version']}",
            ]  # fmt: skip
            group = []


def _table(rows: list[Row]) -> Iterator[str]:
    """The rows as text, filter by filter, below each what must be known to read it."""
    cells = [_COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(_COLUMNS) - 1)]
    yield _joined(cells[0], widths)
    for group, below in _groups(rows):
        yield from (_joined(_cells(row), widths) for row in group)
        yield from below


def _paragraphs(rows: list[Row]) -> Iterator[str]:
    """Yield the rows as text for a narrow terminal: a paragraph for each row, and below each filter what must be known
    to read it."""
    for group, below in _groups(rows):
        for row in group:
            defense, acts, unit, relation, view, claimed, proven, over, why = _cells(row)
            yield f"{defense} ({acts}), unit {unit}, {relation}, view {view}"
            yield f"    claimed {claimed}; proven {proven}; over {over}"
            yield f"    {why}"
        yield from below


def _joined(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)), cells[-1]])


def _cells(row: Row) -> tuple[str, ...]:
    claimed = "-" if row["claimed_epsilon"] is None else f"{_number(row['claimed_epsilon'])}{_at(row['claimed_delta'])}"
    if row["epsilon"] is not None:
        mu = "" if row["mu"] is None else f", mu {row['mu']:.4g}"
        proven = f"{_number(row['epsilon'])} (d {row['delta']:g}{mu}, TPR <= {percent_up(row['told_apart'])})"
    else:
        proven = "none" if row["would_be"] is None else f"none (would be {_number(row['would_be'])})"
    verdict = {True: "claim holds; ", False: "claim not proven; " if row["epsilon"] is None else "claim exceeded; "}
    over = "1 round" if row["rounds"] == 1 else f"{row['rounds']} rounds"
    at_claim = row["epsilon_at_claimed_delta"]
    at = ""
    if at_claim is not None and row["claimed_delta"] not in (None, row["delta"]):
        at = f"{_number(at_claim)} at the claim's delta; "
    lost = row["delta_at_claimed_epsilon"]
    spent = "" if lost is None else f"delta {lost:.5g} at the claim's epsilon; "
    why = f"{verdict.get(row['holds'], '')}{at}{spent}{row['notes']}"
    return (row["defense"], row["acts"], row["unit"], row["adjacency"] or _ANY, row["view"], claimed, proven, over, why)


def _number(value: float) -> str:
    return f"{value:.6g}"


def _at(delta: float | None) -> str:
    return "" if delta is None else f" (d {delta:g})"


def _known(as_json: bool, asked: bool) -> int:
    """Print the filters that are known.

    Raises:
        UsageError: something was ``asked`` beside, of none of them.
    """
    from harness.claims.filters import FILTERS

    if asked:
        raise UsageError("nothing to ask about; name a file, or a filter such as flower:LocalDpMod")

    told = ("name", "acts", "does", "claims", "works", "source", "ran")
    rows = [{name: getattr(one, name) for name in told} for one in FILTERS.values()]
    if as_json:
        print_json({"filters": rows})
        return DONE
    width = max(len(row["name"]) for row in rows)
    for one, row in zip(FILTERS.values(), rows, strict=True):
        settings = ", ".join(one.settings)
        sys.stdout.write(f"{row['name'].ljust(width)}  {row['does']}{f' ({settings})' if settings else ''}\n")
    return DONE


def _assigned(pairs: list[str]) -> dict[str, Any]:
    """Arguments as they were typed: JSON where it is, else text."""
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--arg {pair!r} is no key=value; write for example --arg epsilon=8")
        if (name := name.replace("-", "_")) in found:
            raise UsageError(f"--arg {name}=... is given twice; keep the one that counts")
        try:
            found[name] = json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
        except (ValueError, RecursionError):
            short = re.fullmatch(r"[-+]?(\d+\.|\d*\.\d+)([eE][-+]?\d+)?", text)  # .5 and 5., which JSON has not
            found[name] = float(text) if short else text
    return found


def _weights(text: str | None) -> str | tuple[float, ...] | None:
    if text is None or text in ("equal", "private"):
        return text
    kind, _, numbers = text.partition(":")
    try:
        if kind != "public":
            raise ValueError
        return tuple(float(one) for one in numbers.split(","))
    except ValueError:
        raise UsageError(f"unknown --weights {text!r}; write equal, private or public:100,200") from None
