"""A run folder belongs to one run of one configuration."""

import pytest

from prosmin.errors import ProsminError
from prosmin.training.pretrain import pretrain
from prosmin.training.run_folder import RunFolder


def test_another_configuration_is_refused_with_the_difference(unfinished, tiny):
    with pytest.raises(ProsminError, match=r"optimizer\.lr: 0\.002 -> 0\.5\n.*--out.* to continue that run"):
        pretrain(tiny(optimizer__lr="0.5"), unfinished)


def test_another_configuration_of_a_finished_run_can_start_from_its_weights(finished, tiny, train, capsys):
    with pytest.raises(ProsminError, match=r"training\.epochs: 1 -> 2\n.* --out") as refused:
        pretrain(tiny(training__epochs="2"), finished)
    assert "continue" not in str(refused.value)
    weights = str(finished / "encoder.safetensors")
    assert f"`--backbone.weights {weights}`" in str(refused.value)
    train(training__epochs="2", training__max_steps="1", backbone__weights=weights)
    assert "encoder.safetensors" in capsys.readouterr().out
    with pytest.raises(ProsminError, match=r"with --out\.$"):  # its weights fit no other network
        pretrain(tiny(backbone__name="resnet14_cifar"), finished)


def test_a_folder_of_other_files_is_left_alone(tmp_path, tiny):
    for i in range(7):
        (tmp_path / f"{i}.jpg").write_bytes(b"mine")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ProsminError, match=r"0\.jpg, 1\.jpg, 2\.jpg, 3\.jpg, 4\.jpg and 2 more\. .*--out"):
        pretrain(tiny(), tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    for path in before:
        path.unlink()
    (tmp_path / "checkpoints" / "step-00000002").mkdir(parents=True)
    with pytest.raises(ProsminError, match=r"checkpoints .*config\.yaml"):
        pretrain(tiny(), tmp_path)


def test_a_folder_with_only_hidden_files_and_logs_is_used(tmp_path, tiny):
    (tmp_path / ".gitkeep").write_text("")
    (tmp_path / "slurm-17.out").write_text("")
    pretrain(tiny(training__max_steps="1"), tmp_path)
    assert (tmp_path / "encoder.json").is_file()


def test_two_processes_do_not_train_in_one_folder(tmp_path, tiny):
    folder = RunFolder(tmp_path / "run")
    folder.open(tiny())
    with pytest.raises(ProsminError, match=r"Another process .*run"):
        pretrain(tiny(), tmp_path / "run")
    folder.close()
    pretrain(tiny(training__max_steps="1"), tmp_path / "run")
