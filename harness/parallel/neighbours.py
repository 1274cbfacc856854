"""How many workers of a run share a node's memory, where a cluster has placed them.

Nobody says how many there are; there are at most as many as the node has room for.
"""

import os
from types import ModuleType

from harness.base.limits import granted, share_memory


def share_node(ray: ModuleType, tasks: int) -> None:
    """Within a task of Ray: shares the node's memory with those of all ``tasks`` that fit beside it."""
    own = ray.get_runtime_context()
    (node,) = (known for known in ray.nodes() if known["NodeID"] == own.get_node_id())
    taken = {name: amount for name, amount in own.get_assigned_resources().items() if amount}
    room = min((int(node["Resources"].get(name, 0) // amount) for name, amount in taken.items()), default=tasks)
    beside = max(1, min(tasks, room))
    share_memory(beside, min(beside, int(1 // taken["GPU"]) or 1) if "GPU" in taken else None)


def share_slurm_node(jobs: int) -> None:
    """Within a job: shares the node's memory with those of all ``jobs`` that fit beside it, unless it has its own."""
    if os.environ.get("SUBMITIT_EXECUTOR") == "local":  # all of them are on this machine
        share_memory(jobs)
        return
    cores = os.environ.get("SLURM_CPUS_ON_NODE", "")
    room = (os.cpu_count() or 1) // int(cores) if cores.isdecimal() and int(cores) else 1
    share_memory(1 if granted() is not None else max(1, min(jobs, room)), on_device=1)
