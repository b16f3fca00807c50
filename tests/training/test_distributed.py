"""Several processes train the same model as one: same images and draws, BatchNorm and centre of the global batch."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from prosmin import config as configs
from prosmin.training.pretrain import pretrain
from started import wait_until
from tiny_methods import METHODS, WHITENED, WHITENED_HEADS, tiny_method
from tiny_run import last_step

WORKER = str(Path(__file__).parents[1] / "support/distributed_worker.py")
SETTINGS = {"compute__precision": "64-true", "compute__accelerator": "cpu", "training__max_steps": "10"}
SETTINGS |= {"training__epochs": "2", "training__checkpoint_every": "4"}
# Convolutions in float64 are slow. Runs that are killed must be long enough to be killed.
SMALL = SETTINGS | {"views__global_size": "16", "views__local_size": "8"}
RUNS = {name: tiny_method(name, **(SETTINGS if name in ("prosmin", "ibot") else SMALL)) for name in METHODS}
RUNS["local queries"] = tiny_method("mocov3", **SMALL, views__local="2")
# Without BatchNorm, parts of a batch give the gradient of the whole.
WHOLE = {"vit": True, "heads__batchnorm": "false", **SETTINGS}
RUNS["whole batch"] = tiny_method("prosmin", **WHOLE)
RUNS["in parts"] = tiny_method("prosmin", **WHOLE, training__accumulate="4")
RUNS["identification"] = tiny_method("prosmin", **SMALL, loss__identification="0.5")
# K well below the 32 embeddings of a batch: the inverse root of a nearly singular covariance amplifies rounding.
RUNS["whitened"] = tiny_method("prosmin", **SMALL, **WHITENED, heads__dim="8")
RUNS["whitened heads"] = tiny_method("prosmin", **SMALL, **WHITENED_HEADS, heads__dim="8", heads__radius="true")
RUNS["conditional"] = tiny_method("prosmin", **SMALL, heads__condition="true", loss__identification="0.5")
RUNS["median bandwidth"] = tiny_method("prosmin", **SMALL, loss__rule="kernel", loss__estimator="ustat")
# Only the first process saves by its clock, here after every step, and so writes its rows sooner than the second.
RUNS["late lines"] = tiny_method("prosmin", **SMALL, training__checkpoint_minutes="1e-5")
# timm's BatchNorm with activation, as in most of its networks other than ResNets.
RUNS["activated BatchNorm"] = tiny_method("dino", **SMALL, backbone__name="test_efficientnet")
RUNS["late process"] = tiny_method("prosmin", **SMALL)


def torchrun(*options, runs, wait=True):
    """Two processes that train {folder: configuration}, one after another."""
    arguments = [json.dumps([str(folder), None, flat(config)]) for folder, config in runs.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options, WORKER, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    if wait:
        output = finish(process)[0]
        assert process.returncode == 0, output
    return process


def finish(*processes, seconds=240):
    """What processes print until they end; they are killed after `seconds`."""

    def kill():
        for process in processes:
            process.kill()  # agents; a stuck worker ends by itself

    limit = threading.Timer(seconds, kill)
    limit.start()
    with ThreadPoolExecutor(len(processes)) as pool:  # in parallel: one may wait until another's output is read
        outputs = list(pool.map(lambda process: process.communicate()[0], processes))
    limit.cancel()
    return outputs


def flat(config):
    """A configuration as overrides."""
    tree = configs.to_tree(config)
    return {f"{group}.{name}": value for group, fields in tree.items() for name, value in fields.items()}


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """Every run by one process."""
    root = tmp_path_factory.mktemp("single")
    for name, config in RUNS.items():
        pretrain(config, root / name)
    return root


@pytest.fixture(scope="module")
def double(tmp_path_factory):
    """Every run by two processes."""
    root = tmp_path_factory.mktemp("double")
    torchrun("--standalone", "--nproc-per-node", "2", runs={root / name: config for name, config in RUNS.items()})
    return root


def assert_close(one, other):
    """Weights, buffers and losses within 1e-5.

    float64 leaves rounding of 1e-16, which ten steps of AdamW raise to 1e-9 where a gradient is nearly zero; a wrong
    statistic or draw shows in the first digits.
    """
    first, second = load_file(one / "encoder.safetensors"), load_file(other / "encoder.safetensors")
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(second[name], first[name], rtol=1e-5, atol=1e-8, msg=lambda m, n=name: f"{n}: {m}")
    losses = [
        [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, other)
    ]
    assert len(losses[0]) == 10
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_agree_with_one(single, double, name):
    assert_close(single / name, double / name)
    if name == "in parts":
        return  # health numbers are those of the last part, which has other images
    lines = [
        [json.loads(line) for line in (root / name / "metrics.jsonl").read_text().splitlines()]
        for root in (single, double)
    ]
    health = ("target_std", "feature_rank", "scale_mean", "scale_min", "scale_max")
    for key in (*health, "target_rank", "skill", "whitened_variance"):
        one, two = ([line[key] for line in rows if key in line] for rows in lines)
        assert two == pytest.approx(one, rel=1e-5), key


def test_parts_of_a_batch_agree_with_the_whole(single, double):
    assert_close(single / "whole batch", single / "in parts")
    assert_close(single / "whole batch", double / "in parts")


def test_a_killed_worker_is_restarted_and_the_weights_are_the_same(double, tmp_path):
    run = tmp_path / "run"
    config = tiny_method("prosmin", **SETTINGS)
    process = torchrun("--standalone", "--nproc-per-node", "2", "--max-restarts", "1", runs={run: config}, wait=False)
    wait_until(lambda: last_step(run) >= 6, process)
    os.kill(workers(process.pid)[-1], signal.SIGKILL)
    output = finish(process)[0]
    assert process.returncode == 0, output
    assert "from step 4" in output or "from step 8" in output
    assert_same_weights(double / "prosmin", run)


def test_a_signal_to_one_worker_saves_and_ends_both(double, tmp_path):
    """No process ends while the first one writes: torchrun would kill the first half a minute later."""
    run = tmp_path / "slow disk"
    config = tiny_method("prosmin", **SETTINGS)
    process = torchrun("--standalone", "--nproc-per-node", "2", runs={run: config}, wait=False)
    wait_until(lambda: last_step(run) >= 2, process)
    os.kill(workers(process.pid)[-1], signal.SIGTERM)
    output = finish(process)[0]
    assert process.returncode != 0
    assert "The same command continues" in output
    assert output.count("checkpoint there when left: True") == 2
    stopped = last_step(run)
    assert (run / f"checkpoints/step-{stopped:08d}").is_dir()
    torchrun("--standalone", "--nproc-per-node", "2", runs={run: config})
    assert_same_weights(double / "prosmin", run)


def test_two_nodes(double, tmp_path):
    """Two torchrun agents with different addresses on the loopback device."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run = tmp_path / "run"
    agents = []
    for node in (1, 2):
        options = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "test"]
        options += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", f"127.0.0.{node}"]
        options += ["--rdzv-conf", f"is_host={int(node == 1)}"]
        agents.append(torchrun(*options, runs={run: tiny_method("prosmin", **SETTINGS)}, wait=False))
    outputs = finish(*agents)
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(outputs)
    # Otherwise gloo's threads may hang at exit, and an agent waits five minutes for the other's worker.
    assert [output.count("connected at the end: False") for output in outputs] == [1, 1]
    assert_same_weights(double / "prosmin", run)


def test_if_the_first_process_fails_the_others_end_with_it(double):
    run = str(double / "prosmin")
    command = [sys.executable, "-m", "prosmin", "pretrain", "--config", f"{run}/config.yaml", "--out", run]
    process = subprocess.Popen(
        [*command, "--compute.devices", "2", "--optimizer.lr", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    output = finish(process)[0]
    assert process.returncode == 1, output
    assert output.count("of another configuration") == 1
    assert "unexpected" not in output


def assert_same_weights(one, other):
    """The same processes in the same order: the same bits."""
    first, second = load_file(one / "encoder.safetensors"), load_file(other / "encoder.safetensors")
    for name in first:
        assert torch.equal(first[name], second[name]), name


def workers(agent, seconds=60):
    """The process numbers of an agent's workers, in the order they were started."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        found = [int(c) for c in children if WORKER.encode() in Path(f"/proc/{c}/cmdline").read_bytes()]
        if len(found) == 2:
            return found
        time.sleep(0.01)
    raise AssertionError("torchrun started no workers")
