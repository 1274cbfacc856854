"""What each client trains, as in NVFlare's hello-pt: network and optimizer are there before the first round."""

import nvflare.client as flare
import torch
from hello_net import EPOCHS, Net, loader_of

if __name__ == "__main__":
    network, criterion = Net(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    flare.init()
    loader = loader_of(int(flare.get_site_name().rsplit("-", 1)[1]))
    while flare.is_running():
        network.load_state_dict(flare.receive().params)
        for _ in range(EPOCHS):
            for images, labels in loader:
                optimizer.zero_grad()
                criterion(network(images), labels).backward()
                optimizer.step()
        flare.send(flare.FLModel(params=network.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": EPOCHS * len(loader)}))
