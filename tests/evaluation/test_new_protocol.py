"""A protocol is one record: a new one runs, is printed and gets its table in the report."""

from prosmin.cli import main
from prosmin.evaluation.protocol import Protocol, Result
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.report import write_report
from prosmin.training.pretrain import pretrain


def run(context):
    right = context.features("test").argmax(1) == context.labels("test")
    return Result(metrics={"top1": right.double().mean().item(), "mine": 2.0}, settings={})


PROTOCOL = Protocol(name="argmax", title="Largest feature", run=run, short="argmax", columns=("top1",))


def test_a_new_protocol_from_the_command_line_to_the_report(tmp_path, tiny, monkeypatch, capsys):
    monkeypatch.setitem(PROTOCOLS, "argmax", PROTOCOL)
    folder = pretrain(tiny(training__max_steps="1"), tmp_path / "run")
    assert main(["evaluate", str(folder), "--protocols", "argmax"]) == 0
    printed = capsys.readouterr()
    assert "argmax top-1 %" in printed.out
    assert "[1/1] argmax" in printed.err
    page = write_report([folder], tmp_path / "page.html").read_text()
    assert "Largest feature" in page
    assert "top-1 accuracy" in page
    assert "mine" in page  # a metric without a row in the table keeps its name
    assert main(["evaluate", str(folder), "--protocols", "argmax", "--ood", "photos@ood"]) == 2
