"""What `learn_policy` writes, that it goes on where it stopped, and what its policy does in a run."""

import json
import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import graphfed
from graphfed.errors import InputError
from graphfed.files import read_tensors, write_tensors
from graphfed.methods.fedgraph.sampling_policies import PolicyFile, read_policy, write_policy
from graphfed.runtime.interrupts import Interrupted

pytest.importorskip("gymnasium", reason="learning policies needs the extra rl")
pytest.importorskip("stable_baselines3", reason="learning policies needs the extra rl")

from graphfed.methods.fedgraph import ddpg as algorithm
from graphfed.methods.fedgraph.learning_config import DDPGConfig
from graphfed.studies import policy_episodes
from graphfed.studies.policy_learning import LearnedPolicy, learn_policy

DDPG: dict[str, Any] = {
    "clients": 3,
    "rounds": 5,
    "seed": 1,
    "threads": 1,
    "settings": {"ddpg.batch": 4, "ddpg.widths": "16,8"},
}
BANDIT: dict[str, Any] = {
    "clients": 3,
    "rounds": 3,
    "threads": 1,
    "settings": {"bandit.shares": 1, "bandit.chances": "0.25,0.5,1", "reward.target": 0.5},
}


@pytest.fixture(scope="module")
def ddpg(tmp_path_factory: pytest.TempPathFactory) -> LearnedPolicy:
    return learn_policy("ddpg", **DDPG, episodes=3, out=tmp_path_factory.mktemp("learned") / "p")


@pytest.fixture(scope="module")
def bandit(tmp_path_factory: pytest.TempPathFactory) -> LearnedPolicy:
    return learn_policy("bandit", **BANDIT, out=tmp_path_factory.mktemp("learned") / "p")


def untimed(lines: Any) -> list[dict[str, Any]]:
    """Lines of episodes without what the clock says."""
    return [{k: v for k, v in line.items() if k not in ("wall_seconds", "spent")} for line in lines]


def run_with(learned: LearnedPolicy, **more: Any) -> Any:
    chosen = {"policy": learned.kind, "policy_file": str(learned.file), **more.pop("settings", {})}
    given = {"clients": learned.clients, "rounds": learned.rounds, "seed": learned.seed, **more}
    return graphfed.run("fedgraph", settings=chosen, **{"out": False, **given})


# ---- what is written ----


def test_the_folder_has_every_file_and_nothing_is_pickled(ddpg: LearnedPolicy) -> None:
    names = {path.relative_to(ddpg.folder).as_posix() for path in ddpg.folder.rglob("*") if path.is_file()}
    episodes = {f"checkpoint/episode-{number:05d}.safetensors" for number in (1, 2, 3)}
    kept = {f"checkpoint/round-{n:08d}/local.{end}" for n in (2, 3) for end in ("json", "safetensors")}
    assert names == {
        "manifest.json", "episodes.jsonl", "policy.safetensors", "returns.svg", "result.json",
        *episodes, *kept,
    }  # fmt: skip
    manifest = json.loads((ddpg.folder / "manifest.json").read_text())
    assert manifest["command"] == "graphfed.studies.policy_learning.learn_policy"
    assert manifest["seeds"] == {"run": 1, "partition": 1, "split": 1}
    assert {*manifest["hashes"]} == {"data", "split", "partition"}
    assert {"gymnasium", "stable_baselines3", "torch"} <= {*manifest["versions"]}
    assert manifest["policy_saw_test"] is False
    lines = [json.loads(line) for line in (ddpg.folder / "episodes.jsonl").read_text().splitlines()]
    assert [(line["episode"], line["actions"]) for line in lines] == [
        (1, "uniform"),
        (2, "noisy"),
        (3, "noisy"),
    ]
    assert json.loads((ddpg.folder / "result.json").read_text())["returns"] == [x["return"] for x in lines]
    assert "<svg" in (ddpg.folder / "returns.svg").read_text()


