"""What sources say and do not say: a value that is not certain is refused or an "if", and never another number.

Each case is a set of files, the command, its exit code, and texts that its output has; those after a dash it lacks.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UsageError
from harness.claims.answers import Facts
from harness.claims.apps import asked_of
from harness.claims.documents import Hocon, read_json, read_yaml

Harness = Callable[..., Any]
Case = tuple[dict[str, str] | str, str, int, list[str]]


def project(config: str = "", federations: str = "", asks: str = "flwr>=1.20") -> str:
    return (
        f"[project]\ndependencies = [{json.dumps(asks)}]\n[tool.flwr.app.components]\nserverapp = 'app.server:app'\n"
        f"[tool.flwr.app.config]\nnum-server-rounds = 3\n{config}\n[tool.flwr.federations]\n{federations}\n"
    )


def app(code: str, **settings: str) -> dict[str, str]:
    return {"pyproject.toml": project(**settings), "app/server.py": code}


TWO = 'default = "small"\nsmall.options.num-supernodes = 10\nlarge.options.num-supernodes = 1000'
WRAPPED = "ServerSide = DifferentialPrivacyServerSideFixedClipping\n{}\nServerSide({}, 1.0, 1.0, 2)"
SHARE = "s = FedAvg(fraction_train=0.2)"
EQUAL = "pyproject.toml --weights equal --scalars 0"
A_MEAN = "takes a plain mean, as FedAvg does"
ANSWER = "if: 2 clients answer in every round"

STRATEGIES: dict[str, Case] = {
    "an unused one follows": (app(WRAPPED.format("base = FedAdam()\nother = FedAvg()", "base")), EQUAL, 0,
                              ["noise is added after FedAdam"]),
    "named by strategy=": (app("b = FedAvgM()\nFedAvg()\n" + WRAPPED.format("", "strategy=b").replace(
        ", 1.0, 1.0, 2", ", noise_multiplier=1.0, clipping_norm=1.0, num_sampled_clients=2")), EQUAL, 0,
        ["noise is added after FedAvgM"]),
    "the name is the wrapper's too": (app("s = FedYogi()\ns = DifferentialPrivacyServerSideFixedClipping(s, 1, 1, 2)"),
                                      EQUAL, 0, ["noise is added after FedYogi"]),
    "two of one name": (app(WRAPPED.format("if x: s = FedAvg()\nelse: s = FedAdam()", "s")), EQUAL, 0,
                        [A_MEAN, ANSWER]),
    "no mean": (app(WRAPPED.format("s = Krum(fraction_train=0.2)", "s"), federations=TWO), EQUAL, 0,
                ["does not hold: Krum takes no mean", "-", ANSWER]),
    "a function makes it": (app(WRAPPED.format("FedAvg()", "make()")), EQUAL, 0, [A_MEAN]),
    "its own class": (app(WRAPPED.format("class FedAvg: pass", "FedAvg()")), EQUAL, 0, [A_MEAN]),
    "not of Flower": (app(WRAPPED.format("from mine import FedAvg", "FedAvg()")), EQUAL, 0, [A_MEAN]),
    "said by hand": (app(WRAPPED.format("", "make()")), f"{EQUAL} --server-optimizer FedAvg", 0, ["-", A_MEAN]),
    "the default federation": (app(WRAPPED.format(SHARE, "s"), federations=TWO), EQUAL, 0,
                               ["8.89455", "15.692", "-", ANSWER]),
    "no default of two": (app(WRAPPED.format(SHARE, "s"), federations=TWO.partition("\n")[2]), EQUAL, 0, [ANSWER]),
    "a share that is no literal": (app(WRAPPED.format("s = FedAvg(fraction_train=f())", "s"), federations=TWO), EQUAL,
                                   0, [ANSWER]),
    "a class that is not known": (app(WRAPPED.format("s = MyStrategy()", "s"), federations=TWO), EQUAL, 0,
                                  [ANSWER, A_MEAN]),
    "settings of a mapping": (app(WRAPPED.format("s = FedAvg(**kw)", "s"), federations=TWO), EQUAL, 0, [ANSWER]),
    "rounds that are no literal": (app(WRAPPED.format("start(grid=g, num_rounds=f())", "FedAvg()")), EQUAL, 0,
                                   ["if: the job has 3 rounds, as num-server-rounds says", "3 rounds"]),
    "rounds of the code": (app(WRAPPED.format("start(grid=g, num_rounds=5)", "FedAvg()")), EQUAL, 0, ["5 rounds"]),
}  # fmt: skip

LOCAL = "LocalDpMod(1.0, 2.0, {}, 1e-5)"
UNSAID = "epsilon = {} is no literal and no key; add --arg epsilon=VALUE"
NAMES = {
    "parameter": "epsilon = 1.0\ndef make(epsilon): return {}\nmake(100.0)",
    "augmented": "epsilon = 1.0\nepsilon *= 100\n{}", "loop": "for epsilon in [1.0, 50.0]:\n {}",
    "tuple": "epsilon = 1.0\nepsilon, other = 50.0, 1\n{}", "star": "epsilon = 1.0\n*epsilon, a = f()\n{}",
    "walrus": "epsilon = 1.0\nif (epsilon := f()): {}", "with": "epsilon = 1.0\nwith f() as epsilon: {}",
    "inner walrus": "epsilon = 1.0\n[(epsilon := n) for n in f()]\n{}",
    "except": "epsilon = 1.0\ntry: f()\nexcept E as epsilon: {}",
    "global": "epsilon = 1.0\ndef f():\n global epsilon\n epsilon = 50.0\nf()\n{}",
    "nonlocal": "def o():\n epsilon = 1.0\n def f():\n  nonlocal epsilon\n  epsilon = 50.0\n f()\n {}",
    "del": "epsilon = 1.0\ndel epsilon\n{}", "comprehension": "epsilon = 1.0\n[{} for epsilon in f()]",
    "match": "epsilon = 1.0\nmatch f():\n case [epsilon]: {}",
    "match rest": "epsilon = 1.0\nmatch f():\n case {{**epsilon}}: {}",
    "match as": "epsilon = 1.0\nmatch f():\n case int() as epsilon: {}",
    "import": "epsilon = 1.0\nfrom constants import epsilon\n{}",
    "import all": "epsilon = 1.0\nfrom constants import *\n{}",
    "import as": "epsilon = 1.0\nimport constants as epsilon\n{}", "by text": "epsilon = 1.0\nexec('epsilon = 5')\n{}",
    "function": "epsilon = 1.0\ndef epsilon(): pass\n{}", "two values": "epsilon = 1.0\nepsilon = 2.0\n{}",
    "a local of another function": "def f():\n epsilon = 1.0\ndef g(): {}",
    "a body of a class": "class A:\n epsilon = 1.0\n def f(self): {}",
    "varargs": "epsilon = 1.0\ndef f(*epsilon): {}", "lambda": "epsilon = 1.0\nf = lambda epsilon: {}",
}  # fmt: skip
TAKEN = {
    "module": "epsilon = 1.0\ndef make(): return {}",
    "local before module": "epsilon = 9.0\ndef f():\n epsilon = 1.0\n {}",
    "another function's parameter": "epsilon = 1.0\ndef other(epsilon): pass\n{}",
    "annotated": "epsilon: float = 1.0\n{}",
    "twice the same": "epsilon = 1.0\nepsilon = 1.0\n{}",
}  # fmt: skip
ATTRIBUTES = {
    "class": ("class A:\n epsilon = 1.0\n", "A.epsilon", True),
    "set": ("class A:\n epsilon = 1.0\nA.epsilon = 9\n", "A.epsilon", False),
    "set by cls": ("class A:\n epsilon = 1.0\n def f(cls): cls.epsilon = 9\n", "A.epsilon", False),
    "setattr": ("class A:\n epsilon = 1.0\nsetattr(A, 'epsilon', 9)\n", "A.epsilon", False),
    "shadowed": ("class A:\n epsilon = 1.0\nA = f()\n", "A.epsilon", False),
    "subscript": ("c = context.run_config\n", "c['epsilon']", True),
    "get": ("", "context.run_config.get('epsilon', 9.0)", True),
    "default": ("", "context.run_config.get('absent', 1.0)", True),
    "form": ("c = DictConfig(context.run_config)\n", "c.epsilon", True),
    "a mapping": ("dp_conf = {'epsilon': 100.0}\n", "dp_conf['epsilon']", False), "cfg": ("", "cfg.epsilon", False),
    "another key's end": ("", "context.run_config['dp.epsilon']", False),
    "changed": ("c = context.run_config\nc['epsilon'] = 100.0\n", "c['epsilon']", False),
    "updated": ("c = dict(context.run_config)\nc.update(epsilon=100.0)\n", "c['epsilon']", False),
    "given": ("def f(c): LocalDpMod(1.0, 2.0, c['epsilon'], 1e-5)\nf(context.run_config)\n", "1.0", True),
    "given another": ("def f(c): LocalDpMod(1.0, 2.0, c['epsilon'], 1e-5)\nf({})\n", "1.0", False),
    "annotation": ("def f(c: UserConfig): LocalDpMod(1.0, 2.0, c['epsilon'], 1e-5)\n", "1.0", True),
}  # fmt: skip


def _local(files: dict[str, str] | str, said: str, options: str = "--scalars 0") -> Case:
    source = "pyproject.toml" if isinstance(files, dict) else "source.py"
    return (files, f"{source} {options}", 2 if said else 0, [said] if said else ["0.750977"])


VALUES: dict[str, Case] = {
    **{name: _local(code.format(LOCAL.format("epsilon")), UNSAID.format("epsilon")) for name, code in NAMES.items()},
    **{f"taken: {name}": _local(code.format(LOCAL.format("epsilon")), "") for name, code in TAKEN.items()},
    **{f"attribute: {name}": _local(app(code + LOCAL.format(text), config="epsilon = 1.0"),
                                    "" if taken else "epsilon = ")
       for name, (code, text, taken) in ATTRIBUTES.items()},
    "a default without a configuration": _local(LOCAL.format("context.run_config.get('e', 1.0)"), "epsilon = "),
    "a default without an app above": ({"pyproject.toml": "[project]", "source.py": LOCAL.format(
        "context.run_config.get('e', 1.0)")}, "source.py", 2, ["epsilon = "]),
    "its own class": ("class LocalDpMod: pass\n" + LOCAL.format(1.0), "source.py", 2, ["names no filter"]),
    "its own function": ("def LocalDpMod(*a): pass\n" + LOCAL.format(1.0), "source.py", 2, ["names no filter"]),
    "another's class": ("from mine import LocalDpMod\n" + LOCAL.format(1.0), "source.py", 0,
                        ["if: LocalDpMod of mine does what LocalDpMod of flwr does"]),
    "another file's class": ({**app("from app.mods import LocalDpMod\n" + LOCAL.format(1.0)),
                              "app/mods.py": "class LocalDpMod: pass"}, "pyproject.toml", 2, ["names no filter"]),
    "Flower's class": ("from flwr.clientapp.mod import LocalDpMod as M\nM(1.0, 2.0, 1.0, 1e-5)", "source.py", 0,
                       ["claim holds", "-", "does what"]),
    "two keys that are one": (app(LOCAL.format(1.0), config="dp-epsilon = 1.0\ndp_epsilon = 2.0"), "pyproject.toml", 2,
                              ["dp_epsilon has two values, 1.0 and 2.0"]),
}  # fmt: skip

OPACUS = "source.py --examples 4000 --batch-size 40 --local-epochs 1"
PRIVATE = "e = PrivacyEngine({})\ne.make_private(module=m, optimizer=o, data_loader=d, noise_multiplier=1.0{})"
ARGUMENTS: dict[str, Case] = {
    "SVT": ("SVTPrivacy(fraction=FR, epsilon=args.eps, noise_var=nv)", "source.py --parameters 61706", 2,
            ["fraction = FR, epsilon = args.eps, noise_var = nv is no literal",
             "--arg fraction=VALUE --arg epsilon=VALUE"]),
    "Opacus": (PRIVATE.format("", ", poisson_sampling=not a.shuffle, clipping=a.clipping"), OPACUS, 2,
               ["add --arg poisson_sampling=VALUE --arg clipping=VALUE"]),
    "no number depends on it": (PRIVATE.format("", ", max_grad_norm=args.c"), OPACUS, 0, ["claim holds"]),
    "two stars": ("LocalDpMod(1.0, 2.0, **kw)", "source.py", 2, ["epsilon = **kw, delta = **kw is no literal"]),
    "two stars hide defaults": ("SVTPrivacy(fraction=0.1, **kw)", "source.py", 2, ["gamma = **kw", "-", "fraction ="]),
    "one star": ("LocalDpMod(1.0, *rest)", "source.py", 2, ["sensitivity = *rest"]),
    "too many": ("LocalDpMod(1, 2, 8, 1e-5, 9)", "source.py", 0, ["if: argument 5, which is not known here"]),
    "a new one": ("LocalDpMod(1, 2, 8, 1e-5, sides=2)", "source.py", 0,
                  ["if: sides, which is not known here, changes"]),
    "given twice": ("LocalDpMod(1, 2, 8, 1e-5, epsilon=1)", "source.py", 2, ["epsilon = 1 is no literal"]),
    "named twice": ("LocalDpMod(1, 2, epsilon=8, delta=1e-5, epsilon=1)", "source.py", 2, ["epsilon = "]),
    "by place": ("PrivacyEngine().make_private(m, o, d, 1.0)", "source.py", 2, ["takes its arguments by name"]),
    "rdp": (PRIVATE.format("accountant='rdp'", ""), f"{OPACUS} --relation zero-out", 0,
            ["1.21415 (d 1e-05)  0.718062"]),
    "gdp": (PRIVATE.format("accountant='gdp'", ""), OPACUS, 1, ["claim exceeded"]),
    "an unsaid accountant": (PRIVATE.format("accountant=args.a", ""), OPACUS, 2, ["add --arg accountant=VALUE"]),
    "an unsaid target of the accountant": (
        "DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1, 1, 2, RdpAccountant(PrivacyConfig(target_delta=d)))",
        "source.py", 2, ["accountant = "]),
    "another's engine": ("e.make_private(module=m, noise_multiplier=1.0)", OPACUS, 0,
                         ["if: the engine, which is made else"]),
    "its own engine": ("class PrivacyEngine: pass\n" + PRIVATE.format("", ""), OPACUS, 2, ["names no filter"]),
    "an epsilon is asked for": (
        "e = PrivacyEngine()\ne.make_private_with_epsilon(module=m, target_epsilon=3.0, target_delta=1e-6, epochs=2)",
        "source.py --examples 4000 --batch-size 40 --arg noise_multiplier=1.0 --relation zero-out", 0,
        ["3 (d 1e-06)", "claim holds", "if: a round trains 2 epochs"]),
    "and exceeded": (
        "e = PrivacyEngine()\ne.make_private_with_epsilon(module=m, target_epsilon=1.0, target_delta=1e-6, epochs=2)",
        "source.py --examples 4000 --batch-size 40 --arg noise_multiplier=1.0 --relation zero-out", 1,
        ["1 (d 1e-06)", "claim exceeded"]),
    "its noise": ("make_private_with_epsilon(target_epsilon=3.0, target_delta=1e-6, epochs=2)", "source.py", 2,
                  ["Opacus computes the noise for epsilon 3", "add --arg noise_multiplier=VALUE"]),
    "part of an epoch": ("make_private_with_epsilon(target_epsilon=3.0, target_delta=1e-6, epochs=2.5)", "source.py", 2,
                         ["epochs = 2.5 is no literal whole number"]),
    "an unsaid epsilon": ("make_private_with_epsilon(target_epsilon=a.e, target_delta=1e-6, epochs=2)", "source.py", 2,
                          ["target_epsilon = a.e is no literal number"]),
}  # fmt: skip

APPFL = """optim: SGD
dp_mechanism: gaussian
epsilon: {}
clip_norm: 2
use_dp: {}
clip_grad: {}
num_local_steps: {}
"""
YAML = "source.yaml --buffers none"
PLATFORMS: dict[str, Case] = {
    "all is on": (APPFL.format(1, "true", "yes", 1), YAML, 0, ["claim holds"]),
    "no is false": (APPFL.format(1, "true", "no", 1), YAML, 1, ["clip_grad is off", "none (would be 0.750977)"]),
    "off is false": (APPFL.format(1, "off", "true", 1), YAML, 0, ["use_dp is false"]),
    "no boolean": (APPFL.format(1, "'off'", "true", 1), YAML, 2, ["use_dp must be true or false, got 'off'"]),
    "a number is none": (APPFL.format(1, "true", 1, 1), YAML, 2, ["clip_grad must be true or false, got 1"]),
    "epsilon as text": (APPFL.format("'1'", "true", "true", 1), YAML, 2, ["epsilon must be a number, got '1'"]),
    "epsilon without a point": (APPFL.format("1e0", "true", "true", 1), YAML, 2,
                                ["epsilon must be a number, got '1e0'"]),
    "steps as text": (APPFL.format(1, "true", "true", "'1'"), YAML, 2, ["num_local_steps must be a whole number"]),
    "a mechanism in capitals": (APPFL.format(1, "true", "true", 1).replace("gaussian", "Gaussian"), YAML, 2,
                                ["unknown dp_mechanism 'Gaussian'"]),
    "decay": (APPFL.format(1, "true", "true", 1) + "optim_args: {weight_decay: 0.1}", YAML, 1,
              ["sgd with weight_decay"]),
    "twice": (APPFL.format(1, "true", "true", 1) + "server: {epsilon: 9}", YAML, 2,
              ["epsilon has two values, 1 and 9"]),
    "two keys of a fact": (APPFL.format(1, "true", "true", 1) + "num_global_epochs: 2\ncomm_round: 3", YAML, 2,
                           ["contradicts 3 of another key"]),
    "masked": (APPFL.format(1, "true", "true", 1) + "aggregator_kwargs: {use_secure_agg: yes}", YAML, 1,
               ["masks go on the update before its noise", "none (would be 0.750977)"]),
    "FedML in capitals": ("dp_args: {enable_dp: yes, dp_solution_type: LDP}", "source.yaml", 2,
                          ["unknown dp_solution_type 'LDP'"]),
    "FedML": ("dp_args: {enable_dp: 'no', dp_solution_type: ldp}", "source.yaml", 2,
              ["enable_dp must be true or false"]),
    "FedML off": ("dp_args: {enable_dp: no, dp_solution_type: ldp}", "source.yaml", 0, ["enable_dp is false"]),
}  # fmt: skip

MOD = app(LOCAL.format(1.0))
HOLDS, IF_NEWER = "claim holds", "if: flwr is 1.14 or newer"


def _asks(text: str, *said: str, code: int = 0) -> Case:
    return (app(LOCAL.format(1.0), asks=text), "pyproject.toml --scalars 0", code, list(said))


DISCARDED = ("before 1.14.0 noise is made and not used", "-", HOLDS)
VERSIONS: dict[str, Case] = {
    "marker": _asks("flwr[simulation]==1.13.1; python_version >= '3.9'", *DISCARDED, code=1),
    "below": _asks("flwr<1.14", *DISCARDED, code=1), "range": _asks("flwr>=1.8,<1.13", *DISCARDED, code=1),
    "candidate": _asks("flwr==1.13rc1", *DISCARDED, code=1),
    "of the limit": _asks("flwr==1.14.0rc1", *DISCARDED, code=1),
    "brackets": _asks("flwr (==1.13.1)", *DISCARDED, code=1), "spaces": _asks("flwr == 1.13.*", *DISCARDED, code=1),
    "reaches below": _asks("flwr>=1.12,<2", HOLDS, IF_NEWER), "all": _asks("flwr", HOLDS, IF_NEWER),
    "but one": _asks("flwr>=1.13,!=1.13.1", HOLDS, IF_NEWER), "upward": _asks("flwr>1.13", HOLDS, IF_NEWER),
    "address": _asks("flwr @ git+https://example.org/f", HOLDS, IF_NEWER),
    "newer": _asks("flwr>=1.14", HOLDS, "-", IF_NEWER), "pinned": _asks("flwr~=1.20.0", HOLDS, "-", IF_NEWER),
    "said by hand": (app(LOCAL.format(1.0), asks="flwr>=1.8"), "pyproject.toml --framework-version 1.20", 0,
                     ["-", IF_NEWER]),
    "by Poetry": ({**MOD, "pyproject.toml": MOD["pyproject.toml"].replace("[project]\n", "").replace(
        'dependencies = ["flwr>=1.20"]', '[tool.poetry.dependencies]\nflwr = "~1.13"')}, "pyproject.toml", 1,
        [*DISCARDED]),
    **{f"nvflare {version}": ("SVTPrivacy()", f"source.py --parameters 61706 --scalars 0 --framework-version {version}",
                              1, ["before 2.8.0" if old else "617.599"])
       for version,
       old in {"2.7rc1": True, "2": True, "2.7.2": True, "2.8.0rc1": True, "2.8": False, "2.9": False}.items()},
    "newer than read": ("SVTPrivacy()", "source.py --parameters 61706 --framework-version 2.10", 1,
                        ["617.599", "if: nvflare 2.10, which was not read, does what 2.9.0 does"]),
    "older than read": (LOCAL.format(1.0), "source.py --framework-version 1.9", 1,
                        ["if: flower 1.9, which was not read, does what 1.12.0 does"]),
    "another major": ("SVTPrivacy()", "source.py --parameters 61706 --framework-version 3", 2,
                      ["source.py, line 1: version 3 of nvflare is not known, 2.7.2 to 2.9.0 are; add --framework"]),
    "another major, pinned": _asks("flwr==0.17", "server.py, line 1: version 0.17 of flower is not known", code=2),
    "of another package": (app("SVTPrivacy()", asks="flwr==1.20.0"), "pyproject.toml --parameters 61706 --scalars 0", 1,
                           ["617.599", "newest known: nvflare"]),
    "of NVFlare": (app("SVTPrivacy()", asks="nvflare==2.7.2"), "pyproject.toml --parameters 61706", 1,
                   ["before 2.8.0"]),
    "NVFlare or older": (app("SVTPrivacy()", asks="nvflare>=2.7"), "pyproject.toml --parameters 61706", 1,
                         ["if: nvflare is 2.8 or newer"]),
    **{f"TFF as {name}": (app("gaussian_fixed(1.0, 10.0, 1.0)", asks=f"{name}==0.80.0"), "pyproject.toml", 0,
                          ["if: tff 0.80.0, which was not read, does what 0.87.0 does"])
       for name in ("tensorflow-federated", "tensorflow_federated", "TensorFlow.Federated")},
    "TFF by Poetry": ({**MOD, "app/server.py": "gaussian_fixed(1.0, 10.0, 1.0)", "pyproject.toml": MOD[
        "pyproject.toml"] + "\n[tool.poetry.dependencies]\ntensorflow-federated = '0.80.0'"}, "pyproject.toml", 0,
        ["if: tff 0.80.0, which was not read"]),
    **{f"{one} 99": (f'{{"defense": "{one}", {given}}}', "source.json --framework-version 99", 2,
                     [f"version 99 of {one.partition(':')[0]} is not known"])
       for one, given in {"appfl:dp": '"epsilon": 1', "fedml:dp": '"dp_solution_type": "ldp"', "tff:gaussian_fixed":
                          '"noise_multiplier": 1, "clients_per_round": 9', "jax_privacy:BandedToeplitz":
                          '"noise_multiplier": 1'}.items()},
    **{f"{one} 99": (f'{{"defense": "{one}"}}', "source.json --fail-on none --framework-version 99", 0,
                     [f"if: version 99 of {one.partition(':')[0]} does what the code does that was read"])
       for one in ("flip:local_dp", "openfl:GlobalDP2", "paper:Soteria")},
    "no version": ("SVTPrivacy()", "source.py --framework-version 2.7x", 2, ["'2.7x' is no version"]),
}  # fmt: skip

CHAIN = """task_result_filters = [{ %s filters = [{ path = "nvflare.app_common.filters.svt_privacy.SVTPrivacy"
  %s } ] }]"""
CONF = "source.conf --parameters 61706 --scalars 0"
NVFLARE: dict[str, Case] = {
    "a path after an object": (CHAIN % ("", "args { noise_var = 0.1 }, args.noise_var = 50"), CONF, 1, ["302945 (d"]),
    "a path alone": (CHAIN % ("", "args.epsilon = 0.2"), CONF, 1, ["619.097 (d 0,"]),
    "two objects": (CHAIN % ("", "args { noise_var = 50 }, args { epsilon = 0.1 }"), CONF, 1, ["302945 (d"]),
    "validation": (CHAIN % ('tasks = ["validate"],', ""), CONF, 1, ["acts on validate alone", "none (would be 617"]),
    "both": (CHAIN % ('tasks = ["validate", "train"],', ""), CONF, 1, ["62.4505 (d", "-", "alone"]),
    "another task": (CHAIN % ('tasks = ["fit"],', ""), CONF, 1, ["if: clients train in fit alone"]),
    "no list": (CHAIN % ('tasks = "train",', ""), CONF, 2, ["is no list of names"]),
    "incoming": (CHAIN % ('tasks = ["train"], direction = "in",', ""), CONF, 1, ["filters what comes in"]),
    "a server's": ("workflows = []\n" + CHAIN % ("", ""), CONF, 1, ["the filter acts at the server"]),
    "kinds": (CHAIN % ("", 'args.data_kinds = ["WEIGHTS"]'), CONF, 1, ["if: results are of kind WEIGHTS"]),
    "all kinds": (CHAIN % ("", 'args.data_kinds = ["WEIGHTS", "WEIGHT_DIFF"]'), CONF, 1, ["-", "of kind"]),
    "in code": ("job.to_server(SVTPrivacy(), filter_type=FilterType.TASK_DATA)", "source.py --parameters 61706", 1,
                ["if: the job lets it filter what train returns, at the clients"]),
    "kinds in code": ("SVTPrivacy(data_kinds=['WEIGHTS'])", "source.py --parameters 61706", 1, ["of kind WEIGHTS"]),
    "args that are a list": (CHAIN % ("", "args = [1]"), CONF, 2, ["write an object of arguments"]),
    "a key twice": ('{"defense": "flip:local_dp", "args": {"dp_epsilon": 1, "dp_epsilon": 100}}', "source.json", 2,
                    ["the key 'dp_epsilon' stands twice"]),
    "arguments that are a list": ('{"defense": "flip:local_dp", "args": [1]}', "source.json", 2, ["must be an object"]),
    "an argument twice": ('{"defense": "flip:local_dp", "dp_epsilon": 1, "args": {"dp_epsilon": 100}}', "source.json",
                          2,
                          ["dp_epsilon has two values"]),
}  # fmt: skip

FORGED = "x\\nflower:LocalDpMod  claim holds \\u001b[2K\\u2028y"
STATES: dict[str, Case] = {
    "a scope forges a line": (json.dumps({"scopes": [{"name": json.loads(f'"{FORGED}"'), "task_result_filters": [
        {"name": "PercentilePrivacy"}]}]}), "source.json", 0, ["scope x\\nflower:LocalDpMod", "\\u2028y"]),
    "a class forges a line": (json.dumps({"task_result_filters": [{"filters": [{"path": json.loads(f'"{FORGED}"')}]}]}),
                              "source.json", 2, ["not known: x\\nflower:LocalDpMod"]),
    "texts": ('{"history": ["111", "111"]}', "source.json", 2, ["history must be a list of"]),
    "text and part of a step": ('{"history": [["1.0", 0.1, 2.9]]}', "source.json", 2, ["history must be a list of"]),
    "part of a step": ('{"history": [[1.0, 0.1, 2.9]]}', "source.json", 2, ["whole steps above 0"]),
    "true steps": ('{"history": [[1.0, 0.1, true]]}', "source.json", 2, ["history must be a list of"]),
    "by hand": ("", 'opacus:PrivacyEngine --arg history=[["1.0",0.1,2]]', 2, ["history must be a list of"]),
    "by hand, right": ("", "opacus:PrivacyEngine --arg history=[[1.0,0.1,2]]", 0, ["claim holds"]),
    "contradicted": ('{"history": [[1.0, 0.1, 2]]}', "source.json --arg noise_multiplier=5", 2,
                     ["noise_multiplier contradicts the accountant's history"]),
    "contradicted by steps": ('{"history": [[1.0, 0.1, 2]]}', "source.json --arg steps=5", 2, ["steps contradicts"]),
}  # fmt: skip

ROUNDS, CLIENTS = "[tool.flwr.app.config]: num-server-rounds must be", "options.num-supernodes must be"
CENTRAL = app(WRAPPED.format(SHARE, "s"), federations=TWO)
UNCODED = {"pyproject.toml": project("noise-multiplier = 1\nclipping-norm = 1\nnum-sampled-clients = 20", TWO)}


def _changed(before: str, after: str) -> dict[str, str]:
    return {**CENTRAL, "pyproject.toml": CENTRAL["pyproject.toml"].replace(before, after)}


FACTS: dict[str, Case] = {
    **{f"rounds {value}": (_changed("rounds = 3", f"rounds = {value}"), EQUAL, 2,
                           ["pyproject.toml: [tool", ROUNDS, "or add --rounds"])
       for value in ("-5", "0", "2.5", "true", "nan", "'3'", "[3]", "9e99")},
    **{f"clients {value}": (_changed("nodes = 10\n", f"nodes = {value}\n"), EQUAL, 2,
                            ["pyproject.toml: federation small", CLIENTS, "or add --clients"])
       for value in ("-5", "0", "2.5", "true", "'10'")},
    "rounds by hand": (_changed("rounds = 3", "rounds = -5"), f"{EQUAL} --rounds 4", 0, ["4 rounds"]),
    "rounds of the code": (app(WRAPPED.format("start(grid=g, num_rounds=-1)", "FedAvg()")), EQUAL, 2,
                           ["num_rounds of the code must be", "got -1"]),
    "more sampled than there are": (UNCODED, EQUAL, 2,
                                    ["num_sampled_clients 20 is above the 10 clients; add --per-round"]),
    "and how many come": (UNCODED, f"{EQUAL} --per-round 4", 0, ["but 4 clients take part"]),
    "weights of others": (CENTRAL, "pyproject.toml --weights public:1,2,3", 2, ["3 public weights for 10 clients"]),
    "too few weights": ("s = FedAvg()\n" + WRAPPED.format("", "s"), "source.py --weights public:1", 2,
                        ["source.py, line 4: 1 public weights for 2 clients"]),
    "steps and epochs": (APPFL.format(1, "true", "true", 1) + "num_local_epochs: 3", YAML, 2,
                         ["source.yaml: appfl: --local-steps and --local-epochs both say"]),
    "steps by its mode": (APPFL.format(1, "true", "true", 1) + "num_local_epochs: 3\nmode: step", YAML, 0,
                          ["exact Gaussian; 1 local steps"]),
    "epochs by its mode": (APPFL.format(1, "true", "true", 1) + "num_local_epochs: 3\nmode: epoch",
                           f"{YAML} --examples 100 --batch-size 10", 1, ["exact Gaussian; 30 local steps"]),
    "steps by hand": (APPFL.format(1, "true", "true", 1) + "num_local_epochs: 3", f"{YAML} --local-steps 2", 1,
                      ["exact Gaussian; 2 local steps"]),
    "a target's delta": ("make_private_with_epsilon(target_epsilon=3.0, target_delta=1.5, epochs=2)",
                         "source.py --arg noise_multiplier=1", 2, ["source.py, line 1: delta must lie in (0, 1)"]),
    "steps of a target": ("make_private_with_epsilon(target_epsilon=3.0, target_delta=1e-5, epochs=2)",
                          "source.py --arg noise_multiplier=1 --examples 100 --batch-size 10 --local-steps 7", 0,
                          ["2.57347", "-", "a round trains 2 epochs"]),
    "a name by its file": ({"pyproject.toml": "[tool.flwr.app.config]\ndp-epsilon = -1"}, "pyproject.toml", 2,
                           ["dp_epsilon must be above 0, got -1; set --arg dp_epsilon=NUMBER"]),
    "keys of another filter": (app("LocalDpMod(1.0, 2.0, context.run_config['dp-epsilon'], 1e-5)",
                                   config="dp-epsilon = 1.0"), "pyproject.toml --scalars 0", 0,
                               ["claim holds", "-", "flip:local_dp"]),
    "keys of both": (app("import flip\nLocalDpMod(1.0, 2.0, context.run_config['dp-epsilon'], 1e-5)",
                         config="dp-epsilon = 1.0"), "pyproject.toml --scalars 0", 1, ["flip:local_dp"]),
    "a mark of bytes": ("\ufeff" + LOCAL.format(1.0), "source.py --scalars 0", 0, ["claim holds"]),
    "rates of a history": ('{"history": [[1.0, 0.1, 5]]}', "source.json --examples 500 --batch-size 5", 2,
                           ["0.01 contradicts a rate of the history, 0.1"]),
    "its own rate": ('{"history": [[1.0, 0.01, 5]]}', "source.json --examples 500 --batch-size 5", 0, ["claim holds"]),
    "one less by floating point": (f'{{"history": [[1.0, {1 / 92}, 5]]}}', "source.json --examples 93 --batch-size 1",
                                   0, ["claim holds"]),
}  # fmt: skip

KINDS = {"strategies": STRATEGIES, "values": VALUES, "arguments": ARGUMENTS, "platforms": PLATFORMS,
         "versions": VERSIONS, "nvflare": NVFLARE, "states": STATES, "facts": FACTS}  # fmt: skip
CASES = {f"{kind}: {name}": case for kind, cases in KINDS.items() for name, case in cases.items()}


def test_the_share_that_is_drawn_is_of_the_clients_that_are_said(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("app").mkdir()
    for name, text in CENTRAL.items():
        Path(name).write_text(text)
    asked = [f"{EQUAL} --clients 50 {more}" for more in ("", "--per-round 10", "--per-round 2")]
    first, second, other = (harness("claims", *one.split()).out for one in asked)
    assert first == second != other


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_certain_is_not_known(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    files, asked, code, said = CASES[case]
    monkeypatch.chdir(tmp_path)
    for name, text in ({asked.split()[0]: files} if isinstance(files, str) else files).items():
        if "." in name:
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(text)
    finished = harness("claims", *asked.split())
    has, lacks = (said[: said.index("-")], said[said.index("-") + 1 :]) if "-" in said else (said, [])
    whole = finished.out + finished.err
    assert finished.code == code, whole
    assert [text for text in has if text not in whole] == [text for text in lacks if text in whole] == [], whole
    assert finished.err.count("\n") == (code == 2 and not finished.out)
    assert not any(line.startswith("flower:LocalDpMod  claim") for line in finished.out.splitlines())


#: As pyhocon 0.3.63 reads them; None for what is refused here: what it refuses, joins to texts, or looks up elsewhere.
HOCON: dict[str, Any] = {
    "a { b = 0.1 }, a.b = 50": {"a": {"b": 50}}, "a = 1\na = 2": {"a": 2},
    "a {b = 1}\na {c = 2}": {"a": {"b": 1, "c": 2}},
    "a.b.c {d = 1}": {"a": {"b": {"c": {"d": 1}}}}, "a.b = 1\na.c = 2": {"a": {"b": 1, "c": 2}},
    "a {b = 1}, a = 3": {"a": 3},
    "a { b = 1 } c = 2": {"a": {"b": 1}, "c": 2}, '"a" { "b" = 1 }, a.b = 5': {"a": {"b": 5}}, "a = tRue": {"a": True},
    "a = yes": {"a": "yes"}, "a = foo bar": {"a": "foo bar"}, "a = 1 2": {"a": "1 2"}, "a = .5": {"a": 0.5},
    "a = 1.": {"a": "1."},
    "a = 1e-5": {"a": 1e-5}, "a = -.5": {"a": -0.5}, "a = 01": {"a": 1}, 'a = "1"': {"a": "1"},
    "a = 0x10": {"a": "0x10"},
    "a = # x\n 3": {"a": 3}, "a\n{b = 1}": {"a": {"b": 1}}, "a = [1\n2]": {"a": [1, 2]}, "a = [1 2]": {"a": ["1 2"]},
    "a = ${b}\nb = 3": {"a": 3, "b": 3}, "a = ${b.c}\nb.c = 3": {"a": 3, "b": {"c": 3}},
    "a = 5,\n,b = 6": {"a": 5, "b": 6},
    "a = 0.1 x = 5": None, "a {b = 1} {c = 2}": None, "a = [1] b = 2": None, "a = ${x}": None, "a = ${?x}": None,
    "a += 1": None,
    "a = ${b} 3\nb = 1": None, "b {d = 1}\na = ${b}\na.d = 5": None, "a = 1\na.b = 2": None,
    "a = 1\na = ${b}\nb = 2": None,
    "{a = 1} b = 2": None, "a": None, "a..b = 1": None, "[1]": None,
}  # fmt: skip


@pytest.mark.parametrize("text", HOCON)
def test_hocon_is_read_as_pyhocon_reads_it(text: str) -> None:
    if (expected := HOCON[text]) is not None:
        assert repr(Hocon(text).document()) == repr(expected)
    else:
        with pytest.raises(ValueError, match=r"\w"):
            Hocon(text).document()


#: As PyYAML 6 reads them, but for numbers that are not decimal, which stay text here.
WORDS: dict[str, Any] = {
    "no": False, "No": False, "OFF": False, "yes": True, "on": True, "true": True, "y": "y", "nO": "nO", "'no'": "no",
    "~": None,
    "null": None, "": None, "1": 1, "-1": -1, "1_000": 1000, "1.5": 1.5, "1e-5": "1e-5", "1.0e-5": 1e-5,
    "1.0e5": "1.0e5",
    ".5": 0.5, "1.": 1.0, "010": "010", "0x10": "0x10", "1:30": "1:30", '"1"': "1", "[no, 1]": [False, 1],
    "{on: 1}": {True: 1},
}  # fmt: skip


@pytest.mark.parametrize("text", WORDS)
def test_yaml_is_read_as_pyyaml_reads_it(text: str) -> None:
    assert repr(read_yaml(f"a: {text}\n")) == repr({"a": WORDS[text]})


def test_a_key_of_json_stands_once() -> None:
    assert read_json('{"a": [{"b": 1}, {"b": 2}]}') == {"a": [{"b": 1}, {"b": 2}]}
    with pytest.raises(ValueError, match="'b' stands twice"):
        read_json('{"a": [{"b": 1, "b": 1}]}')


#: A range, whether a version below 1.14 may be installed, and whether none else may.
RANGES = {
    "": (True, False), ">=1.14": (False, False), ">1.13": (True, False), ">=1.13.9999": (True, False),
    "<1.14": (True, True),
    "<=1.14": (True, False), "==1.14": (False, False), "==1.13.*": (True, True), "~=1.13": (True, False),
    "~=1.13.0": (True, True),
    "!=1.13.1,>=1.13,<1.14": (True, True), "===1.13.1": (True, True), "<2,>=1.20": (False, False),
    "==1.14rc1": (True, True),
    ">=1.14rc1": (True, False), "<1": (True, True), "<0": (True, False), "==1.14.0.post1": (False, False),
}  # fmt: skip


@pytest.mark.parametrize("text", RANGES)
def test_a_range_may_lie_below_a_version(text: str) -> None:
    asked = asked_of("flwr", [f"flwr{text}", "other<1"])
    assert asked is not None
    older, version = asked.below("1.14")
    assert (older, version is not None) == RANGES[text]
    assert version is None or Facts(version=version).older_than("1.14")


@pytest.mark.parametrize(
    ("version", "older"), [("2", True), ("2.7rc1", True), ("2.8", False), ("2.10", False), ("3", False)]
)
def test_versions_are_ordered_as_packages_are(version: str, older: bool) -> None:
    assert Facts(version=version).older_than("2.8") == older
    with pytest.raises(UsageError, match="is no version"):
        Facts(version="2.7x").older_than("2.8")
