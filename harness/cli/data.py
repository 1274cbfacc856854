"""``harness data``: which datasets are at hand, and how to get the others."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.app import DONE, app
from harness.cli.options import JsonOption
from harness.cli.sketch import Listed, named
from harness.datasets import data_root as find_data_root
from harness.datasets import dataset_status, fetch_dataset

data_app = typer.Typer(cls=Listed, no_args_is_help=True, rich_markup_mode=None, help="Show and fetch datasets.")
app.add_typer(data_app, name="data")

Root = Annotated[Path | None, typer.Option(help="Folder of datasets; else $HARNESS_DATA, else ~/.cache/harness.")]


@data_app.command("status")
def status(data_root: Root = None, as_json: JsonOption = False) -> int:
    """Show which datasets are available and where the others come from."""
    rows = dataset_status(find_data_root(data_root))
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1, default=str))
        return DONE
    for row in rows:
        print(f"{'yes' if row.available else 'no ':3}  {row.name:16} {row.origin if row.available else row.obtain}")
    return DONE


@data_app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="See harness data status.", autocompletion=named("datasets"))],
    data_root: Root = None,
) -> int:
    """Download a dataset into the data root; hf:NAME[@REVISION] is from the Hugging Face hub."""
    print(f"{fetch_dataset(name, find_data_root(data_root))} is ready")
    return DONE
