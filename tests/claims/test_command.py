"""The command: what it reads, what it refuses in a line, its exit codes, and that it runs and imports nothing else."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.claims.answers import EXACT, LEAST, LOSSES, NETWORKS, PURE, SAMPLES
from harness.privacy import Statement
from harness.privacy.views import GUARANTEES

Harness = Callable[..., Any]


@pytest.fixture(name="line")
def run_line(harness: Harness) -> Harness:
    """Runs a command that is one string."""
    return lambda text: harness(*text.split())


LOCAL = "claims flower:LocalDpMod --arg clipping_norm=1 --arg sensitivity=2 --arg epsilon={} --arg delta=1e-5"
OPACUS = "claims opacus:PrivacyEngine --arg noise_multiplier=1"
JOB = "--arg num_compositions=2000 --arg cohort_size=400 --arg population=1000000"
MEAN = (
    "claims flower:ServerSideFixedClipping --arg noise_multiplier=1 --arg clipping_norm=1 --arg num_sampled_clients=9"
)
BLT = "claims jax_privacy:BufferedToeplitz --arg noise_multiplier=7 --arg buf_decay=[0.9] --arg output_scale=[0.1] \
--rounds 1000"

TOML = """
[project]
dependencies = ["flwr[simulation]>=1.12.0"]
[tool.flwr.app.components]
serverapp = "app.server:app"
clientapp = "app.client:app"
[tool.flwr.app.config]
num-server-rounds = 3
noise-multiplier = 0.2
dp.clipping-norm = 10
num-sampled-clients = 20
[tool.flwr.federations.local-simulation]
options.num-supernodes = 100
"""
SERVER = """
raise SystemExit("nothing here may run")
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping as Private, FedAvg
def main(grid, context):
    cfg = context.run_config
    sampled = int(cfg["num-sampled-clients"])
    strategy = {strategy}(fraction_train=0.2, min_train_nodes=int(sampled * 0.2))
    strategy = Private(strategy, cfg.get("noise-multiplier", 9.0), num_sampled_clients=sampled,
                       clipping_norm=context.run_config.dp.clipping_norm)
