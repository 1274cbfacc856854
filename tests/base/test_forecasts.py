"""Work of minutes is told of in one line before it starts; other work begins in silence."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.audit import audit, audit_settings
from harness.base.limits import forecast
from harness.parallel.processes import Processes
from harness.privacy.account import account
from harness.training import TrainFolder, Training, TrainOptions, train, train_settings


@pytest.mark.parametrize(
    ("seconds", "told"), [(100, ""), (180, "about 3 minutes"), (20_000, "about 6 hours"), (10**6, "about 12 days")]
)
def test_a_line(seconds: float, told: str, caplog: pytest.LogCaptureFixture) -> None:
    forecast(seconds, "this")
    assert told in caplog.text and len(caplog.records) == bool(told)


class Begun(Exception):
    """What was forecast begins."""


def begin(*_: object, **__: object) -> None:
    raise Begun


def trained(folder: Path, local_steps: int, jobs: int = 1, clients: int = 2) -> None:
    small = {"dataset": "digits", "model": "logistic", "clients": clients, "clients_per_round": clients}
    settings = train_settings(**small, batch_size=2, examples=10, rounds=20, local_steps=local_steps, split="iid")
    parallel = Processes(jobs, 1, folder) if jobs > 1 else None
    train(settings, folder, TrainFolder(folder), TrainOptions(2, parallel=parallel))


LONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "training": (lambda folder: trained(folder, 500_000), "20 rounds of 500000 local steps takes at least 3 hours"),
    "chunks": (lambda folder: trained(folder, 500_000, 1, 16), "takes at least 22 hours on two cores"),
    "processes": (lambda folder: trained(folder, 500_000, 8, 16), "takes at least 3 hours on 8 cores"),
    "loss distribution": (
        lambda _: account(sigma=6, sampling_rate=0.01, steps=10_000_000), "accounting for 10000000 steps",
    ),
    "audit": (
        lambda folder: audit(audit_settings(defense="none", dataset="digits", rounds=200_000, steps=2), folder),
        "an audit of 200000 rounds of 2 steps",
    ),
    "schedule": (lambda _: account(sigma_schedule="linear", rounds=100_000), "accounting for 100000 sigmas"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "told"), LONG.values(), ids=LONG)
def test_long_work(
    call: Callable[[Path], object], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(Training, "play_round", begin)
    monkeypatch.setattr("harness.training.loop._train", begin)
    monkeypatch.setattr("harness.audit.run.make_canaries", begin)
    for name in ("_constant", "_cost"):
        monkeypatch.setattr(sys.modules["harness.privacy.account"], name, begin)
    with pytest.raises(Begun):
        call(tmp_path)
    assert told in caplog.text and len(caplog.records) == 1


def test_short_work_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path, 1)
    account(sigma=6, sampling_rate=0.01, steps=100)
    assert not caplog.records
