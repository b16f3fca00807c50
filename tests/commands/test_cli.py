"""The command line: exit statuses and messages, no traceback, nothing half-written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import prosmin
from prosmin import config as configs
from prosmin.cli import main
from prosmin.commands import make_parser, recipes
from prosmin.config.values import split_list
from prosmin.evaluation.protocols import PROTOCOLS, protocols_of
from prosmin.models.weights import read_weights


def run(capsys, *arguments):
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("arguments", "status", "parts"),
    [
        ([], 2, ["COMMAND"]),
        (["trian"], 2, ["trian", "Did you mean pretrain?"]),
        (["foo"], 2, ["'foo'", "`prosmin --help`"]),
        (["pretrain", "--recipie", "demo"], 2, ["'--recipie'", "Did you mean --recipe?", "`prosmin pretrain --help`"]),
        (["pretrain", "-recipe", "demo"], 2, ["'-recipe'", "Did you mean --recipe?"]),
        (["pretrain", "--epochs", "5"], 2, ["'--epochs'", "Did you mean --training.epochs?"]),
        (["pretrain", "--batch-size=5"], 2, ["'--batch-size=5'", "Did you mean --training.batch_size?"]),
        (["pretrain", "--name", "dino"], 2, ["Did you mean --method.name or --backbone.name?"]),
        (["pretrain", "--method", "dino"], 2, ["'--method'", "Did you mean --method.name?"]),
        (["pretrain", "--loss", "crps"], 2, ["--loss.rule, --loss.norm, --loss.pairs, ..."]),
        (["pretrain", "--method.name", "dinov2"], 2, ["method.name", "'dinov2'", "Did you mean dino?", "prosmin,"]),
        (["pretrain", "--loss.rule", "enrgy"], 2, ["loss.rule", "'enrgy'", "Did you mean energy?", "energy, crps"]),
        (
            ["pretrain", "--views.blur", "0.5", "0.4", "0.3", "--training.epochs", "3"],
            2,
            ["'0.4'", "`--views.blur 0.5,0.4,0.3`"],
        ),
        (["pretrain", "--training.epochs", "3", "stray"], 2, ["'stray'", "`prosmin pretrain --help`"]),
        (["pretrain", "--recipe", "dmo"], 2, ["'dmo'", "Did you mean demo?", "cifar10-resnet18,"]),
        (["pretrain", "--recipe", ""], 2, ["--recipe", "empty"]),
        (["views", "--recipe="], 2, ["--recipe", "empty"]),
        (["ablate", "--recipe", "", "--over", "loss.lam=0.5", "--out", "x"], 2, ["--recipe", "empty"]),
        (["pretrain", "--data", "a:b", "--data.spec", "photos"], 2, ["--data", "'a:b'", "--data.spec", "'photos'"]),
        (
            ["ablate", "--over", "loss.lam=0.5", "--data=a:b", "--data.spec=photos", "--out", "x"],
            2,
            ["--data", "'a:b'", "--data.spec", "'photos'"],
        ),
        (["pretrain", "--data", "fodler:x", "--data.spec", "fodler:x"], 2, ["'fodler:x'"]),
        (["pretrain", "--data", "fodler:x"], 2, ["'fodler:x'", "Did you mean folder:x?"]),
        (["evaluate", "run", "--protocol", "knn"], 2, ["'--protocol'", "Did you mean --protocols?"]),
        (["evaluate", "run", "--protocols", "kn"], 2, ["'kn'", "Did you mean knn?", "knn, linear,"]),
        (["evaluate", "run", "--protocols", "knn,"], 2, ["--protocols", "'knn,'"]),
        (["evaluate", "run", "--suite", "papr"], 2, ["'papr'", "Did you mean paper?"]),
        (["evaluate", "run", "--corruptions", "fogg"], 2, ["'fogg'", "Did you mean fog?", "gauss"]),
        (
            ["embed", "run", "--data", "photos", "--out", "x.parquet", "--referense", "y"],
            2,
            ["Did you mean --reference?"],
        ),
        (["pretrain", "--recipe", "demo", "--training.epocs", "3"], 2, ["epocs", "Did you mean epochs?"]),
        (["pretrain", "--recipe", "demo", "--training.epochs"], 2, ["--training.epochs"]),
        (["pretrain", "--recipe", "demo", "--loss.lam", "1.5"], 2, ["lam", "1.5"]),
        (["pretrain", "--recipe", "demo", "--loss.lam", "0.3"], 2, ["0.3", "loss.force"]),
        (["pretrain", "--config", "nowhere.yaml"], 2, ["nowhere.yaml"]),
        (["evaluate", "nowhere"], 1, ["nowhere"]),
        (["recipes", "--training.epochs", "3"], 2, ["prosmin recipes", "'--training.epochs'"]),
        (["report", "nowhere"], 1, ["nowhere"]),
        (["views", "--out", "sheet.jpg"], 2, ["sheet.jpg", ".png"]),
        (["views", "--recipe", "demmo"], 2, ["demmo", "demo"]),
        (["views", "--recipe", "demo", "--config", "a.yaml"], 2, ["--config", "--recipe"]),
        (["views", "--pictures", "many"], 2, ["--pictures", "many"]),
        (["views", "--data", "folder:nowhere"], 2, ["nowhere"]),
        (["doctor", "--training.epochs", "3"], 2, ["prosmin doctor", "'--training.epochs'"]),
    ],
)
def test_wrong_use_is_one_message(capsys, tmp_path, monkeypatch, arguments, status, parts):
    monkeypatch.chdir(tmp_path)
    found, _, err = run(capsys, *arguments)
    assert found == status
    assert err.startswith("prosmin: ")
    assert "Traceback" not in err
    for part in parts:
        assert part in err
    assert list(tmp_path.iterdir()) == []


def test_empty_and_missing_image_folders_leave_nothing_behind(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for spec, part in (("folder:empty", "empty"), ("folder:missing", "missing"), ("ftp:somewhere", "ftp")):
        status, _, err = run(capsys, "pretrain", "--recipe", "demo", "--data", spec, "--out", "run")
        assert status == 2
        assert part in err
    status, _, err = run(capsys, "pretrain", "--recipe", "demo-vit", "--views.global_size", "30", "--out", "run")
    assert status == 2
    assert "views.global_size" in err
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]


def test_a_missing_folder_is_named_by_its_full_path_with_a_similar_one_beside_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-pictures" / "holiday").mkdir(parents=True)
    for spec, similar in (
        ("my-picture", "my-pictures"),
        ("my-picture@train", "my-pictures@train"),
        ("my-pictures/holidays", "my-pictures/holiday"),
        (f"{tmp_path}/my-picture", f"{tmp_path}/my-pictures"),
    ):
        status, _, err = run(capsys, "pretrain", "--data", f"folder:{spec}", "--out", "run")
        assert status == 2
        assert str(tmp_path / spec) in err
        assert f" Did you mean folder:{similar}?" in err
    _, _, err = run(capsys, "pretrain", "--data", "folder:nowhere/to/be/found", "--out", "run")
    assert "Did you mean" not in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_write_permission_is_an_error(capsys, tmp_path):
    tmp_path.chmod(0o500)
    status, _, err = run(capsys, "pretrain", "--recipe", "demo", "--out", str(tmp_path / "run"))
    assert status == 1
    assert str(tmp_path / "run") in err


def test_a_file_in_the_place_of_the_run_folder_is_an_error(capsys, tmp_path):
    (tmp_path / "run").write_text("mine")
    status, _, err = run(capsys, "pretrain", "--recipe", "demo", "--out", str(tmp_path / "run"))
    assert status == 1
    assert str(tmp_path / "run") in err
    assert (tmp_path / "run").read_text() == "mine"


def test_recipes_are_listed_with_their_headers(capsys):
    status, out, _ = run(capsys, "recipes")
    assert status == 0
    assert "demo: " in out


def test_help_lists_every_field_under_the_methods_that_have_it(capsys):
    with pytest.raises(SystemExit) as left:
        main(["pretrain", "--help"])
    assert left.value.code == 0
    common, *own = capsys.readouterr().out.split(", with --method.name ")
    sections = {section.partition(":\n")[0]: section for section in own}
    assert list(sections) == list(configs.METHOD_GROUPS)
    for method, section in sections.items():
        for name, default, doc in configs.describe(method):
            row = f"  --{name} (default {default})\n      {doc}\n"
            assert (row in common) != (row in section), f"{method}: {row}"
        foreign = {f"--{other}" for each in sections for other, _, _ in configs.describe(each)}
        foreign -= {f"--{name}" for name, _, _ in configs.describe(method)}
        assert not foreign & set(section.split())
    assert "--loss.lam (default 0.5)" in sections["prosmin"]
    assert "--loss.mask_ratio (default (0.1, 0.5))" in sections["ibot"]


def test_help_lists_the_values_of_a_fixed_choice(capsys):
    with pytest.raises(SystemExit):
        main(["pretrain", "--help"])
    shown = capsys.readouterr().out
    for name, choices in (
        ("loss.rule", "energy, crps, kernel"),
        ("heads.last", "learned, fixed, none, whiten"),
        ("target.start", "copy, independent"),
        ("compute.precision", "32-true, bf16-mixed, 64-true"),
        ("training.logger", "none, tensorboard, wandb, mlflow"),
        ("method.name", "prosmin, dino, ibot, mocov3"),
    ):
        line = shown.partition(f"--{name} (default ")[2].splitlines()[1]
        assert line.endswith(f"one of: {choices}"), line


def test_views_writes_a_sheet_and_one_line(capsys, tmp_path):
    out = tmp_path / "sheet.png"
    status, line, err = run(capsys, "views", "--out", str(out), "--pictures", "2", "--views.local", "3", "--step", "1")
    assert status == 0
    assert line.count("\n") == 1
    assert line.startswith(f"wrote {out}: 2 images of demo, photos, step 1, seed 0, ")
    assert err == ""
    assert out.read_bytes()[:4] == b"\x89PNG"


def test_help_does_not_wait_for_torch():
    program = """
