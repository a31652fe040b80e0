"""Settings of a training: the papers', words that become settings, and bad ones."""

import json

import pytest
from short_runs import DOMINOES
from typer.testing import CliRunner

from samphire import records
from samphire.cli import app
from samphire.train import Config, appendix_b, fit, parse


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lr"], "settings are written key=value, got 'lr'"),
        (["lrr=1"], "no setting is named 'lrr'; did you mean 'lr'?"),
        (["rule=sma"], "no rule is named 'sma'; did you mean 'sam'?"),
        (["rule=sam", "rule.radius=1"], "sam has no setting rule.radius; its settings: none"),
        (["rule=looksam", "rho=0", "rule.kk=1"], "looksam has no setting rule.kk; its settings: k, alpha"),
        (["rule=sam", "rule.rho=1"], "sam has no setting rule.rho; write rho="),
        (["rule=ssam_d", "rule.every=often"], "every"),
        (["rule=entropy_sgd", "rho=0.1"], "entropy_sgd has no radius, got rho=0.1; leave it out"),
        (["rule=imb_sam"], "imb_sam perturbs for rare classes, got none; name them, as in rule.tail=1"),
        (["rho=0.1"], "sgd has no rho and no settings, got rho=0.1; name a rule, as in rule=sam"),
        (["rule=sam", "rho=-1"], "rho must be a finite number >= 0, got -1"),
        (["rule=sam", "rho=true"], "rho must be a finite number >= 0, got True"),
        (["augment=sometimes"], "augment must be true or false, got 'sometimes'"),
        (["seed=0.5"], "seed must be a whole number >= 0, got 0.5"),
        (["model=resnt18"], "no network is named 'resnt18'; did you mean 'resnet18'?"),
        (["model=3"], "no network is named 3"),
        (["probe_at=true"], r"probe_at: an epoch must be a whole number in \[1, 20\], got True"),
        (["method=jtt", "method.times=0.5"], "method.times must be a whole number >= 1, got 0.5"),
        (["method=dfr", "method.resamples=0"], "method.resamples must be a whole number >= 1, got 0"),
        (["method=group_dro", "method.eta=x"], "method.eta must be a finite number >= 0, got 'x'"),
        (["method=dro"], "no method is named 'dro'; did you mean"),
        (["method=jtt", "method.lambda=3"], "jtt has no setting 'lambda'; its settings: epochs, times"),
        (["base=adm"], "no base is named 'adm'; did you mean 'adam'?"),
        (["base=adam", "base.beta=1"], "adam has no setting base.beta; its settings: betas, eps"),
        (["base=adam", "base.betas=0.9"], r"base.betas must be two numbers in \[0, 1\), got 0.9; write for instance"),
        (["base=muon", "base.ns_steps=0"], "base.ns_steps must be a whole number >= 1, got 0"),
        (["base.nesterov=2"], "base.nesterov must be true or false, got 2"),
        (["base=adam", "momentum=0.5"], "momentum is SGD's, got 0.5 for adam; write base.betas="),
        (["method=swa", "method.epochs=30"], r"method.epochs of swa must be a whole number in \[1, 20\], got 30"),
        (["epochs=0"], "epochs must be a whole number >= 1, got 0"),
        (["lr=fast"], "lr must be a finite number > 0, got 'fast'"),
        (["momentum=1"], r"momentum must be a finite number in \[0, 1\), got 1"),
        (["schedule=step"], "schedule must be 'cosine' or 'constant', got 'step'"),
        (["probe_at=0"], r"probe_at: an epoch must be a whole number in \[1, 20\], got 0"),
        (["keep=30"], r"keep: an epoch must be a whole number in \[0, 20\], got 30"),
        (["target=photo"], "target must be a domain for sets with domains only, got 'photo'; leave it out"),
    ],
)
def test_bad_settings_are_one_sentence(words, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        parse("cifar-mnist", words)
    assert "\n" not in str(error.value)


def test_sets_with_domains_need_a_target():
    with pytest.raises(ValueError, match="got None; name one, as in target=photo"):
        parse("pacs", [])
    assert parse("pacs", ["target=photo", "model=efficientnet_lite0"]).target == "photo"
    with pytest.raises(ValueError, match="no domain is named 'scetch'; did you mean 'sketch'"):
        parse("pacs", ["target=scetch"])


def test_words_become_settings():
    assert parse("cifar-mnist", ["rule=imb_sam", "rule.tail=1"]).rule_settings == (("tail", (1,)),)
    assert parse("waterbirds", ["augment=no"]).augment is False
    assert parse("cifar-mnist", ["base=adam", "base.betas=0.8,0.9"]).base_settings == (("betas", (0.8, 0.9)),)
    assert parse("cifar-mnist", ["rule=m_sharpness"]).optimizer_rule(steps=1).m == 16
    assert parse("cifar-mnist", ["rule=ae_sam"]).optimizer_rule(steps=70).steps == 70


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("gpu", "device must be one of torch's, such as cpu, cuda or cuda:1, got 'gpu'"),
        ("meta", "torch cannot compute on device 'meta' here; leave it out"),
        ("cuda:99", "torch cannot compute on device 'cuda:99' here"),
        ("hpu", "torch cannot compute on device 'hpu' here"),
    ],
)
def test_bad_devices_are_one_sentence(root, tmp_path, device, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit(DOMINOES, root, tmp_path, device=device)


def test_json_of_the_command_is_json(root, tmp_path):
    words = ["fmnist-mnist", "model=short_runs:small", "rule=entropy_sgd", "epochs=1", "batch=50", "resamples=0"]
    result = CliRunner().invoke(app, ["train", *words, "--root", str(root), "--out", str(tmp_path), "--json"])
    (row,) = (json.loads(line, parse_constant=pytest.fail) for line in result.stdout.splitlines())
    assert row["rho"] is None


def test_a_finished_run_is_printed_where_its_picture_cannot_be_written(root, tmp_path):
    words = ["train", "fmnist-mnist", "model=short_runs:small", "epochs=1", "batch=50", "resamples=0"]
    command = [*words, "--root", str(root), "--out", str(tmp_path)]
    first = CliRunner().invoke(app, command)
    (picture,) = tmp_path.glob("*/curves.png")
    picture.unlink()
    (picture / "in the way").mkdir(parents=True)
    second = CliRunner().invoke(app, command)
    assert second.exit_code == 0
    assert second.stdout == first.stdout
    assert f"samphire: cannot write {picture}: Is a directory" in second.stderr


def test_the_command_prints_its_settings(root):
    result = CliRunner().invoke(app, ["train", "waterbirds", "method=jtt", "rule=looksam", "rule.k=3", "--settings"])
    assert result.exit_code == 0
    for words in ("batch 128", "epochs 100", "weight_decay 0.0001", "method.times 50", "rule.k 3"):
        name, value = words.split()
        assert any(name in line and value in line for line in result.stdout.splitlines()), words


def test_settings_added_later_leave_the_keys_of_stored_runs_alone():
    config = appendix_b("cifar-mnist", lr=0.01, resamples=0, seed=10)
    assert records.key(config) == "d34ca712118e7e2f"


def test_the_paper_s_settings():
    for name in ("cifar-mnist", "fmnist-mnist"):
        config = appendix_b(name)
        assert (config.epochs, config.batch, config.momentum, config.weight_decay) == (20, 100, 0.9, 0.0)
        assert (config.schedule, config.augment, config.model) == ("cosine", False, "small_cnn")
    birds, faces = appendix_b("waterbirds"), appendix_b("celeba")
    assert (birds.epochs, birds.batch, birds.size, birds.weight_decay, birds.augment) == (100, 128, 96, 1e-4, True)
    assert (faces.epochs, faces.batch, faces.size, faces.weight_decay, faces.augment) == (20, 128, 64, 1e-4, False)
    assert isinstance(birds, Config)