"""
CLIENT = "from flwr.clientapp.mod import fixedclipping_mod\napp = ClientApp(mods=[{mod}])\n"
SVT = '{"task_result_filters": [{"tasks": ["train"], "filters": [{"path": "%s", "args": {}}]}]}'
CONF = """
{
  format_version = 2   # a comment
  share = 10
  task_result_filters = [
    { tasks = ["train"], filters = [
      { path = "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy"
        args { percentile = ${share}, gamma = 0.01 } } ] }
  ]
}
"""


def app(folder: Path, strategy: str = "FedAvg", mod: str = "fixedclipping_mod") -> Path:
    (folder / "app").mkdir()
    (folder / "pyproject.toml").write_text(TOML)
    (folder / "app" / "server.py").write_text(SERVER.format(strategy=strategy))
    (folder / "app" / "client.py").write_text(CLIENT.format(mod=mod))
    return folder / "pyproject.toml"


def rows(line: Harness, text: str) -> list[dict[str, Any]]:
    return json.loads(line(f"{text} --json").out)["rows"]


def proven(found: list[dict[str, Any]], relation: str, rounds: int) -> Any:
    return next(row["epsilon"] for row in found if (row["adjacency"], row["rounds"]) == (relation, rounds)
                and row["view"] != "server")  # fmt: skip


@pytest.mark.parametrize(("epsilon", "code"), [(8, 0), (10, 1)])
def test_a_claim_that_fails_ends_with_1(line: Harness, epsilon: int, code: int) -> None:
    text = LOCAL.format(epsilon)
    assert line(text).code == code
    assert line(f"{text} --fail-on none").code == 0


def test_a_name_may_be_given_as_evaluate_takes_it(line: Harness) -> None:
    other = LOCAL.replace("claims ", "claims --defense ").replace("--arg", "--defense-arg")
    assert line(other.format(8)).out == line(LOCAL.format(8)).out


def test_the_delta_that_is_lost_at_the_claims_epsilon_stands_beside_it(line: Harness) -> None:
    for epsilon, delta in ((8, 7.9706e-6), (10, 2.2654e-5)):
        first, *_ = rows(line, f"{LOCAL.format(epsilon)} --scalars 0")
        assert first["delta_at_claimed_epsilon"] == pytest.approx(delta, rel=1e-4)
        assert f"delta {delta:.5g} at the claim's epsilon" in line(LOCAL.format(epsilon)).out
    (unproven, *_) = rows(line, f"{LOCAL.format(8)} --scalars 1")
    assert unproven["delta_at_claimed_epsilon"] is None


def test_a_row_without_a_number_is_of_any_relation_and_a_source_counts_once(line: Harness) -> None:
    for relation in ("replace", "zero-out", "add-remove"):
        (row,) = rows(line, f"claims nvflare:PercentilePrivacy nvflare:PercentilePrivacy --relation {relation}")
        assert (row["adjacency"], row["epsilon"]) == (None, None)


@pytest.mark.parametrize(("text", "epsilon"), [(".5", 0.5), ("5.", 5.0), ("5e-1", 0.5), ("+.5e0", 0.5)])
def test_a_number_may_begin_or_end_with_its_point(line: Harness, text: str, epsilon: float) -> None:
    assert rows(line, LOCAL.format(text))[0]["claimed_epsilon"] == epsilon


def test_a_claim_that_holds_at_its_own_delta_holds_at_a_smaller_one_too(line: Harness) -> None:
    text = f"{LOCAL.format(8)} --scalars 0 --delta 1e-9"
    first, *_ = rows(line, text)
    assert (first["claimed_epsilon"], first["claimed_delta"], first["delta"], first["holds"]) == (8, 1e-5, 1e-9, True)
    assert first["epsilon_at_claimed_delta"] == pytest.approx(7.91437, rel=1e-4)
    finished = line(text)
    assert finished.code == 0 and "claim holds; 7.91437 at the claim's delta" in finished.out


def test_a_tutorials_claim_keeps_its_own_delta(line: Harness) -> None:
    text = "claims openfl:GlobalDP2 --rounds 10 --buffers none"
    wide, narrow = (rows(line, f"{text}{more}")[1] for more in ("", " --delta 1e-9"))
    assert (narrow["claimed_epsilon"], narrow["claimed_delta"]) == (wide["claimed_epsilon"], 1e-5)
    assert narrow["epsilon_at_claimed_delta"] == wide["epsilon"] < narrow["epsilon"] and narrow["holds"]


def test_an_if_of_some_rows_is_in_their_conditions_and_printed_once(line: Harness) -> None:
    text = "claims tff:gaussian_fixed --arg noise_multiplier=4 --arg clients_per_round=10 --clients 100"
    found = [(row["sampler"], row["conditions"]["unknown"]) for row in rows(line, text) if row["epsilon"] is not None]
    said = ["every client joins a round by an independent coin (Poisson samples)"]
    assert found == [("none", []), ("none", []), ("poisson", said), ("poisson", said)]
    assert line(text).out.count(f"  if: {said[0]}\n") == 1


#: a filter with arguments, and how each of its rows with a number is computed, by relation and rounds
CONVERSIONS = {
    f"{LOCAL.format(8)} --scalars 0": {EXACT},
    f"{MEAN} --clients 90 --per-round 9 --rounds 40 --weights equal": {EXACT, SAMPLES},
    f"{OPACUS} --examples 500 --batch-size 32": {LEAST},
    f"{OPACUS} --arg poisson_sampling=false --examples 500 --batch-size 32": {EXACT},
    "claims nvflare:SVTPrivacy --parameters 61706": {PURE, LOSSES},
    "claims tff:gaussian_fixed --arg noise_multiplier=4 --arg clients_per_round=10 --clients 100": {EXACT, LEAST},
    "claims appfl:dp --arg epsilon=1 --arg clip_grad=true --local-steps 1 --buffers none": {PURE},
    "claims openfl:GlobalDP2": {LEAST},
    "claims jax_privacy:BandedToeplitz --arg noise_multiplier=4 --rounds 9": {EXACT},
    "claims paper:CENSOR": set(),
}  # fmt: skip


@pytest.mark.parametrize("text", CONVERSIONS)
def test_a_row_of_json_is_a_statement(line: Harness, text: str) -> None:
    """A conversion and a tag stand beside a number, and beside no number that is not proven."""
    found = rows(line, text)
    fields = {one.name for one in dataclasses.fields(Statement)} - {"covers"}  # of a tap, which there is none of
    for row in found:
        assert fields <= set(row)
        assert (row["epsilon"] is None) == (row["conversion"] is None) == (row["guarantee"] == "none")
        assert (row["conversion"] == EXACT) == (row["mu"] is not None)
        # What counts samples says so: no statement that does covers several looks at one record.
        assert row["conversion"] != EXACT or row["sampler"] == "none"
        assert (row["conversion"] == SAMPLES) == (row["sampler"] == "without-replacement")
        assert row["epsilon"] is None or row["by_adjacency"].keys() > {"replace"}
        assert row["guarantee"] in GUARANTEES and row["schedule"].startswith("harness " + text.split(" --")[0])
    assert {row["conversion"] for row in found if row["epsilon"] is not None} == CONVERSIONS[text]


def test_both_relations_stand_in_every_row_that_has_a_number(line: Harness) -> None:
    text = f"{LOCAL.format(8)} --scalars 0 --relation zero-out"
    (row,) = rows(line, text)
    assert (row["adjacency"], row["guarantee"]) == ("zero-out", "client-LDP")
    assert row["by_adjacency"] == {"replace": pytest.approx(7.91437, rel=1e-4), "zero-out": row["epsilon"]}
    said = "harness claims flower:LocalDpMod (clipping_norm=1, sensitivity=2, epsilon=8, delta=1e-05)"
    assert row["schedule"] == said
    (unproven,) = rows(line, f"{LOCAL.format(8)} --scalars 1 --relation zero-out")
    assert unproven["by_adjacency"] == {"replace": None, "zero-out": None} and unproven["guarantee"] == "none"


def test_an_unmet_condition_takes_the_number_away(line: Harness) -> None:
    (first, *_) = rows(line, f"{LOCAL.format(8)} --model resnet18")
    assert (first["epsilon"], first["holds"]) == (None, False) and first["would_be"] == pytest.approx(7.91437, rel=1e-4)
    assert "20 0-d arrays" in first["conditions"]["fails"][0]
    finished = line(f"{LOCAL.format(8)} --model resnet18")
    assert finished.code == 1 and "none (would be 7.91437)" in finished.out and "does not hold: 20" in finished.out
    assert "if: the model has no 0-d arrays" in line(LOCAL.format(8)).out


def test_a_flower_app_is_read_and_not_run(line: Harness, tmp_path: Path) -> None:
    text = f"claims {app(tmp_path)}"
    assert proven(rows(line, f"{text} --weights equal"), "replace", 3) == pytest.approx(222.977, rel=1e-4)
    assert proven(rows(line, f"{text} --weights equal"), "zero-out", 3) == pytest.approx(73.623, rel=1e-4)
    found = rows(line, text)
    assert proven(found, "replace", 3) == pytest.approx(61476.4, rel=1e-4)
    assert found[0]["version"] == "flwr >=1.12.0" and "server.py, line 8" in found[0]["source"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"strategy": "FedAdam"}, "noise is added after FedAdam"), ({"mod": ""}, "does not list fixedclipping_mod")],
)
def test_what_the_app_does_beside_it_counts(line: Harness, tmp_path: Path, changes: dict[str, str], why: str) -> None:
    found = rows(line, f"claims {app(tmp_path, **changes)} --weights equal")
    assert all(row["epsilon"] is None for row in found) and why in found[0]["conditions"]["fails"][0]


def test_an_app_file_alone_takes_keys_of_the_configuration_above_it(line: Harness, tmp_path: Path) -> None:
    app(tmp_path)
    found = rows(line, f"claims {tmp_path / 'app' / 'server.py'} --weights equal")
    assert proven(found, "replace", 3) == pytest.approx(222.977, rel=1e-4)


@pytest.mark.parametrize(("asked", "proves"), [("==1.13.1", False), ("~=1.12.0", False), (">=1.12.0", True)])
def test_before_1_14_flowers_local_noise_is_not_used(line: Harness, tmp_path: Path, asked: str, proves: bool) -> None:
    toml = app(tmp_path)
    toml.write_text(TOML.replace(">=1.12.0", asked))
    (tmp_path / "app" / "server.py").write_text("LocalDpMod(1, 2, 8, 1e-5)")
    assert (proven_of_server(rows(line, f"claims {toml}")) is not None) == proves


def test_flips_keys_are_known(line: Harness, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app.config]\ndp-enabled = true\ndp-epsilon = 10.0\n")
    found = rows(line, f"claims {tmp_path / 'pyproject.toml'} --scalars 0")
    assert proven_of_server(found) == pytest.approx(8.5225e8, rel=1e-4)


def proven_of_server(found: list[dict[str, Any]]) -> Any:
    return found[0]["epsilon"]


@pytest.mark.parametrize("kind", ["json", "conf"])
def test_a_configuration_of_nvflare(line: Harness, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"config_fed_client.{kind}"
    path = "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy"
    file.write_text(CONF if kind == "conf" else SVT % path)
    finished = line(f"claims {file}")
    assert finished.code == 0 and "percentile 10 shares the largest 90%" in finished.out and "none" in finished.out


def test_an_unknown_filter_is_not_known(line: Harness, tmp_path: Path) -> None:
    file = tmp_path / "config_fed_client.json"
    file.write_text(SVT % "my.own.Filter")
    finished = line(f"claims {file}")
    assert finished.code == 2
    assert finished.out == f"not known: my.own.Filter ({file}); harness claims lists the filters that are\n"


def test_a_broken_project_beside_an_app_is_named_itself(line: Harness, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app.config")
    (tmp_path / "client.py").write_text("LocalDpMod(1, 2, 8, 1e-5)")
    finished = line(f"claims {tmp_path / 'client.py'}")
    assert finished.code == 2 and finished.err.count("\n") == 1
    assert f"{tmp_path / 'pyproject.toml'}: cannot be read as toml" in finished.err


def test_a_filter_that_has_the_name_of_another_is_an_if(line: Harness, tmp_path: Path) -> None:
    file = tmp_path / "config_fed_client.json"
    file.write_text(SVT % "flip.nvflare.components.PercentilePrivacy")
    assert "if: flip.nvflare.components.PercentilePrivacy does what" in line(f"claims {file}").out


def test_the_state_of_an_accountant(line: Harness, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text('{"history": [[1.0, 0.0625, 16], [1.0, 0.0625, 32]], "mechanism": "rdp"}')
    found = [row for row in rows(line, f"claims {file}") if row["adjacency"] == "zero-out"]
    assert found[0]["epsilon"] == pytest.approx(3.2405, rel=1e-3)
    assert found[0]["claimed_epsilon"] == pytest.approx(3.79812, rel=1e-4)


def test_a_name_with_arguments_in_a_file(line: Harness, tmp_path: Path) -> None:
    file = tmp_path / "named.json"
    file.write_text('{"defense": "flip:local_dp", "args": {"dp_sensitivity": 2.0}}')
    assert rows(line, f"claims {file}")[0]["epsilon"] == pytest.approx(10.39388, rel=1e-4)


ACCOUNTED = """
from flwr.supercore.privacy_accounting import PrivacyConfig
config = PrivacyConfig(target_delta=1e-6, population_size=50, neighboring_relation=x, sampling_method=y)
strategy = DifferentialPrivacyServerSideFixedClipping(
    FedAvg(), noise_multiplier=2.0, clipping_norm=1.0, num_sampled_clients=50, accountant=RdpAccountant(config))
