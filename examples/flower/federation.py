"""A federation of four clients on Flower, one digit each, captured on both sides; run as it is, it is simulated."""

import os
from pathlib import Path

import torch
from flower_net import make
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits

from harness.capture.flower import capture_mod, capturing

SHAPE, CLASSES, CLIENTS = (1, 8, 8), 10, 4
FACTS = {
    "model": "flower_net:make", "image_shape": SHAPE, "classes": CLASSES, "learning_rate": 0.1, "batch_size": 1,
}  # fmt: skip

# Flower starts apps in places of its own.
FOLDER = Path(os.environ.get("CAPTURES", "."))

client_app = ClientApp(mods=[capture_mod(FOLDER / "client-captures", **FACTS)])
server_app = ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    network = make(SHAPE, CLASSES)
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    pixels, labels = load_digits(return_X_y=True)
    own = slice(int(context.node_config["partition-id"]), int(context.node_config["partition-id"]) + 1)
    images = torch.tensor(pixels[own] / 16, dtype=torch.float32).reshape(-1, *SHAPE)
    torch.nn.functional.cross_entropy(network(images), torch.tensor(labels[own])).backward()
    torch.optim.SGD(network.parameters(), lr=0.1).step()
    arrays, metrics = ArrayRecord(network.state_dict()), MetricRecord({"num-examples": 1})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    start = ArrayRecord(make(SHAPE, CLASSES).state_dict())
    capturing(strategy, FOLDER / "server-captures", **FACTS).start(grid=grid, initial_arrays=start, num_rounds=1)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=resources)
