"""``harness bench``: speed and memory, always as ratios measured side by side in one run."""

from typing import Annotated

import typer

from harness.base.devices import choose_device
from harness.base.errors import UsageError
from harness.base.limits import require_memory
from harness.base.progress import counted
from harness.bench.engines import bench_network
from harness.bench.measurements import bench_attack, bench_secagg, table
from harness.cli.app import DONE, app, print_json
from harness.cli.options import ChunkOption, DataRootOption, DeviceOption, JsonOption, numbers, split_lists
from harness.cli.sketch import Listed
from harness.datasets import DATASETS
from harness.datasets import data_root as find_data_root
from harness.training.costs import bench_train

bench_app = typer.Typer(cls=Listed, no_args_is_help=True, rich_markup_mode=None, help="Measure speed and memory.")
app.add_typer(bench_app, name="bench")


_Dataset = Annotated[
    list[str] | None, typer.Option(help="Comma-separated (mnist-sample,cifar10-sample; with --model the latter).")
]
_Model = Annotated[
    str | None, typer.Option(help="Time an iteration on this network instead: engine, plain loop, arithmetic.")
]
_BatchSize = Annotated[
    int | None, typer.Option(min=1, help="With --model: images per victim (1; 4 under BatchNorm in training mode).")
]
_Growth = Annotated[
    int, typer.Option(min=0, max=1024, help="Also time 1, 4, 16 ... victims, up to this number; not with --model.")
]
_Minutes = Annotated[
    float,
    typer.Option(min=0.1, max=10_000, help="Time limit for all datasets; the rest is left out. Not with --model."),
]
_Jobs = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Parallel processes for the victims (as many as evaluate uses).")
]


@bench_app.command("attack")
def attack_command(
    dataset: _Dataset = None,
    model: _Model = None,
    attack: Annotated[str | None, typer.Option(help="Which attack (cpl; with --model inverting_gradients).")] = None,
    victims: Annotated[int | None, typer.Option(min=1, help="Victims for both engines (64; with --model 2).")] = None,
    batch_size: _BatchSize = None,
    iterations: Annotated[int, typer.Option(min=1, max=1_000_000, help="With --model: iterations in a turn.")] = 3,
    chunk: ChunkOption = 128,
    growth: _Growth = 16,
    minutes: _Minutes = 4.0,
    jobs: _Jobs = None,
    device: DeviceOption = "auto",
    data_root: DataRootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Victims per second of the batched and the sequential reference engine on the same victims.

    With --model, seconds per victim and iteration on that network, beside a plain autograd loop and what the
    convolutions and matrix products alone would take.
    """
    if model is None and batch_size is not None:
        raise UsageError("--batch-size is for the bench of a network; name one with --model, or leave it out")
    names = split_lists(dataset or (["cifar10-sample"] if model else ["mnist-sample", "cifar10-sample"]))
    where, root = choose_device(device), find_data_root(data_root)
    figures = (
        bench_attack(name, attack or "cpl", victims or 64, chunk, growth, 60 * minutes / len(names), where, root, jobs)
        if model is None
        else bench_network(
            name, model, attack or "inverting_gradients", victims or 2, batch_size, iterations, chunk, where, root, jobs
        )
        for name in counted(names, "dataset")
    )
    if as_json:
        print_json([dict(each) for each in figures])
        return DONE
    for each in figures:
        for name, value in each:
            print(f"{name:34} {value}", flush=True)
        print()
    return DONE


@bench_app.command("train")
def train_command(
    dataset: Annotated[str, typer.Option(help="Dataset whose train part the batches come from.")] = "mnist-sample",
    model: Annotated[str | None, typer.Option(help="cnn for images, mlp2 for tables by default.")] = None,
    clients: Annotated[list[str] | None, typer.Option(help="Comma-separated (1,10,100).")] = None,
    batch_size: Annotated[int, typer.Option(max=1_000_000, help="B, examples per local step.")] = 5,
    repeats: Annotated[
        int, typer.Option(max=1_000_000, help="Timed iterations at one client; fewer for more clients.")
    ] = 300,
    device: DeviceOption = "auto",
    data_root: DataRootOption = None,
    as_json: JsonOption = False,
) -> int:
    """One local iteration of K clients under each defense, beside a plain PyTorch loop and torch.func's gradients."""
    counts = numbers(clients or ["1,10,100"], "clients")
    if min(*counts, batch_size, repeats, 1) < 1:
        raise UsageError("--clients, --batch-size and --repeats must be at least 1")
    require_memory(4 * 784 * max(counts) * (batch_size + 50), "so many clients", "lower --clients or --batch-size")
    name = DATASETS.resolve(dataset)
    report = bench_train(name, model, counts, batch_size, repeats, choose_device(device), find_data_root(data_root))
    if as_json:
        print_json(report)
        return DONE
    for row in report.pop("rows"):
        for title, value in row.items():
            print(f"{title:34} {value}")
        print()
    for check in report.pop("checks"):
        verdict = "held" if check["held"] else "MISSED"
        print(f"{verdict}: {check['ratio']} at {check['clients']}: {check['measured']}, limit {check['limit']}")
    for title, value in report.items():
        print(f"{title:34} {value}")
    return DONE


@bench_app.command("secagg")
def secagg_command(
    clients: Annotated[list[str] | None, typer.Option(help="Comma-separated (10,20,50,100,200).")] = None,
    length: Annotated[int, typer.Option(min=1, max=10**9, help="Elements per vector.")] = 10_000,
    bits: Annotated[int, typer.Option(help="Of the ring, 1 to 64.")] = 32,
    dropped: Annotated[float, typer.Option(help="Share of clients that leave, half of them after masking.")] = 0.1,
    most_complete: Annotated[int, typer.Option(help="Largest number of clients for the complete graph.")] = 100,
    as_json: JsonOption = False,
) -> int:
    """Measure the cost of secure aggregation per client and round, for both graphs, beside a trusted server."""
    if not 0 <= dropped < 0.5:
        raise UsageError("--dropped must be at least 0 and below 0.5")
    counts = numbers(clients or ["10,20,50,100,200"], "clients")
    require_memory(3 * 8 * length * max(counts, default=0), "so many vectors", "lower --clients or --length")
    rows = bench_secagg(counts, length, bits, dropped, most_complete)
    print_json(rows) if as_json else print(table(rows))
    return DONE