"""


def test_the_accountant_of_an_app_claims_its_own_delta(line: Harness, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(ACCOUNTED)
    claimed = [row for row in rows(line, f"claims {tmp_path / 'server.py'}") if row["holds"] is not None]
    assert [(row["adjacency"], row["holds"], row["claimed_delta"]) for row in claimed] == [("zero-out", True, 1e-6)]
    assert claimed[0]["epsilon"] == pytest.approx(2.25408, rel=1e-4)
    assert claimed[0]["epsilon"] < claimed[0]["claimed_epsilon"]


SCOPES = """
{"scopes": [
  {"name": "public", "task_result_filters": [{"name": "PercentilePrivacy", "args": {"gamma": 0.02}}],
   "task_data_filters": [{"name": "WhatClientsReceive"}]},
  {"name": "private", "task_result_filters": [
    {"path": "nvflare.app_common.filters.svt_privacy.SVTPrivacy", "args": {"epsilon": 0.2}}, {"name": "AddNoise"}]}],
 "default_scope": "public"}
"""


def test_all_scopes_of_a_site_are_read(line: Harness, tmp_path: Path) -> None:
    file = tmp_path / "privacy.json"
    file.write_text(SCOPES)
    finished = line(f"claims {file} --parameters 61706")
    assert finished.code == 2 and "not known: AddNoise" in finished.out and "WhatClientsReceive" not in finished.out
    assert "scope public, the default: PercentilePrivacy" in finished.out and "cut to 0.02 a step" in finished.out
    assert "scope private: nvflare" in finished.out and "617.3" in finished.out


ENGINE_IN_FIT = """
def fit(self):
    engine = PrivacyEngine()
    engine.make_private(module=m, optimizer=o, data_loader=d, noise_multiplier=1.0, max_grad_norm=1.0)
