"""MLflow: rows, configuration, runs that continue; with a stand-in, and with MLflow itself where it is installed."""

import json
import sys
import types
from collections import namedtuple

import pytest

from prosmin.errors import ProsminError
from tiny_run import VOLATILE, metrics


class UnknownRunError(Exception):
    """What MLflow raises for a run that it does not have."""

    error_code = "RESOURCE_DOES_NOT_EXIST"


class StandIn:
    """MLflow through its documented client. One object is the server and all its clients."""

    Metric = namedtuple("Metric", "key value timestamp step")
    Param = namedtuple("Param", "key value")

    def __init__(self):
        self.runs, self.experiments = {}, {}
        self.fails = set()  # names of methods that raise

    def __call__(self):
        return self

    def _asked(self, method):
        if method in self.fails:
            raise ConnectionError("connection refused\nand more")

    def get_experiment_by_name(self, name):
        self._asked("get_experiment_by_name")
        return types.SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name):
        return self.experiments.setdefault(name, f"number of {name}")

    def create_run(self, experiment_id, run_name):
        number = f"run{len(self.runs)}"
        self.runs[number] = types.SimpleNamespace(
            experiment=experiment_id, name=run_name, status="RUNNING", rows=[], params={}
        )
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=number))

    def log_batch(self, run_id, metrics=(), params=()):
        self._asked("log_batch" if metrics else "params")
        assert len(metrics) <= 1000
        assert len(params) <= 100
        self.runs[run_id].rows += metrics
        self.runs[run_id].params |= dict(params)

    def get_metric_history(self, run_id, key):
        return [row for row in self.runs[run_id].rows if row.key == key]

    def update_run(self, run_id, status):
        if run_id not in self.runs:
            raise UnknownRunError(f"no run {run_id}")
        self.runs[run_id].status = status

    def set_terminated(self, run_id, status):
        self._asked("set_terminated")
        self.runs[run_id].status = status

    def losses(self, run_id):
        return [(row.step, row.value) for row in self.runs[run_id].rows if row.key == "loss"]


@pytest.fixture
def server(monkeypatch):
    server = StandIn()
    module, entities = types.ModuleType("mlflow"), types.ModuleType("mlflow.entities")
    module.__spec__ = types.SimpleNamespace(name="mlflow")
    module.MlflowClient, entities.Metric, entities.Param = server, StandIn.Metric, StandIn.Param
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return server


def logged(run):
    return [(row["step"], row["loss"]) for row in metrics(run)]


def test_rows_and_configuration(train, server):
    run = train("my run", training__logger="mlflow", training__max_steps="2")
    (sent,) = server.runs.values()
    assert (sent.experiment, sent.name, sent.status) == ("number of prosmin", "my run", "FINISHED")
    assert server.losses("run0") == logged(run)
    assert {row.key for row in sent.rows} == set().union(*metrics(run)) - {"step"} | VOLATILE
    assert sent.params["training.max_steps"] == "2"
    assert sent.params["training.knn_every"] == "null"
    assert sent.params["training.logger"] == "mlflow"


def test_the_experiment_of_the_environment(train, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    server.experiments["mine"] = "7"
    train(training__logger="mlflow", training__max_steps="1")
    assert server.runs["run0"].experiment == "7"


def test_a_resumed_run_continues_and_repeats_no_step(train, server, infinite_loss):
    fields = {"training__logger": "mlflow", "training__checkpoint_every": "3"}
    infinite_loss(step=5, images=1)  # counted from 0
    with pytest.raises(ProsminError, match=r"Step 6 .*not finite"):
        train(**fields)
    assert server.runs["run0"].status == "FAILED"
    assert [step for step, _ in server.losses("run0")] == [1, 2, 3, 4, 5]
    infinite_loss(step=-1, images=0)
    run = train(**fields)  # from step 3
    assert list(server.runs) == ["run0"]
    assert server.runs["run0"].status == "FINISHED"
    assert server.losses("run0") == logged(run)


def test_a_run_that_the_server_does_not_have_starts_again(train, server, capsys):
    train(training__logger="mlflow", training__max_steps="2")
    server.runs = {"other": server.runs["run0"]}
    run = train(training__logger="mlflow", training__max_steps="4")
    assert "does not have the run run0" in capsys.readouterr().err
    assert [step for step, _ in server.losses("run1")] == [1, 2, 3, 4]  # with the rows that the lost run had
    assert json.loads((run / "mlflow.json").read_text()) == {"run_id": "run1"}


def test_rows_of_a_start_without_a_server_are_sent_by_the_next(train, server, capsys):
    train(training__logger="mlflow", training__max_steps="2")
    server.fails = {"log_batch"}
    train(training__logger="mlflow", training__max_steps="4")
    assert "MLflow does not answer" in capsys.readouterr().err
    server.fails = set()
    run = train(training__logger="mlflow", training__max_steps="6")
    assert server.losses("run0") == logged(run)


@pytest.mark.parametrize("method", ["get_experiment_by_name", "params"])
def test_a_server_that_cannot_be_reached_at_the_start(train, server, method, tmp_path, capsys):
    server.fails = {method, "set_terminated"}
    with pytest.raises(ProsminError, match=r"connection refused\. Check MLFLOW_TRACKING_URI"):
        train(training__logger="mlflow")
    assert "warning" not in capsys.readouterr().err
    assert not (tmp_path / "run/mlflow.json").exists()


def test_rows_that_could_not_be_sent_are_sent_at_the_end(train, server, monkeypatch, capsys):
    send, tries = StandIn.log_batch, []

    def fail_once(self, run_id, metrics=(), params=()):
        if metrics:
            tries.append(len(metrics))
            if len(tries) == 2:
                raise ConnectionError("connection refused")
        send(self, run_id, metrics, params)

    monkeypatch.setattr(StandIn, "log_batch", fail_once)
    run = train(training__logger="mlflow")
    assert len(tries) == 3  # a row, one that fails, and all others at the end
    assert server.losses("run0") == logged(run)
    assert capsys.readouterr().err.count("connection refused") == 1


def test_a_server_that_vanishes_does_not_stop_the_training(train, server, capsys):
    server.fails = {"log_batch", "set_terminated"}
    run = train(training__logger="mlflow")
    assert (run / "encoder.safetensors").is_file()
    assert "metrics.jsonl" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")  # of MLflow and its database
def test_mlflow_itself(train, infinite_loss, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    infinite_loss(step=4, images=1)
    with pytest.raises(ProsminError, match="not finite"):
        train(training__logger="mlflow")
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("prosmin").experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "FAILED")
    infinite_loss(step=-1, images=0)
    run = train(training__logger="mlflow")
    (found,) = client.search_runs([found.info.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["training.batch_size"] == "32"
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [(each.step, each.value) for each in history] == logged(run)