import sys
from prosmin.cli import main
try:
    main(["--help"])
except SystemExit as left:
    sys.exit(left.code or "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pretrain" in done.stdout


def test_wrong_use_is_reported_without_torch(tmp_path):
    """Importing torch takes seconds; here it fails."""
    program = """
import sys
from prosmin.cli import main
sys.modules["torch"] = None
assert main(["pretrain", "--trainin.x", "1"]) == 2
assert main(["pretrain", "--training.epocs", "1"]) == 2
assert main(["pretrain", "--loss.lam", "0.3"]) == 2
assert main(["demo", "--views.blurr", "1"]) == 2
assert main(["pretrain", "--recipe", "dmo"]) == 2
assert main(["pretrain", "--epochs", "1"]) == 2
assert main(["pretrain", "--data", "folder:nope"]) == 2
assert main(["views", "--data", "folder:nope"]) == 2
assert main(["embed", "run", "--data", "folder:nope", "--out", "x.parquet"]) == 2
main(["pretrain", "--help"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "Did you mean --training.epochs?" in done.stderr
    assert "--loss.rule" in done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("pages", [1, 10000])  # within Python's buffer, and beyond it
def test_output_that_cannot_be_written_is_an_error(pages):
    program = f"""
import sys
from prosmin import cli
from prosmin.commands import recipes
recipes.run = lambda options, fields: print("page " * {pages})
sys.exit(cli.main(["recipes"]))
"""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("prosmin: ")
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr


def test_debug_is_in_the_help_and_shows_where_an_error_came_from(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--debug " in capsys.readouterr().out
    for arguments in (["--debug", "report", "nowhere"], ["report", "nowhere", "--debug"]):
        status, _, err = run(capsys, *arguments)
        assert status == 1
        assert err.startswith("Traceback")
        assert "\nprosmin: " in err


def test_the_module_is_the_same_command():
    done = subprocess.run([sys.executable, "-m", "prosmin", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"prosmin {prosmin.__version__}\n"


def test_errors_are_also_the_kinds_that_python_programs_catch(tmp_path):
    with pytest.raises(ValueError, match=r"training\.epochs is 'many'"):
        configs.build({"training": {"epochs": "many"}})
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_weights(tmp_path / "nowhere.pth")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        configs.read_yaml(tmp_path / "nowhere.yaml")


def test_ctrl_c_ends_with_status_130(monkeypatch, capsys):
    def interrupted(options, fields):
        raise KeyboardInterrupt

    monkeypatch.setattr(recipes, "run", interrupted)
    assert main(["recipes"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_the_end_of_another_process_is_reported(monkeypatch, capsys):
    def lost(options, fields):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:23978.")

    monkeypatch.setattr(recipes, "run", lost)
    assert main(["recipes"]) == 1
    assert "Another process" in capsys.readouterr().err


def test_a_full_gpu_is_reported_with_what_helps(monkeypatch, capsys):
    def full(options, fields):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has a capacity of 8 GiB.")

    monkeypatch.setattr(recipes, "run", full)
    assert main(["recipes"]) == 1
    message = capsys.readouterr().err
    assert "CUDA out of memory" in message
    assert "training.batch_size" in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    "words", [["pretrain", "--out=~/x"], ["views", "--out=~/x"], ["report", "~/x"], ["demo", "--out=~/x"]]
)
def test_a_tilde_is_the_home_folder(words, monkeypatch, tmp_path):
    """A shell does not replace it after `=`, and a folder named ~ tempts people to remove their home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    options, _ = make_parser().parse_known_args(words)
    assert (options.runs[0] if words[0] == "report" else options.out) == tmp_path / "x"


def test_a_comma_in_braces_does_not_separate():
    assert split_list("webdataset:{a,b}.tar,photos@ood") == ["webdataset:{a,b}.tar", "photos@ood"]


def test_the_configuration_of_a_run_needs_a_new_folder(capsys, tmp_path):
    (tmp_path / "config.yaml").write_text("{}")
    status, _, err = run(capsys, "pretrain", "--config", str(tmp_path / "config.yaml"))
    assert status == 2
    assert "--out RUN" in err


def test_evaluate_s_help_names_every_protocol(capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    text = shown.partition("NAME,... of ")[2].partition(")")[0]
    listed, _, default = text.partition(" (default: the quick ones, which are ")
    assert listed.split(", ") == list(PROTOCOLS)
    assert set(default.replace(" and a short ", ", ").split(", ")) == set(protocols_of(None))


@pytest.mark.parametrize("options", [["--recipe"], ["--config"]])
def test_the_run_folder_of_a_file_is_named_after_it(options, tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr("prosmin.training.pretrain.pretrain", lambda config, out: taken.append(out))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("data: {spec: photos}\n")
    assert main(["pretrain", *options, str(tmp_path / "mine.yaml")]) == 0
    assert taken == [Path("runs/mine")]
