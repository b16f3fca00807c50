"""How many processes a run started from here would have, by what torchrun or SLURM left in the environment."""

from collections.abc import Mapping

from prosmin.doctor.finding import Finding

TOLD = (
    "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES", "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
)  # fmt: skip


def is_first(environment: Mapping[str, str]) -> bool:
    """Whether this is the process that speaks, of those started together."""
    return environment.get("RANK", environment.get("SLURM_PROCID", "0")) == "0"


def examine_processes(environment: Mapping[str, str]) -> list[Finding]:
    """The number of processes, as `prosmin pretrain` counts them, and the variables it follows from."""
    from prosmin.config import ComputeConfig
    from prosmin.training.launch import layout

    seen = [f"{name}={environment[name]}" for name in TOLD if name in environment]
    told = Finding("ok", "environment", ", ".join(seen) if seen else "no variables of torchrun or SLURM")
    return [_count(*layout(ComputeConfig(), dict(environment)), environment), told]


def _count(local: int, nodes: int, environment: Mapping[str, str]) -> Finding:
    count = f"{local * nodes}" + (f" ({local} on each of {nodes} nodes)" if nodes > 1 else "")
    if "TORCHELASTIC_RUN_ID" in environment:
        return Finding("ok", "processes", f"{count}, started by torchrun")
    if local * nodes > 1:
        if "SLURM_NTASKS_PER_NODE" not in environment:  # lightning-fabric asks for it by name
            do = f"Submit with --nodes={nodes} --ntasks-per-node={local}: lightning-fabric refuses --ntasks alone"
            return Finding("note", "processes", f"{count}, by SLURM's --ntasks", do)
        return Finding("ok", "processes", f"{count}, started by SLURM")
    tasks = environment.get("SLURM_NTASKS", "1")
    if tasks != "1" and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        says = f"1, though SLURM has {tasks} tasks for this job: srun did not start this process"
        return Finding("note", "processes", says, "Start it with srun to use them all")
    if environment.get("WORLD_SIZE", "1") != "1" or "LOCAL_RANK" in environment:
        says = "1, but WORLD_SIZE or LOCAL_RANK is set and torchrun did not start this process"
        return Finding("note", "processes", says, "Unset them, or start with torchrun")
    return Finding("ok", "processes", "1; --compute.devices N, torchrun or srun start N, one a device")
