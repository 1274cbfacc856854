"""Images and table rows with labels: bundled, from the data root, own .npz files, and the victims drawn from them.

Nothing is downloaded unless asked (``fetch_dataset``), and nothing from outside is ever unpickled.
"""

from harness.datasets import (  # noqa: F401  (imported so that they register)
    acs_income,
    adult,
    cifar10,
    logistic,
    mnist,
    notes,
    retina,
    samples,
    scikit_learn,
)
from harness.datasets.catalogue import DATASETS, dataset_status, default_model, fetch_dataset
from harness.datasets.load import Victims, data_root, dataset_name, load_dataset, select_victims
from harness.datasets.public import choose_public, divide
from harness.datasets.record import Dataset

__all__ = [
    "DATASETS",
    "Dataset",
    "Victims",
    "choose_public",
    "data_root",
    "dataset_name",
    "dataset_status",
    "default_model",
    "divide",
    "fetch_dataset",
    "load_dataset",
    "select_victims",
]
