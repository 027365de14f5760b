"""What a process recorded by rocprofv3 says about itself: machine, GPUs, names of kinds and operations, rank.

Command lines and environments may hold secrets: a rank is looked for in them, and nothing else is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from traceanalyzer.readers.base import Facts
from traceanalyzer.readers.kineto_facts import integer

GPU: Final = "GPU"
_TYPES: Final = {1: "CPU", 2: GPU}
_RANK_OPTION: Final = re.compile(r"--(?:global[-_])?rank(?:=(\d{1,7}))?\Z")
_LOCAL_RANK_OPTION: Final = re.compile(r"--local[-_]rank(?:=(\d{1,7}))?\Z")
RANK_VARIABLES: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Environment variables that say a process's rank, in the order in which they are believed."""
WORLD_VARIABLES: Final = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


@dataclass(frozen=True)
class Agent:
    """A processor of the machine, as HSA numbers them."""

    handle: int
    """How the records of this process name it."""
    kind: str
    """'GPU', 'CPU' or what else there is."""
    ordinal: int | None
    """Index among the agents of its kind."""
    product: str | None
    facts: dict[str, Any] = field(default_factory=dict)
    """What tells this agent from others: architecture, uuid, location."""
    visible: bool = True
    """Whether the process could use it through HIP."""

    @property
    def location(self) -> int | None:
        """Where on the PCI bus it is; the same for all processes of a machine."""
        return integer(self.facts.get("location_id"))


@dataclass
class Process:
    """What a process says about itself."""

    pid: int | None = None
    host: str | None = None
    init_ns: int | None = None
    fini_ns: int | None = None
    agents: list[Agent] = field(default_factory=list)
    rank: int | None = None
    rank_source: str | None = None
    local_rank: int | None = None
    world_size: int | None = None

    @property
    def visible_gpus(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.kind == GPU and agent.visible]

    def device_of(self) -> dict[int, int]:
        """Return GPU ordinals by handle; handles beyond 63 bits mean 'none'."""
        gpus = [a for a in self.agents if a.kind == GPU and a.ordinal is not None and a.handle < 2**63]
        return {a.handle: a.ordinal for a in gpus if a.ordinal is not None}


def process_of(metadata: object, agents: object) -> Process:
    """Return what `metadata` and `agents` of a process's JSON say; odd types are passed over, never guessed at."""
    meta = metadata if isinstance(metadata, dict) else {}
    node = meta.get("node")
    host = node.get("hostname") if isinstance(node, dict) else None
    process = Process(
        pid=integer(meta.get("pid")),
        host=host if isinstance(host, str) and host else None,
        init_ns=integer(meta.get("init_time")),
        fini_ns=integer(meta.get("fini_time")),
        agents=[_agent(a) for a in agents if isinstance(a, dict)] if isinstance(agents, list) else [],
    )
    command = meta.get("command")
    if isinstance(command, list):
        rank_from_command(process, [word for word in command if isinstance(word, str)])
    return process


def _agent(record: dict[str, Any]) -> Agent:
    identity = record.get("id")
    handle = integer(identity.get("handle") if isinstance(identity, dict) else identity, 0, 2**64)
    number = record.get("type")
    kind = _TYPES.get(number, str(number)) if isinstance(number, int) else str(number)
    visibility = record.get("runtime_visibility")
    product = record.get("product_name")
    keys = ("name", "gfx_target_version", "location_id", "domain", "gpu_id", "hive_id", "node_id", "logical_node_id")
    facts = {key: record[key] for key in (*keys, "logical_node_type_id", "cu_count", "num_xcc") if key in record}
    if uuid := _uuid(record.get("uuid")):
        facts["uuid"] = uuid
    return Agent(
        handle=-1 if handle is None else handle,
        kind=kind,
        ordinal=integer(record.get("logical_node_type_id"), 0, 2**31),
        product=product if isinstance(product, str) and product else None,
        facts=facts,
        visible=not isinstance(visibility, dict) or visibility.get("hip") != 0,
    )


def _uuid(value: object) -> str | None:
    """Return a uuid, recorded byte by byte, as hex digits."""
    parts = value.get("bytes") if isinstance(value, dict) else None
    if not isinstance(parts, dict):
        return value if isinstance(value, str) else None
    try:
        return bytes(parts[f"value{n}"] for n in range(16)).hex()
    except (KeyError, TypeError, ValueError):
        return None


def rank_from_command(process: Process, words: Iterable[str]) -> None:
    """Look for a rank among the words of a command line."""
    words = list(words)
    for word, following in zip(words, [*words[1:], ""], strict=True):
        for option, is_local in ((_RANK_OPTION, False), (_LOCAL_RANK_OPTION, True)):
            if (match := option.match(word)) and (text := match.group(1) or following).isdigit():
                if is_local:
                    process.local_rank = integer(text, 0, 2**31)
                elif process.rank is None:
                    process.rank, process.rank_source = integer(text, 0, 2**31), "command line"


def rank_from_environment(process: Process, environment: Mapping[str, object]) -> None:
    """Look for the rank and the number of ranks among a process's environment variables."""
    for name in RANK_VARIABLES:
        if (rank := integer(environment.get(name), 0, 2**31)) is not None:
            process.rank, process.rank_source = rank, f"environment ({name})"
            break
    for name in WORLD_VARIABLES:
        if (size := integer(environment.get(name), 0, 2**31)) is not None:
            process.world_size = size
            break


def fill_facts(facts: Facts, process: Process) -> None:
    """Fill `facts` from what the process says, before its records were read."""
    facts.pid, facts.host = process.pid, process.host
    facts.clock_domain = "boot"
    facts.rank, facts.rank_source, facts.world_size = process.rank, process.rank_source, process.world_size
    gpus = process.visible_gpus
    facts.device_name = next((gpu.product for gpu in gpus if gpu.product), None)
    if sum(agent.kind == GPU for agent in process.agents) == 1:
        facts.only_gpu_location = next(agent.location for agent in process.agents if agent.kind == GPU)
    if process.local_rank is not None:
        facts.guessed_rank, facts.guess_source = process.local_rank, "guess: local rank of the command line"
    elif len(gpus) == 1:
        facts.guessed_rank, facts.guess_source = gpus[0].ordinal, "guess: index of its only visible GPU"


def guess_from_devices(facts: Facts, process: Process, devices: set[int]) -> None:
    """Guess the rank from the GPUs that the process used, where nothing better is known."""
    if len(devices) == 1 and facts.guessed_rank is None:
        facts.guessed_rank, facts.guess_source = next(iter(devices)), "guess: index of the only GPU it used"
    products = {agent.ordinal: agent.product for agent in process.agents if agent.kind == GPU}
    used = [products[device] for device in sorted(devices) if products.get(device)]
    if used:
        facts.device_name = used[0]
