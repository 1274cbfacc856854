"""Flower's quickstart-pytorch with one line more, the client app's: simulated clients, captured where they train."""

import os
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from quickstart import Net, loader_of, size_of, train

from harness.capture.flower import capture_mod

# Flower starts apps in places of its own.
FOLDER, CLIENTS = Path(os.environ.get("CAPTURES", ".")), int(os.environ.get("CLIENTS", "2"))

client_app = ClientApp(mods=[capture_mod(FOLDER / "quickstart-captures")])
server_app = ServerApp()


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    network = Net()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader = loader_of(int(context.node_config["partition-id"]))
    loss = train(network, loader, float(message.content["config"]["lr"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": size_of(loader)})
    return Message(RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    start, config = ArrayRecord(Net().state_dict()), ConfigRecord({"lr": 0.01})
    FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=start, train_config=config, num_rounds=1)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=resources)
