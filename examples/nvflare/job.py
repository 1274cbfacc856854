"""A federation of two clients on NVFlare's simulator, one digit each, captured at the clients."""

import os
from pathlib import Path

from flare_net import Network
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from harness.capture.nvflare import CaptureFilter

FACTS = {
    "model": "flare_net:make", "image_shape": (1, 8, 8), "classes": 10, "learning_rate": 0.1, "batch_size": 1,
}  # fmt: skip

if __name__ == "__main__":
    here = Path(__file__).parent
    recipe = FedAvgRecipe(model=Network(), min_clients=2, num_rounds=1, train_script=str(here / "client.py"))
    recipe.add_client_output_filter(CaptureFilter(os.environ["CAPTURES"], FACTS), tasks=["train"])
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(here.parent / "workspace")))
