"""The help of a command with many options: the ten that people need first, then the others by what they are about."""

from typing import Any

from typer.core import TyperCommand

#: The groups of help in their order, each with the names of its options.
GROUPS: dict[str, tuple[str, ...]] = {
    "The first ten": (
        "preset", "defense", "attack", "dataset", "model", "surface", "victims", "out", "resume", "as_json",
    ),
    "What is judged": (
        "defense_arg", "tap", "batch_size", "distinct_labels", "shared_weights", "clients", "clients_per_round",
        "rounds", "steps_per_round", "sampling_rate", "learning_rate", "local_steps", "optimizer", "epochs",
        "client_examples", "sent_as", "batch_norm", "round", "rounds_seen", "observations", "training", "weights",
        "server_state", "variates", "seed",
    ),
    "Attackers": ("attack_arg", "adversary", "prior", "labels", "update_model", "all_members"),
    "Data": ("data_root", "config"),
    "Running": (
        "device", "jobs", "threads", "chunk", "shard", "cluster", "cluster_arg", "engine", "dtype",
    ),
    "Output": ("output", "pictures"),
}  # fmt: skip
_REST = "Help"


class Grouped(TyperCommand):
    """A command whose help has a section for each of the groups that it has options of."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the sections; what is in no group, as the option for help, comes last."""
        records = {one.name: found for one in self.get_params(ctx) if (found := one.get_help_record(ctx)) is not None}
        for title, names in [*GROUPS.items(), (_REST, tuple(set(records) - grouped()))]:
            if found := [records[name] for name in names if name in records]:
                with formatter.section(title):
                    formatter.write_dl(found)


def grouped() -> set[str]:
    """Every option that has a group."""
    return {name for names in GROUPS.values() for name in names}
