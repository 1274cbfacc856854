"""Options that come from settings: their names, defaults and help are the fields' own."""

from typing import Annotated, Literal

import pytest
import typer
from pydantic import BaseModel, Field
from typer.testing import CliRunner

from harness.cli.options import options_of
from harness.experiment import CellSettings
from harness.training import TrainSettings


class Settings(BaseModel):
    """One field of every kind."""

    clients: Annotated[int, Field(ge=1)] = Field(10, description="N.")
    rate: Annotated[float, Field(gt=0)] | None = Field(None, description="Of sampling.")
    kind: Literal["a", "b"] = Field("a", description="a or b.")
    distinct: bool = Field(False, description="No label twice.")
    batch_size: int = Field(1, description="Examples")


def run(arguments: str, **how: object) -> dict[str, object]:
    seen: dict[str, object] = {}
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @options_of(Settings, list(Settings.model_fields), **how)
    def command(out: str = "here", **chosen: object) -> int:
        seen.update(chosen, out=out)
        return 0

    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code == 0, result.output
    return seen or {"help": result.output}


def test_what_is_not_given_has_the_fields_default() -> None:
    assert run("") == {"clients": 10, "rate": None, "kind": "a", "distinct": False, "batch_size": 1, "out": "here"}
    given = run("--clients 3 --rate 0.5 --kind b --distinct --batch-size 2 --out there")
    assert given == {"clients": 3, "rate": 0.5, "kind": "b", "distinct": True, "batch_size": 2, "out": "there"}


def test_unset_options_tell_apart_what_was_given() -> None:
    found = run("--kind a", unset=True, several=["batch_size"])
    assert found == dict.fromkeys(Settings.model_fields) | {"kind": "a", "out": "here"}
    assert run("--batch-size 1,2 --batch-size 4", unset=True, several=["batch_size"])["batch_size"] == ["1,2", "4"]


def test_help_is_the_fields_description_and_default() -> None:
    shown = str(run("--help")["help"])
    assert all(words in shown for words in ("N.", "Of sampling.", "a or b.", "[default: 10]", "--distinct "))
    assert "Examples (1)" in str(run("--help", unset=True)["help"])


@pytest.mark.parametrize(("command", "settings"), [("evaluate", CellSettings), ("train", TrainSettings)])
def test_every_described_setting_is_an_option(command: str, settings: type[BaseModel]) -> None:
    from harness.cli.app import app

    group = typer.main.get_command(app)
    found = group.get_command(typer.Context(group), command)
    options = {one.name: one for one in found.params}
    described = {name: field for name, field in settings.model_fields.items() if field.description}
    assert described.keys() <= options.keys() and len(described) > 12
    assert all(options[name].help.startswith(field.description) for name, field in described.items())
