"""A job like NVFlare's hello-pt with one filter more: two rounds, simulated, captured at the clients."""

import os
from pathlib import Path

from hello_net import Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from harness.capture.nvflare import CaptureFilter

CLIENTS = int(os.environ.get("CLIENTS", "2"))

if __name__ == "__main__":
    here = Path(__file__).parent
    recipe = FedAvgRecipe(model=Net(), min_clients=CLIENTS, num_rounds=2, train_script=str(here / "hello_client.py"))
    recipe.add_client_output_filter(CaptureFilter(os.environ.get("CAPTURES", "captures")), tasks=["train"])
    recipe.execute(SimEnv(num_clients=CLIENTS, workspace_root=str(here.parent / "workspace")))