"""
FACTS = "--examples 4000 --batch-size 32 --rounds 3 --unit example"


def test_an_engine_that_every_round_makes_forgets(line: Harness, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(ENGINE_IN_FIT)
    finished = line(f"claims {tmp_path / 'client.py'} {FACTS}")
    assert finished.code == 1 and "a new engine in every round forgets" in finished.out


MISTAKES = {
    "no file": ("", "claims absent.toml", "absent.toml: neither a file nor a known filter"),
    "no filter": ("", "claims flower:Absent", "unknown filter 'flower:Absent'"),
    "kind": ("x: 1", "claims source.ini", "no configuration of a known kind"),
    "yaml": ("x: 1", "claims source.yaml", "has no task_result_filters"),
    "a component's name": (f'[tool.flwr.app.components]\nserverapp = "{"x" * 300}:app"', "claims source.toml",
                           "a file that it names cannot be read (File name too long)"),
    "yaml twice": ("x: 1\nx: 2", "claims source.yaml", "line 2: found duplicate key"),
    "yaml twice in brackets": ("{x: 1, x: 2}", "claims source.yaml", "line 1: found duplicate key"),
    "yaml anchor": ("x: &a 1", "claims source.yml", "line 1 has an anchor, an alias or a tag"),
    "yaml alias": ("x: [*a]", "claims source.yaml", "line 1 has an anchor, an alias or a tag"),
    "yaml tag": ("x: !!python/object/apply:os.system [ls]", "claims source.yaml", "line 1 has an anchor"),
    "yaml documents": ("x: 1\n---\ny: 2", "claims source.yaml", "line 2: but found another document"),
    "yaml tab": ("x:\n\t- 1", "claims source.yaml", "line 2: found character"),
    "yaml deep": ("\n".join(f"{' ' * n}x:" for n in range(99)), "claims source.yaml", "nested too deeply"),
    "yaml deep in brackets": ("x: " + "[" * 99999, "claims source.yaml", "nested too deeply"),
    "yaml many dashes": ("- " * 9999, "claims source.yaml", "nested too deeply"),
    "yaml open": ("x: 'a", "claims source.yaml", "found unexpected end of stream"),
    "yaml list": ("- 1", "claims source.yaml", "holds no object"),
    "fedml": ("dp_args: {enable_dp: true, dp_solution_type: mine}", "claims source.yaml",
              "unknown dp_solution_type 'mine'"),
    "appfl": ("use_dp: True\nepsilon: 0", "claims source.yaml", "epsilon must be above 0"),
    "toml": ("a = [[[", "claims source.toml", "source.toml: cannot be read as toml"),
    "deep toml": ("a = " + "[" * 9999, "claims source.toml", "source.toml: cannot be read as toml"),
    "no flower": ("a = 1", "claims source.toml", "has no table [tool.flwr.app]"),
    "python": ("def (:", "claims source.py", "source.py: cannot be read as Python"),
    "deep python": ("(" * 9999, "claims source.py", "source.py: cannot be read as Python"),
    "deep sum": ("x = " + "1+" * 99999 + "1", "claims source.py", "source.py"),
    "zero byte": ("x = 1\0", "claims source.py", "source.py: cannot be read as Python"),
    "nothing": ("print(1)", "claims source.py", "names no filter that is known here"),
    "itself": ("x = x\nLocalDpMod(x, 1, 1, 1e-5)", "claims source.py", "line 2: clipping_norm = x is no literal"),
    "open": ("LocalDpMod(f(), 1, 1, 1e-5)", "claims source.py", "add --arg clipping_norm=VALUE"),
    "zero": ("LocalDpMod(1, 1, 0, 1e-5)", "claims source.py", "source.py, line 1: epsilon must be above 0"),
    "json": ("{", "claims source.json", "source.json: cannot be read as json"),
    "deep json": ("[" * 99999, "claims source.json", "source.json: cannot be read as json"),
    "list": ("[1]", "claims source.json", "holds no object"),
    "history": ('{"history": [[0, 2, 1]]}', "claims source.json", "history must be a list of [sigma above 0"),
    "conf": ("a = {", "claims source.conf", "source.conf: cannot be read as conf"),
    "deep conf": ("a = " + "[" * 99999, "claims source.conf", "source.conf: cannot be read as conf"),
    "include": ('include "other"', "claims source.conf", "'include' is not read here"),
    "cycle": ("a = ${b}\nb = ${a}", "claims source.conf", "a reference to itself"),
    "names twice each": ("\n".join(f"a{n} = a{n + 1} + a{n + 1}" for n in range(39)) + "\nLocalDpMod(a0, 1, 1, 1e-5)",
                         "claims source.py", "add --arg clipping_norm=VALUE"),
    "references twice each": ("\n".join(f"a{n} = [${{a{n + 1}}}, ${{a{n + 1}}}]" for n in range(38)) + "\na38 = 1",
                              "claims source.conf", "source.conf: cannot be read as conf"),
    "comments": ("# a\n" * 40 + "\"", "claims source.conf", "source.conf: cannot be read as conf"),
    "open text": ('a = """' + "b" * 99999, "claims source.conf", "source.conf: cannot be read as conf"),
    "many digits": (f"LocalDpMod({'9' * 400}, 1, 1, 1e-5)", "claims source.py", "source.py, line 1"),
    "negative": ("", f"{LOCAL.format(-1)}", "epsilon must be above 0, got -1; set --arg epsilon=NUMBER"),
    "as good as zero": ("", f"{LOCAL.format(1e-300)}", "epsilon must be between 1e-30 and 1e+30 in size; set --arg"),
    "too large": ("", f"{LOCAL.format(10**400)}", "epsilon must be between 1e-30 and 1e+30 in size"),
    "text": ("", f"{LOCAL.format('much')}", "epsilon must be a number, got 'much'"),
    "missing": ("", "claims flower:LocalDpMod", "needs clipping_norm; add --arg clipping_norm=..."),
    "argument": ("", f"{LOCAL.format(1)} --arg sigma=1", "no filter of the sources has an argument 'sigma'"),
    "clients": ("", f"{LOCAL.format(1)} --clients 3 --per-round 4", "lower --per-round or raise --clients"),
    "optimizer": ("", f"{LOCAL.format(1)} --optimizer lion", "choose sgd, momentum, adam"),
    "trees": ("", "claims tff:tree_adaptive --arg noise_multiplier=1 --arg restart_frequency=1 --rounds 99999999",
              "raise restart_frequency"),
    "buffers": ("", "claims jax_privacy:BufferedToeplitz --arg noise_multiplier=1 --arg buf_decay=2 --arg "
                "output_scale=1", "must be lists of one length"),
    "cohort": ("", "claims tff:gaussian_fixed --arg noise_multiplier=1 --arg clients_per_round=9 --clients 3",
               "lower it or raise --clients"),
    "facts of nothing": ("", "claims --rounds 3", "name a file, or a filter such as flower:LocalDpMod"),
    "an unknown one first": ("", "claims flower:LocalDpMod --arg clip=true", "has an argument 'clip'"),
    "given twice": ("", f"{LOCAL.format(1)} --arg epsilon=2", "--arg epsilon=... is given twice"),
    "a name with a mistake": ("", "claims flower:localdpmod", "did you mean flower:LocalDpMod?"),
    "a folder": ("", "claims .", ".: a folder; give a file in it"),
    "version": ("", f"{LOCAL.format(1)} --framework-version 99", "version 99 of flower is not known"),
    "a fact of the command line": ("", f"{LOCAL.format(1)} --rounds 0", "harness: --rounds must be a whole number"),
    "size": ("", f"{LOCAL.format(1)} --parameters 0", "--parameters must be a whole number"),
    "more scalars than numbers": ("", f"{LOCAL.format(1)} --parameters 5 --scalars 6", "no more than the 5 numbers"),
    "steps and epochs": ("", f"{OPACUS} --local-steps 5 --local-epochs 2", "both say how long a client trains"),
    "a bound that changes nothing": ("", "claims tff:tree_aggregation --arg noise_multiplier=1 --arg l2_norm_clip=-1",
                                     "tff:tree_aggregation: l2_norm_clip must be above 0, got -1"),
    "quantile": ("", "claims tff:gaussian_adaptive --arg noise_multiplier=1 --arg clients_per_round=99 --arg "
                 "target_unclipped_quantile=7", "target_unclipped_quantile must be from 0 to 1, got 7"),
    "rate of a bound": ("", "claims tff:gaussian_adaptive --arg noise_multiplier=1 --arg clients_per_round=99 --arg "
                        "learning_rate=-1", "tff:gaussian_adaptive: learning_rate must be 0 or more, got -1"),
    "fraction": ("", "claims nvflare:SVTPrivacy --arg fraction=1.5", "fraction must be above 0, and 1 at most"),
    "decay": ("", "claims jax_privacy:BufferedToeplitz --arg noise_multiplier=1 --arg buf_decay=[1.5] --arg "
              "output_scale=[1]", "buf_decay must be from 0 to 1, got 1.5"),
    "two noises": ("", "claims pfl:GaussianMechanism --arg clipping_bound=1 --arg epsilon=1 --arg "
                   "relative_noise_stddev=2", "epsilon and relative_noise_stddev both say how much noise"),
    "weights and clients": ("", f"{MEAN} --weights public:1,2 --clients 9", "2 public weights for 9 clients"),
    "sampled above all": ("", f"{MEAN} --clients 5", "num_sampled_clients 9 is above the 5 clients"),
    "unit": ("", f"{LOCAL.format(1)} --unit example", "no row for --unit example; there are rows for: client replace"),
    "relation": ("", f"{LOCAL.format(1)} --relation add-remove --json", "client replace, client zero-out"),
    "participations": ("", f"{LOCAL.format(1)} --participations 5", "5 participations of 1 rounds"),
    "0 for false": ("", f"{OPACUS} --arg poisson_sampling=0", "poisson_sampling must be true or false, got 0"),
    "no for false": ("", f"{OPACUS} --arg poisson_sampling=no", "poisson_sampling=true or poisson_sampling=false"),
    "secure": ("", f"{OPACUS} --arg secure_mode=1", "secure_mode must be true or false, got 1"),
    "engine": ("", f"{OPACUS} --arg engine=per_round", "to one of kept, per-round"),
    "accountant": ("", f"{OPACUS} --arg accountant=pld", "unknown accountant 'pld'; set --arg accountant="),
    "clipping": ("", f"{OPACUS} --arg clipping=adaptiv", "to one of flat, per_layer, adaptive"),
    "bound": ("", f"{OPACUS} --arg max_grad_norm=-1", "max_grad_norm must be above 0, got -1"),
    "bounds": ("", f"{OPACUS} --arg max_grad_norm=[1,0]", "max_grad_norm must be above 0, got 0"),
    "steps": ("", f"{OPACUS} --arg sample_rate=0.5 --arg steps=2.5", "steps must be a whole number from 1 to 1e+12"),
    "two steps": ("", f"{OPACUS} --arg sample_rate=0.5 --arg steps=2 --local-steps 3",
                  "--local-steps 3 contradicts steps 2"),
    "two rates": ("", f"{OPACUS} --arg sample_rate=0.5 --examples 32 --batch-size 8", "contradicts sample_rate 0.5"),
    "many kinds of steps": (json.dumps({"history": [[1 + one / 1e4, 0.1, 1] for one in range(1001)]}),
                            "claims source.json", "has 1001 different sigmas and rates; ask about 1000"),
    "half a step": ('{"history": [[1, 0.5, 1.5]]}', "claims source.json", "history must be a list of [sigma above 0"),
    "corrected": ("", f"claims pfl:BandedMatrixFactorization {JOB.replace('compositions', 'iterations')} --arg "
                  "corrected=no", "corrected must be true or false, got 'no'"),
    "dp_enabled": ("", "claims flip:local_dp --arg dp_enabled=yes", "dp_enabled must be true or false, got 'yes'"),
    "zeroing": ("", "claims tff:dp_aggregator --arg noise_multiplier=1 --arg clients_per_round=99 --arg zeroing=0",
                "zeroing must be true or false, got 0"),
    "weighting": ("", f"claims pfl:CentralGaussian {JOB} --arg weighting=users", "to one of user, datapoints"),
    "flag of an accountant": ("", f"{MEAN} --arg accountant=yes", "accountant must be true or false, got 'yes'"),
    "strategy": ("", f"{MEAN} --arg strategy=1", "strategy must be a name, got 1; set --arg strategy=FedAvg"),
    "rounds of a job": ("", f"claims pfl:CentralGaussian {JOB} --rounds 5000", "above num_compositions 2000"),
    "clients of a job": ("", f"claims pfl:CentralGaussian {JOB} --clients 1000", "contradicts population 1e+06"),
    "cohort of a job": ("", f"claims pfl:CentralGaussian {JOB} --per-round 999", "contradicts cohort_size 400"),
    "cohort of tff": ("", "claims tff:gaussian_fixed --arg noise_multiplier=1 --arg clients_per_round=9 --per-round 3",
                      "--per-round 3 contradicts clients_per_round 9"),
    "examples": ("", "claims jax_privacy:banded --arg noise_multiplier=1 --arg num_bands=2 --arg iterations=9 --arg "
                 "num_examples=99 --examples 100", "--examples 100 contradicts num_examples 99"),
    "apart": ("", f"{BLT} --arg min_separation=0.5", "min_separation must be a whole number from 1"),
    "more turns": ("", f"{BLT} --participations 50 --arg max_participations=10", "contradict max_participations 10"),
    "turns too near": ("", f"{BLT} --participations 50 --arg min_separation=100", "do not fit in 1000 rounds"),
    "bands": ("", "claims jax_privacy:BandedToeplitz --arg noise_multiplier=1 --arg bands=10000000", "for a matrix"),
    "model": ("", f"{LOCAL.format(1)} --model resnet19", "did you mean resnet18"),
    "weights": ("", f"{LOCAL.format(1)} --weights mine", "write equal, private or public:100,200"),
    "adaptive": ("", "claims flower:ServerSideAdaptiveClipping --arg noise_multiplier=1 --arg num_sampled_clients=10",
                 "raise num_sampled_clients above 10"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_line(line: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    text, asked, said = MISTAKES[mistake]
    monkeypatch.chdir(tmp_path)
    source = next((word for word in asked.split() if word.startswith("source.")), "source.none")
    Path(source).write_text(text)
    finished = line(asked)
    assert (finished.code, finished.out, finished.err.count("\n")) == (2, "", 1)
    assert said in finished.err


def test_an_empty_name_is_no_folder(harness: Harness) -> None:
    finished = harness("claims", "")
    assert (finished.code, finished.out) == (2, "") and finished.err.startswith("harness: a source is empty; name")


def test_nothing_of_a_source_is_run(line: Harness, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    text = f"open({str(marker)!r}, 'w')\n__import__('os').system('touch {marker}')\nLocalDpMod(1, 2, 8, 1e-5)\n"
    (tmp_path / "client.py").write_text(text)
    assert line(f"claims {tmp_path / 'client.py'}").code == 0
    assert not marker.exists()


QUICK = {
    "closed form": (LOCAL.format(8), 2.0),
    "loss distribution": ("claims opacus:PrivacyEngine --arg noise_multiplier=1 --arg sample_rate=0.01 --arg steps=99 "
                          "--relation zero-out", 2.0),
    "Laplace": ("claims nvflare:SVTPrivacy --model densenet121", 10.0),
    "the list": ("claims", 2.0),
}  # fmt: skip


@pytest.mark.parametrize("kind", QUICK)
def test_it_is_quick_and_never_imports_torch(kind: str) -> None:
    asked, seconds = QUICK[kind]
    code = (
        f"import sys, time; from harness.cli import run; run({asked.split()}); "
        "print(time.process_time(), *({'torch', 'scipy', 'dp_accounting'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    spent, *heavy = printed.splitlines()[-1].split()
    assert heavy == [] and float(spent) < seconds


@pytest.mark.slow
def test_sizes_of_networks_are_those_of_torchvision() -> None:
    models = pytest.importorskip("torchvision.models")
    import torch

    for name, size in NETWORKS.items():
        if name != "lenet":
            settings = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
            with torch.device("meta"):
                state = models.get_model(name, **settings).state_dict()
            assert (sum(one.numel() for one in state.values()), sum(one.dim() == 0 for one in state.values())) == size


NO_NOISE = {
    "claims flower:LocalDpMod --arg clipping_norm=1 --arg sensitivity=0 --arg epsilon=1 --arg delta=1e-5": 1,
    "claims flip:local_dp --arg dp_sensitivity=0": 1,
    "claims flower:ServerSideFixedClipping --arg noise_multiplier=0.0 --arg clipping_norm=1 --arg "
    "num_sampled_clients=20": 0,
    "claims opacus:PrivacyEngine --arg noise_multiplier=0 --arg max_grad_norm=1 --examples 500 --batch-size 32": 0,
}  # fmt: skip


@pytest.mark.parametrize("asked", NO_NOISE)
def test_a_filter_without_noise_proves_nothing(asked: str, harness: Harness) -> None:
    finished = harness(*asked.split())
    assert finished.code == NO_NOISE[asked], finished
    assert "none" in finished.out and "is 0: no noise is added" in finished.out