def test_lines_say_how_much_was_sampled_and_what_it_was_worth(bandit: LearnedPolicy) -> None:
    """Of constant arms this is known: all training nodes and the arm's chance, in both layers."""
    for line in bandit.episodes:
        arm, rounds = line["arm"], bandit.rounds
        assert line["kappa_share"] == arm["share"] == 1
        assert line["chance"] == pytest.approx([arm["chance"]] * 2, abs=1e-12)
        assert line["sum"] == pytest.approx(rounds * line["mean_reward"])
        assert line["accuracy"]["best"] >= line["accuracy"]["final"]
        # Between the sum and 0.99^(rounds - 1) of it, where all rewards have one sign.
        assert abs(line["return"]) < abs(line["sum"]) or line["sum"] == pytest.approx(0, abs=1e-3)
    final = bandit.final["rounds"]
    reward = bandit.reward
    for accuracy, seconds, given in zip(
        final["accuracy"], final["modelled_seconds"], final["reward"], strict=True
    ):
        by_hand = reward["omega"] ** (accuracy - reward["target"]) - reward["alpha"] * seconds
        assert given == pytest.approx(by_hand)


def test_the_first_episode_is_in_the_replay_buffer_as_the_actor_sees_it(ddpg: LearnedPolicy) -> None:
    """Its coordinates have mean 0 and root mean square 1: they are what the components were fitted on."""
    arrays, _ = read_tensors(ddpg.folder / "checkpoint" / "episode-00001.safetensors")
    seen = arrays["seen"].reshape(6, 4, -1)
    assert seen.dtype == np.float32
    assert seen[1:].mean((0, 1)) == pytest.approx(np.zeros(seen.shape[2]), abs=1e-4)
    assert (seen[1:] ** 2).mean() == pytest.approx(1, abs=1e-4)
    assert arrays["actions"].shape == (5, 3 * 3)
    assert len(arrays["rewards"]) == 5


def test_components_are_frozen_after_the_first_episode_and_fewer_where_there_are_fewer_directions(
    ddpg: LearnedPolicy, tmp_path: Path
) -> None:
    """Learning an episode more leaves the components, and all that was before, as they were. Of 5 rounds of 3
    clients there are 15 weights and their means: at most 14 directions."""
    shorter = learn_policy("ddpg", **DDPG, episodes=2, out=tmp_path / "p")
    assert untimed(shorter.episodes) == untimed(ddpg.episodes[:2])
    (long, _), (short, _) = (read_policy(each.file) for each in (ddpg, shorter))
    for name in ("pca.mean", "pca.components", "pca.scale"):
        assert torch.equal(long[name], short[name])
    assert not torch.equal(long["actor.0.weight"], short["actor.0.weight"])
    assert len(long["pca.components"]) == ddpg.details["components"] == 14


def test_the_default_target_is_what_central_reaches_with_as_many_steps(ddpg: LearnedPolicy) -> None:
    same = {"optimizer": "adam", "lr": 0.01, "local_steps": 1}
    central = graphfed.run("central", clients=3, rounds=5, seed=1, threads=1, settings=same, out=False)
    assert ddpg.reward["target"] == central.val["accuracy"]
    assert "central" in ddpg.reward["target_from"]


def test_the_episode_without_noise_is_what_a_run_with_the_policy_and_seed_does(
    ddpg: LearnedPolicy, bandit: LearnedPolicy, tmp_path: Path
) -> None:
    for learned in (ddpg, bandit):
        result = run_with(learned, out=tmp_path / learned.kind)
        lines = [json.loads(x) for x in (tmp_path / learned.kind / "metrics.jsonl").read_text().splitlines()]
        assert [line["val"]["accuracy"] for line in lines] == learned.final["rounds"]["accuracy"]
        spent = np.diff([0.0, *(line["facts"]["modelled_seconds"] for line in lines)])
        assert spent.tolist() == learned.final["rounds"]["modelled_seconds"]
        assert result.details["policy_saw_test"] == 0


# ---- going on ----


