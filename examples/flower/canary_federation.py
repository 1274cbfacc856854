"""The federation of ``federation.py`` with canary clients, which test the noise that Flower's server adds; simulated.

``NOISE`` is the noise multiplier (4 where it is not named; 0 is no noise). Afterwards ``harness audit --planted
canary-captures --seed 1234 --canaries 30 --guesses 20`` bounds the epsilon of the rounds.
"""

import os

from federation import CLASSES, CLIENTS, FACTS, FOLDER, SHAPE, train
from flower_net import make
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

from harness.audit.planted import canary_mod
from harness.capture.flower import capture_mod

# The captured models are those before rounds: the last one shows what the rounds before it did.
SEED, CANARIES, CLIP, AUDITED = 1234, 30, 0.5, 3
EVERYONE = CANARIES + CLIENTS
NOISE = float(os.environ.get("NOISE", "4"))

canary = canary_mod(SEED, CANARIES, CLIP)
client_app = ClientApp(mods=[capture_mod(FOLDER / "canary-captures", **FACTS), canary])
client_app.train()(train)
server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    everyone = FedAvg(fraction_evaluate=0.0, min_train_nodes=EVERYONE, min_available_nodes=EVERYONE)
    strategy = DifferentialPrivacyServerSideFixedClipping(everyone, NOISE, CLIP, EVERYONE)
    start = ArrayRecord(make(SHAPE, CLASSES).state_dict())
    strategy.start(grid=grid, initial_arrays=start, num_rounds=AUDITED + 1)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=EVERYONE, backend_config=resources)
