"""One batch of texts by the public code of DAGER, unchanged; text_peers.py calls this in DAGER's own environment.

    python dager_worker.py CHECKOUT FOLDER TRIES < BATCH.json

CHECKOUT is a clone of github.com/insait-institute/dager-gradient-inversion, FOLDER one in which bert-base-uncased is a
folder with the network: the code takes no other name. From BATCH.json come texts, labels and the
file of the gradients by the queries of each layer. The last line printed is what came back, in token numbers; seconds
are of the processor, those of the search through texts apart.

What does not run as it is shipped is named here, and fixed around it, not in it: ``load_metric`` of attack.py fetches
ROUGE from the network and left the library ``datasets`` at 3.0; and line 222 of utils/models.py takes the tenth
layer's gradient, which a network of six layers does not have (IndexError).
"""

import json
import os
import sys
import time
import types

CHECKOUT, FOLDER, TRIES = sys.argv[1:4]
sys.path.insert(0, CHECKOUT)
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_TOKEN": "none"}

import torch  # noqa: E402
import transformers  # noqa: E402, F401  (looks for the real library ``datasets``)
from rouge_score.rouge_scorer import RougeScorer  # noqa: E402


class Metric:
    """What attack.py asks of ROUGE to pair texts."""

    def compute(self, predictions: list[str], references: list[str]) -> dict[str, types.SimpleNamespace]:
        pairs = zip(references, predictions, strict=True)
        values = [self.scorer.score(*pair)["rouge1"].fmeasure for pair in pairs]
        return {"rouge1": types.SimpleNamespace(mid=types.SimpleNamespace(fmeasure=sum(values) / len(values)))}

    scorer = RougeScorer(["rouge1"])


def main() -> None:
    given = json.load(sys.stdin)
    library = types.ModuleType("datasets")
    library.load_metric = library.load_dataset = None  # type: ignore[attr-defined]
    sys.modules["datasets"] = library
    os.chdir(FOLDER)
    size = len(given["texts"])
    # As scripts/bert.sh has it, but for the device, and for fewer tries.
    told = "--dataset cola --split val --n_inputs 1 --l1_filter maxB --l2_filter non-overlap --task seq_class"
    sys.argv = ["attack.py", *told.split(), "--model_path", "bert-base-uncased", "--device", "cpu"]
    sys.argv += ["--batch_size", str(size), "--maxC", TRIES]
    attack = __import__("attack")
    wrapper = attack.ModelWrapper(attack.args)
    layers = wrapper.model.config.num_hidden_layers
    wrapper.layer_ids = wrapper.layer_ids[:layers]
    everything: list[torch.Tensor | None] = [None] * len(list(wrapper.model.parameters()))
    for place, gradient in zip(wrapper.layer_ids, torch.load(given["gradients"], weights_only=True), strict=True):
        everything[place] = gradient
    wrapper.compute_grads = lambda batch, labels: everything
    wrapper.tokenizer.decode = lambda ids: " ".join(str(int(one)) for one in ids)  # texts stay token numbers
    searched, search = [], attack.filter_encoder

    def timed(*given: object) -> object:
        begun = time.process_time()
        try:
            return search(*given)
        finally:
            searched.append(time.process_time() - begun)

    attack.filter_encoder = timed
    begun, said = time.process_time(), {}
    try:
        made, _ = attack.reconstruct(
            attack.args, torch.device("cpu"), (given["texts"], torch.tensor([given["labels"]])), Metric(), wrapper
        )
        said["texts"] = [[int(one) for one in text.split()] for text in made]
    except Exception as error:  # whatever their code raises is its result
        last = error.__traceback__
        while last and last.tb_next:
            last = last.tb_next
        where = f"{os.path.basename(last.tb_frame.f_code.co_filename)}:{last.tb_lineno}" if last else "?"
        said |= {"texts": [], "error": f"{type(error).__name__} at {where}: {error}"}
    said |= {"seconds": time.process_time() - begun, "search": sum(searched), "lengths": len(searched)}
    print("\n" + json.dumps(said))


if __name__ == "__main__":
    main()