def stop_in(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """Somebody presses Ctrl-C after so many rounds."""
    real, heard = policy_episodes.Learning.after_round, []

    def after_round(self: Any) -> None:
        heard.append(1)
        self.stop_request.asked = self.stop_request.asked or len(heard) == rounds
        real(self)

    monkeypatch.setattr(policy_episodes.Learning, "after_round", after_round)


def test_learning_that_was_stopped_goes_on_to_the_same_bits(
    ddpg: LearnedPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rounds, kept in ((7, 1), (12, 2)):
        folder = tmp_path / str(rounds)
        with monkeypatch.context() as patched:
            stop_in(patched, rounds)
            with pytest.raises(Interrupted, match=f"go on with: graphfed resume {folder}"):
                learn_policy("ddpg", **DDPG, episodes=3, out=folder)
        assert len((folder / "episodes.jsonl").read_text().splitlines()) == kept
        # By the command for that, or by the same question in its folder.
        same = {**DDPG, "episodes": 3, "out": folder}
        again = graphfed.resume(folder) if kept == 1 else learn_policy("ddpg", **same)
        assert isinstance(again, LearnedPolicy)
        (tensors, about), (expected, there) = read_policy(again.file), read_policy(ddpg.file)
        assert about == there
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)
        assert untimed(again.episodes) == untimed(ddpg.episodes)
        assert again.final["rounds"] == ddpg.final["rounds"]


def test_the_policy_is_the_best_actor_of_learning_that_went_on_or_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithm, "WINDOW", 1)  # one episode shows how good it is
    asked = {**DDPG, "seed": 2}
    whole = learn_policy("ddpg", **asked, episodes=4, out=tmp_path / "whole")
    kept = whole.details["kept_episode"]
    returns = [line["return"] for line in whole.episodes]
    assert returns[kept - 1] == max(returns[1:])
    assert kept < 4
    assert f"kept: the actor after episode {kept}" in whole.summary()
    with monkeypatch.context() as patched:
        stop_in(patched, 3 * asked["rounds"] + 1)
        with pytest.raises(Interrupted):
            learn_policy("ddpg", **asked, episodes=4, out=tmp_path / "stopped")
    again = graphfed.resume(tmp_path / "stopped")
    assert isinstance(again, LearnedPolicy)
    shorter = learn_policy("ddpg", **asked, episodes=kept, out=tmp_path / "shorter")
    expected, _ = read_policy(whole.file)
    for learned in (again, shorter):
        tensors, _ = read_policy(learned.file)
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_a_search_that_was_stopped_goes_on_from_the_returns_it_has(
    bandit: LearnedPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_in(patched, 8)
        with pytest.raises(Interrupted):
            learn_policy("bandit", **BANDIT, out=tmp_path / "p")
    assert len((tmp_path / "p" / "episodes.jsonl").read_text().splitlines()) == 2
    again = graphfed.resume(tmp_path / "p")
    assert isinstance(again, LearnedPolicy)
    assert again.details == bandit.details
    assert untimed(again.episodes) == untimed(bandit.episodes)


@pytest.mark.parametrize("lines", [0, 2])
def test_what_counts_is_the_checkpoint_and_not_the_lines_next_to_it(
    lines: int, ddpg: LearnedPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the machine had gone down between two files, or somebody had changed one."""
    with monkeypatch.context() as patched:
        stop_in(patched, 7)
        with pytest.raises(Interrupted):
            learn_policy("ddpg", **DDPG, episodes=3, out=tmp_path / "p")
    (tmp_path / "p" / "episodes.jsonl").write_text(json.dumps({"episode": 1, "return": 0.0}) * lines)
    again = graphfed.resume(tmp_path / "p")
    assert isinstance(again, LearnedPolicy)
    assert untimed(again.episodes) == untimed(ddpg.episodes)
    text = (tmp_path / "p" / "episodes.jsonl").read_text()
    assert untimed(json.loads(line) for line in text.splitlines()) == untimed(ddpg.episodes)


def test_what_is_stopped_in_its_first_episode_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_in(monkeypatch, 3)
    with pytest.raises(Interrupted):
        learn_policy("ddpg", **DDPG, episodes=3, out=tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_a_folder_that_has_ended_is_read_and_another_question_is_refused(ddpg: LearnedPolicy) -> None:
    again = learn_policy("ddpg", **DDPG, episodes=3, out=ddpg.folder)
    assert again.to_json() == ddpg.to_json()
    assert isinstance(graphfed.resume(ddpg.folder), LearnedPolicy)
    for other in ({"episodes": 4}, {"episodes": 3, "seed": 2}):
        with pytest.raises(InputError, match="holds something else"):
            learn_policy("ddpg", **{**DDPG, **other}, out=ddpg.folder)
    with pytest.raises(InputError, match="holds a sampling policy and no run"):
        graphfed.predict(ddpg.folder)


def damaged(learned: LearnedPolicy, folder: Path, *files: str) -> Path:
    """A copy that has not ended, in which some files of checkpoints are truncated."""
    shutil.copytree(learned.folder, folder)
    (folder / "result.json").unlink()
    for file in files:
        path = folder / "checkpoint" / file
        path.write_bytes(path.read_bytes()[:100])
    return folder


@pytest.mark.parametrize("back", [2, 0])
def test_learning_goes_on_from_the_newest_whole_checkpoint_to_the_same_bits(
    back: int, ddpg: LearnedPolicy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["round-00000003/local.safetensors", "round-00000002/local.json"]
    folder = damaged(ddpg, tmp_path / "p", *files[: 1 if back else 2])
    again = graphfed.resume(folder)
    printed = capsys.readouterr().err
    assert "round-00000003: local.safetensors is damaged" in printed
    assert f"going back to {f'round {back}' if back else 'the beginning'}" in printed
    assert json.loads((folder / "manifest.json").read_text())["resumed"][0]["round"] == (back or None)
    assert untimed(again.episodes) == untimed(ddpg.episodes)
    (tensors, _), (expected, _) = read_policy(again.file), read_policy(ddpg.file)
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_a_search_goes_on_from_the_checkpoint_before_a_damaged_one(
    bandit: LearnedPolicy, tmp_path: Path
) -> None:
    newest = f"round-{len(bandit.episodes):08d}/local.json"
    again = graphfed.resume(damaged(bandit, tmp_path / "p", newest))
    assert again.details == bandit.details
    assert untimed(again.episodes) == untimed(bandit.episodes)


def test_damaged_transitions_are_refused(ddpg: LearnedPolicy, tmp_path: Path) -> None:
    folder = damaged(ddpg, tmp_path / "p")
    path = folder / "checkpoint" / "episode-00001.safetensors"
    for content in (path.read_bytes()[:100], pickle.dumps({"episode": 1}), b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"episode-00001\.safetensors cannot be used"):
            graphfed.resume(folder)


# ---- the settings of the learner ----


def test_the_learner_is_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alg. 4: the discount, the rate of the target networks, the learning rate, and updates on batches from a
    buffer no longer than asked for."""
    import gymnasium

    class Still(gymnasium.Env):  # type: ignore[misc]
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    config = DDPGConfig(gamma=0.5, phi=0.125, lr=0.003, batch=3, buffer=9, updates=2, widths="6,4")
    learner = algorithm.make_learner(Still(), config, 100, 0, "cpu")
    assert (learner.gamma, learner.tau, learner.learning_rate, learner.batch_size) == (0.5, 0.125, 0.003, 3)
    assert learner.replay_buffer.buffer_size == 9
    assert algorithm.make_learner(Still(), config, 5, 0, "cpu").replay_buffer.buffer_size == 5
    widths = [layer.out_features for layer in learner.actor.mu if hasattr(layer, "out_features")]
    assert widths == [6, 4, 1]
    updates: list[dict[str, int]] = []
    monkeypatch.setattr(learner, "train", lambda **options: updates.append(options))
    seen, action = np.zeros(2, dtype=np.float32), np.zeros(1, dtype=np.float32)
    for _ in range(4):
        algorithm.learn_transition(learner, config, seen, action, 1.0, seen, False)
    assert updates == [{"gradient_steps": 2, "batch_size": 3}] * 2


def test_memory_and_files_of_learning_are_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3 clients, 2 layers and 4 components: states of 16 numbers, actions of 9; 5 times 10 rounds."""
    federation = SimpleNamespace(
        fed=SimpleNamespace(num_clients=3),
        config=SimpleNamespace(layers=2),
        clients=SimpleNamespace(size=100),
    )
    sizes: Any = (federation, DDPGConfig(components=4, buffer=30, widths="8"), 5, 10)
    asked: list[Any] = []
    monkeypatch.setattr(algorithm, "check_memory", lambda *sizes: asked.append(sizes[:3]))
    algorithm.check_fits(*sizes)
    assert asked == [(10 * 4, 100, 4 * 30 * (2 * 16 + 9 + 3))]
    networks = (25 + 1) * 8 + (8 + 1) * 9
    transitions, projection = 5 * 10 * (16 + 9 + 2), 4 * 100
    assert algorithm.bytes_of_files(*sizes) == 4 * transitions + 3 * (4 * 4 * 2 * networks + 8 * projection)


# ---- the reward on the test part ----


@pytest.mark.slow
def test_a_policy_that_was_rewarded_on_the_test_part_says_so_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**BANDIT["settings"], "reward.on": "test"}
    learned = learn_policy("bandit", **{**BANDIT, "settings": settings}, progress=True, out=tmp_path / "p")
    assert "the reward is on the test part" in capsys.readouterr().err
    assert "test accuracy" in learned.summary()
    assert "no test of it" in learned.summary()
    assert json.loads((learned.folder / "manifest.json").read_text())["policy_saw_test"] is True
    assert read_policy(learned.file)[1].saw_test
    warnings = []
    for more in ({}, {"placement": "one-at-a-time"}, {"runtime": "processes"}):
        result = run_with(learned, progress=True, **more)
        assert result.details["policy_saw_test"] == 1
        printed = capsys.readouterr().err.splitlines()
        (line,) = (line for line in printed if "learned with a reward on test nodes" in line)
        warnings.append(line)
    assert len({*warnings}) == 1


def test_other_policies_have_nothing_to_say_of_the_test_part(
    bandit: LearnedPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with(bandit, progress=True)
    assert "reward on test nodes" not in capsys.readouterr().err
    fixed = graphfed.run("fedgraph", clients=3, rounds=1, out=False)
    assert "policy_saw_test" not in fixed.details


# ---- the file ----


def test_a_policy_is_refused_where_it_was_learned_for_something_else(
    ddpg: LearnedPolicy, bandit: LearnedPolicy
) -> None:
    with pytest.raises(InputError, match="learned for clients 3, and this run has 4"):
        run_with(ddpg, clients=4)
    with pytest.raises(InputError, match="learned for weights of the model"):
        run_with(ddpg, settings={"hidden": 8})
    with pytest.raises(InputError, match="learned for layers 2, and this run has 3"):
        run_with(bandit, settings={"layers": 3})
    with pytest.raises(InputError, match="learned for policy bandit, and this run has ddpg"):
        run_with(bandit, settings={"policy": "ddpg"})
    # What sees nothing and says the same to all fits any number of clients.
    assert run_with(bandit, clients=4, rounds=1).clients == 4


def test_a_tampered_file_is_refused_in_one_line(ddpg: LearnedPolicy, tmp_path: Path) -> None:
    tensors, described = read_policy(ddpg.file)
    path = tmp_path / "bad.safetensors"

    def of(policy: dict[str, torch.Tensor], about: PolicyFile = described) -> None:
        write_policy(path, policy, about)

    whole = ddpg.file.read_bytes()
    endless = {**tensors, "actor.0.bias": tensors["actor.0.bias"] * float("nan")}
    about = {"format": "graphfed sampling policy 1"}
    strange = json.dumps({"kind": "ddpg", "clients": "many", "layers": 2, "weights": 9, "learned": []})
    makes: list[Any] = [
        lambda: path.write_bytes(whole[: len(whole) // 2]),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(pickle.dumps(tensors)),
        lambda: torch.save(tensors, path),
        lambda: of({k: t for k, t in tensors.items() if k != "actor.1.bias"}),
        lambda: of({**tensors, "actor.0.weight": tensors["actor.0.weight"][:, :-1]}),
        lambda: of({**tensors, "pca.components": tensors["pca.components"][:, :-1]}),
        lambda: of(endless),
        lambda: of(tensors, PolicyFile("ddpg", 4, 2, described.weights, {})),
        lambda: of(tensors, PolicyFile("random", 3, 2, described.weights, {})),
        lambda: write_tensors(path, {"action": np.zeros(3)}, {**about, "policy": strange}),
        lambda: write_tensors(path, {"action": np.zeros(3)}, {**about, "policy": "[1]"}),
        lambda: write_tensors(path, {"action": np.zeros(3)}),
    ]
    for make in makes:
        make()
        with pytest.raises(InputError, match="is not a policy file"):
            read_policy(path)


# ---- refusals ----


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        ("ddgp", {}, "did you mean 'ddpg'"),
        ("full", {}, "choose one of: bandit, ddpg"),
        ("ddpg", {"episodes": 1}, "expected at least 2"),
        ("ddpg", {"episodes": "many"}, "expected a whole number"),
        ("ddpg", {"rounds": 1}, "expected at least 2"),
        ("bandit", {"episodes": 19}, "expected at least 30"),
        ("ddpg", {"settings": {"ddpg.learning_rate": 1}}, "there is no setting 'ddpg.learning_rate'"),
        ("ddpg", {"settings": {"ddpg.gama": 1}}, "did you mean 'ddpg.gamma'"),
        ("ddpg", {"settings": {"ddpg.gamma": 1}}, "ddpg.gamma=1 cannot be used: expected a number"),
        ("ddpg", {"settings": {"ddpg.widths": "512,"}}, "expected whole numbers with commas between"),
        ("ddpg", {"settings": {"ddpg.widths": "0"}}, "expected widths from 1"),
        ("ddpg", {"settings": {"ddpg.lr": True}}, "expected a number"),
        ("ddpg", {"settings": {"bandit.shares": 1}}, "bandit.shares cannot be used"),
        ("bandit", {"settings": {"bandit.chances": "0.5,0.5"}}, "expected different numbers"),
        ("bandit", {"settings": {"bandit.chances": "0.01"}}, "expected different numbers from 0.05"),
        ("bandit", {"settings": {"bandit.shares": "0"}}, "expected different numbers above 0"),
        ("ddpg", {"settings": {"reward.target": 90.16}}, "reward.target=90.16 cannot be used: expected"),
        ("ddpg", {"settings": {"reward.on": "tst"}}, "did you mean 'test'"),
        ("ddpg", {"settings": {"reward.omega": 1}}, "more than 1"),
        ("ddpg", {"settings": {"lrr": 1}}, "did you mean 'lr'"),
        (
            "ddpg",
            {"settings": {"policy": "full"}},
            "policy has no use where a policy is learned",
        ),
        ("ddpg", {"settings": {"patience": 3}}, "patience has no use"),
        (
            "ddpg",
            {"settings": {"aggregation": "secure"}},
            "aggregation=secure cannot be used with policy=ddpg",
        ),
        ("ddpg", {"settings": {"backbone": "gat"}}, "fedgraph has no setting 'backbone'"),
        ("ddpg", {"data": "roads"}, "is for forecasting"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    kind: str, more: dict[str, Any], message: str, own_folder: Path
) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        learn_policy(kind, **more)
    assert not list(own_folder.iterdir())


@pytest.mark.parametrize("package", ["gymnasium", "stable_baselines3"])
def test_without_the_extra_a_line_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=r"pip install '\.\[rl\]'"):
        learn_policy("ddpg")


def test_what_does_not_fit_into_memory_is_refused_before_the_first_round(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphfed.methods.fedgraph import principal_components

    monkeypatch.setattr(principal_components, "memory_bytes", lambda: (1_000_000, 2_000_000))
    with pytest.raises(InputError, match="use fewer rounds or clients"):
        learn_policy("ddpg", **DDPG, episodes=2)
    assert not list(own_folder.iterdir())
