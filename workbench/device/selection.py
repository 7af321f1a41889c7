"""Which GPU is meant: CUDA's index, a UUID or its beginning, a PCI id, an entry of CUDA_VISIBLE_DEVICES.

CUDA counts the fastest GPU first, NVML by PCI bus. Where the two can differ, an index is looked up through a
UUID of a running CUDA, or refused: measuring the wrong GPU is worse than an error.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UnknownGpu, listed
from .driver import Identity

Environment = Mapping[str, str]  # variables of a process
CUDA_VARIABLES = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
_PCI = re.compile(r"^([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(\.[0-7])?$", re.IGNORECASE)


def visible(identities: Sequence[Identity], environment: Environment) -> list[str]:
    """UUIDs (and MIG entries) that CUDA_VISIBLE_DEVICES leaves, in CUDA's order; all where it is not set.

    Raises:
        UnknownGpu: GPUs of several models are counted by number, and their order is unknown.
    """
    entries = environment.get("CUDA_VISIBLE_DEVICES")
    uuids = [uuid for uuid, _, _ in identities]
    if entries is None:
        return uuids
    chosen: list[str] = []
    for entry in (part.strip() for part in entries.split(",")):
        if entry.startswith("MIG-GPU-"):  # the older form: MIG-GPU-<uuid>/<instance>/<instance>
            found = _starting_with(uuids, entry[4:].split("/")[0])
        elif entry.startswith("MIG-"):
            found = entry
        elif entry.startswith("GPU-"):
            found = _starting_with(uuids, entry)
        elif entry.lstrip("-").isdigit():
            number = int(entry)
            found = cuda_order(identities, environment)[number] if 0 <= number < len(uuids) else None
        else:
            found = None
        if found is None:
            break
        chosen.append(found)
    return chosen


def cuda_order(identities: Sequence[Identity], environment: Environment) -> list[str]:
    """UUIDs in the order in which CUDA numbers the GPUs of this machine."""
    uuids, models = [uuid for uuid, _, _ in identities], {name for _, pci, name in identities if pci}
    if environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(models) <= 1:
        return uuids
    known = _torch_uuids() if "CUDA_VISIBLE_DEVICES" not in environment else []
    if sorted(known) == sorted(uuids):
        return known
    raise UnknownGpu(f"this machine has GPUs of several models ({listed(sorted(models))}), and their CUDA "
                     "order is unknown. Set CUDA_DEVICE_ORDER=PCI_BUS_ID before CUDA starts, or name the GPU "
                     "by its UUID")


def resolve(which: int | str, identities: Sequence[Identity], env: Environment) -> str:
    """The UUID of the GPU that is meant. Raises UnknownGpu, with a list, unless just one answers."""
    text = str(which).strip()
    if text.lstrip("-").isdigit():
        known = visible(identities, env) if "CUDA_VISIBLE_DEVICES" in env else cuda_order(identities, env)
        if 0 <= int(text) < len(known):
            return known[int(text)]
        left = env.get("CUDA_VISIBLE_DEVICES")
        hidden = "" if left is None else f" (CUDA_VISIBLE_DEVICES={left})"
        raise UnknownGpu(f"GPU {text} not found; available: {listed(range(len(known)))}{hidden}")
    if _PCI.match(text):
        address = text.lower().split(".")[0]
        matches = [uuid for uuid, pci, _ in identities if pci.lower().split(".")[0].endswith(address)]
    elif text.startswith("MIG-"):
        return text
    else:
        wanted = text if text.startswith("GPU-") else f"GPU-{text}"
        matches = [uuid for uuid, _, _ in identities
                   if len(wanted) > len("GPU-") and uuid.lower().startswith(wanted.lower())]
    if len(matches) == 1:
        return matches[0]
    have = [f"{index}: {name}, {uuid}, {pci}" for index, (uuid, pci, name) in enumerate(identities)]
    problem = "not found" if not matches else f"matches {len(matches)} GPUs"
    raise UnknownGpu(f"GPU {text!r} {problem}; available: {'; '.join(have) or 'none'}")


def _starting_with(uuids: Sequence[str], prefix: str) -> str | None:
    matches = [uuid for uuid in uuids if uuid.startswith(prefix)]
    return matches[0] if len(matches) == 1 else None


def _torch_uuids() -> list[str]:
    """UUIDs in CUDA's order as a torch that already runs CUDA tells them; it is never imported for this."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return []
        return [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(torch.cuda.device_count())]
    except Exception:
        return []


