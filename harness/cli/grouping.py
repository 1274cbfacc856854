"""The help of a command with many options: those that people need first, then the others by what they are about."""

from typing import Any

from typer.core import TyperCommand

_RUNNING = ("device", "jobs", "threads", "chunk", "shard", "cluster", "cluster_arg", "engine", "dtype")
_OUTPUT = ("out", "output", "pictures", "pictures_as", "track", "as_json", "resume")
_OF_TRAINING = (
    "rounds", "local_steps", "batch_size", "examples", "algorithm", "split", "level", "client_sampling",
    "batch_sampling", "learning_rate", "server_learning_rate", "local_momentum", "server_momentum", "optimizer",
    "server_optimizer", "epochs",
)  # fmt: skip

Groups = dict[str, tuple[str, ...]]

#: Of each command with many options: its groups in their order, each with the names of its options.
GROUPS: dict[str, Groups] = {
    "evaluate": {
        "The first ten": (
            "preset", "defense", "attack", "dataset", "model", "surface", "victims", "out", "resume", "as_json",
        ),
        "What is judged": (
            "defense_arg", "train_only", "adapter_rank", "tap", "batch_size", "distinct_labels", "shared_weights",
            "clients", "clients_per_round", "rounds", "steps_per_round", "sampling_rate", "learning_rate",
            "local_steps", "optimizer", "epochs", "client_examples", "sent_as", "batch_norm", "round", "rounds_seen",
            "same_data", "observations", "training", "weights", "server_state", "variates", "seed",
        ),
        "Attackers": ("attack_arg", "adversary", "prior", "labels", "update_model", "all_members"),
        "Data": ("data_root", "config"),
        "Running": _RUNNING,
        "Output": _OUTPUT,
    },
    "judge": {
        "What is judged": ("captures", "truth", "checks_only", "plan"),
        "Attackers": ("attack", "prior", "update_model", "rounds_seen", "same_data"),
        "Who was in the training": ("members", "non_members", "model", "weights", "references"),
        "Who sent what": ("sites",),
        "Data": ("data_root",),
        "Running": ("budget", *_RUNNING),
        "Output": _OUTPUT,
    },
    "train": {
        "What is trained": (
            "defense", "defense_arg", "dataset", "model", "train_only", "adapter_rank", "clients", "clients_per_round",
            "seed",
        ),
        "Training": _OF_TRAINING,
        "Privacy": ("target_epsilon", "budget", "delta", "bayesian"),
        "Data": ("data_root",),
        "Running": _RUNNING,
        "Output": ("keep", "evaluate_every", *_OUTPUT),
    },
    "frontier": {
        "What is judged": (
            "defense", "defense_arg", "sigma", "dataset", "model", "surface", "tap", "victims", "attacked", "full",
            "delta", "seed", "bits",
        ),
        "Training": ("clients", "clients_per_round", *_OF_TRAINING),
        "Attackers": ("attack",),
        "Data": ("data_root",),
        "Running": _RUNNING,
        "Output": _OUTPUT,
    },
    "account": {
        "Noise and steps": (
            "sigma", "sampling_rate", "steps", "delta", "layers", "clients", "sampler", "adjacency", "mechanism",
            "bits", "dimensions",
        ),
        "Accountants": ("accountant", "conversion", "orders", "formula", "e0", "exact"),
        "Noise that changes": ("sigma_schedule", "sigma_end", "rounds"),
        "What is asked": ("target_epsilon", "stop", "epsilon"),
        "A training run instead": ("training", "direction"),
        "Output": _OUTPUT,
    },
    "audit": {
        "What is audited": (
            "defense", "defense_arg", "view", "claimed_epsilon", "delta", "confidence", "noise_scale",
        ),
        "Training": (
            "rounds", "steps", "sampling_rate", "clients_per_round", "colluders", "learning_rate", "model", "seed",
        ),
        "Attackers": ("planted", "canary", "canaries", "others", "guesses"),
        "Data": ("dataset", "data_root"),
        "Running": _RUNNING,
        "Output": _OUTPUT,
    },
    "claims": {
        "What is read": ("sources", "defense", "arg", "framework_version"),
        "The federation": ("rounds", "clients", "per_round", "participations", "weights", "delta"),
        "One client": (
            "examples", "batch_size", "local_epochs", "local_steps", "drop_last", "optimizer", "server_optimizer",
        ),
        "The model": ("model", "parameters", "scalars", "buffers"),
        "Output": ("unit", "relation", "fail_on", *_OUTPUT),
    },
}  # fmt: skip
_REST = "Help"


class Grouped(TyperCommand):
    """A command whose help has a section for each of the groups that it has options of."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the sections; what is in no group, as the option for help, comes last."""
        records = {one.name: found for one in self.get_params(ctx) if (found := one.get_help_record(ctx)) is not None}
        groups, left = GROUPS[self.name or ""], dict(records)
        for title, names in [*groups.items(), (_REST, tuple(records))]:
            found = [left.pop(name) for name in names if name in left]
            if found:
                with formatter.section(title):
                    formatter.write_dl(found)
