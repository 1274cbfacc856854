"""Images with labels: the bundled samples, the data root's datasets, own .npz files, and the victims drawn from them.

Nothing is downloaded unless asked (``fetch_dataset``), and nothing from outside is ever unpickled.
"""

from harness.datasets import cifar10, digits, lfw, mnist, samples  # noqa: F401  (imported so that they register)
from harness.datasets.catalogue import DATASETS, DatasetStatus, dataset_status
from harness.datasets.fetch import fetch_dataset
from harness.datasets.load import data_root, load_dataset
from harness.datasets.record import Dataset
from harness.datasets.victims import Victims, select_victims

__all__ = [
    "DATASETS",
    "Dataset",
    "DatasetStatus",
    "Victims",
    "data_root",
    "dataset_status",
    "fetch_dataset",
    "load_dataset",
    "select_victims",
]