def torch_uuid() -> str | None:
    """The UUID of the GPU that a running torch uses in this thread; None where it runs no CUDA."""
    with contextlib.suppress(Exception):
        uuids = _torch_uuids()
        return uuids[sys.modules["torch"].cuda.current_device()] if uuids else None
    return None


# what tells a process its number among those that were started with it on this node, and how many these are
_RANKS = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"), ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"), ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)


def local_rank(environment: Environment) -> int | None:
    """The number of this process among the ranks of its node (torchrun, accelerate, mpirun, srun); None where
    it is the only one, or that is not known.

    >>> local_rank({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}), local_rank({"SLURM_LOCALID": "0"})
    (3, None)
    """
    for rank, size in _RANKS:
        local_rank_text = environment.get(rank, "")
        ranks = re.fullmatch(r"(\d+)(\(x\d+\))?", environment.get(size, ""))  # Slurm: 4(x2) is 4 on each of 2
        if local_rank_text.isdigit() and ranks and int(ranks[1]) > 1:
            return int(local_rank_text)
    return None


# what is the same in all ranks of a job
_JOBS = (("MASTER_ADDR", "MASTER_PORT"), ("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PMIX_NAMESPACE",))


def same_job(one: Environment, other: Environment, *, one_parent: bool) -> bool:
    """Whether two environments are those of ranks of one job on this node; one process may have started both.

    >>> rank = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    >>> same_job(rank, rank | {"LOCAL_RANK": "1"}, one_parent=False), same_job({}, {}, one_parent=True)
    (True, False)
    """
    if local_rank(one) is None or local_rank(other) is None:
        return False
    return one_parent or any(
        all(one.get(name) and one.get(name) == other.get(name) for name in names) for names in _JOBS
    )


# Variables of launchers: the number of a process, how many there are, and the name of the job. torchrun's
# default name "none" does not count.
_JOB_RANKS = (
    ("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_JOB_NAMES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE", "PMI_JOBID", "MASTER_PORT")
_JOB_NODES = ("GROUP_WORLD_SIZE", "SLURM_JOB_NUM_NODES")


def rank_facts(environment: Environment) -> dict[str, Any]:
    """The place of a process in its job, from the variables of torchrun, accelerate, mpirun and srun:
    `rank`, `world_size`, `local_rank`, `restarts`, `nodes` (None if missing) and `job` (empty if missing).

    >>> facts = rank_facts({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"})
    >>> facts["rank"], facts["world_size"], facts["local_rank"], facts["job"]
    (9, 16, 1, '')
    """
    def number(name: str) -> int | None:
        return int(text) if (text := environment.get(name, "")).isdigit() else None

    pairs = [(number(rank), number(size)) for rank, size in _JOB_RANKS]
    rank, size = next(((rank, size) for rank, size in pairs if rank is not None and (size or 0) > 1),
                      (None, None))
    return {
        "rank": rank, "world_size": size, "local_rank": local_rank(environment),
        "restarts": number("TORCHELASTIC_RESTART_COUNT"),
        "nodes": next((nodes for name in _JOB_NODES if (nodes := number(name))), None),
        "job": job_name(environment),
    }


def job_name(environment: Environment) -> str:
    """The job that a process belongs to; empty where that is not known. All its ranks have the same."""
    for name in _JOB_NAMES:
        if (found := environment.get(name, "none")) != "none":
            return f"{environment.get('MASTER_ADDR', '')}:{found}" if name == "MASTER_PORT" else found
    return ""


def gpus_of_rank(
    cuda: Environment, local_rank: int | None, identities: Sequence[Identity],
    in_use: str | None = None,
) -> tuple[str, ...]:
    """The UUID (or MIG entry) of the GPU of another process of this machine; none where that is not known.

    Args:
        cuda: Its variables of `CUDA_VARIABLES`.
        local_rank: Its number on this machine.
        identities: The GPUs of this machine.
        in_use: The UUID that its torch reports; that of a MIG instance is none of a GPU.
    """
    if in_use in [uuid for uuid, _, _ in identities]:
        return (str(in_use),)
    try:
        chosen = "CUDA_VISIBLE_DEVICES" in cuda
        known = visible(identities, cuda) if chosen else cuda_order(identities, cuda)
    except UnknownGpu:
        return ()
    if len(known) > 1 and local_rank is not None and local_rank < len(known):
        return (known[local_rank],)
    return tuple(known) if len(known) == 1 else ()
