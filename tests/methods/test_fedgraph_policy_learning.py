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
from graphfed.methods.fedgraph.learned_policy import PolicyFile, read_policy, write_policy
from graphfed.runtime.interrupts import Interrupted

pytest.importorskip("gymnasium", reason="learning policies needs the extra rl")
pytest.importorskip("stable_baselines3", reason="learning policies needs the extra rl")

from graphfed.methods.fedgraph.policy import ddpg as algorithm
from graphfed.methods.fedgraph.policy import learning
from graphfed.methods.fedgraph.policy.learning import LearnedPolicy, learn_policy
from graphfed.methods.fedgraph.policy.settings import DDPGConfig

ASKED: dict[str, Any] = {
    "clients": 3,
    "episodes": 3,
    "rounds": 5,
    "seed": 1,
    "threads": 1,
    "settings": {"ddpg.batch": 4, "ddpg.widths": "16,8"},
}


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> LearnedPolicy:
    return learn_policy(**ASKED, out=tmp_path_factory.mktemp("learned") / "p")


def untimed(lines: Any) -> list[dict[str, Any]]:
    """Lines of episodes without what the clock says."""
    return [{k: v for k, v in line.items() if k not in ("wall_seconds", "spent")} for line in lines]


def run_with(learned: LearnedPolicy, **more: Any) -> Any:
    chosen = {"policy": "ddpg", "policy_file": str(learned.file), **more.pop("settings", {})}
    given = {"clients": learned.clients, "rounds": learned.rounds, "seed": learned.seed, **more}
    return graphfed.run("fedgraph", settings=chosen, **{"out": False, **given})


# ---- what is written ----


def test_the_folder_has_every_file_and_nothing_is_pickled(learned: LearnedPolicy) -> None:
    names = {
        path.relative_to(learned.folder).as_posix() for path in learned.folder.rglob("*") if path.is_file()
    }
    episodes = {f"checkpoint/episode-{number:05d}.safetensors" for number in (1, 2, 3)}
    kept = {f"checkpoint/round-{n:08d}/local.{end}" for n in (2, 3) for end in ("json", "safetensors")}
    assert names == {
        "manifest.json", "episodes.jsonl", "policy.safetensors", "returns.svg", "result.json",
        *episodes, *kept,
    }  # fmt: skip
    manifest = json.loads((learned.folder / "manifest.json").read_text())
    assert manifest["command"] == "graphfed.methods.fedgraph.policy.learning.learn_policy"
    assert manifest["seeds"] == {"run": 1, "partition": 1, "split": 1}
    assert {*manifest["hashes"]} == {"data", "split", "partition"}
    assert {"gymnasium", "stable_baselines3", "torch"} <= {*manifest["versions"]}
    assert manifest["policy_saw_test"] is False
    lines = [json.loads(line) for line in (learned.folder / "episodes.jsonl").read_text().splitlines()]
    assert [(line["episode"], line["actions"]) for line in lines] == [
        (1, "uniform"),
        (2, "noisy"),
        (3, "noisy"),
    ]
    assert json.loads((learned.folder / "result.json").read_text())["returns"] == [x["return"] for x in lines]
    assert "<svg" in (learned.folder / "returns.svg").read_text()


def test_lines_say_how_much_was_sampled_and_what_it_was_worth(learned: LearnedPolicy) -> None:
    gamma = 0.99
    for line in (*learned.episodes, learned.final):
        assert 0 < line["kappa_share"] <= 1
        assert all(0.05 <= chance <= 1 for chance in line["chance"])
        assert len(line["chance"]) == 2
        assert line["sum"] == pytest.approx(learned.rounds * line["mean_reward"])
        assert line["accuracy"]["best"] >= line["accuracy"]["final"]
        assert line["wall_seconds"] == pytest.approx(sum(line["spent"].values()))
    rounds, reward = learned.final["rounds"], learned.reward
    for accuracy, seconds, given in zip(
        rounds["accuracy"], rounds["modelled_seconds"], rounds["reward"], strict=True
    ):
        by_hand = reward["omega"] ** (accuracy - reward["target"]) - reward["alpha"] * seconds
        assert given == pytest.approx(by_hand)
    discounted = [gamma**t * given for t, given in enumerate(rounds["reward"])]
    assert learned.final["return"] == pytest.approx(sum(discounted))


def test_the_first_episode_is_in_the_replay_buffer_as_the_actor_sees_it(learned: LearnedPolicy) -> None:
    """Its coordinates have mean 0 and root mean square 1: they are what the components were fitted on."""
    arrays, _ = read_tensors(learned.folder / "checkpoint" / "episode-00001.safetensors")
    seen = arrays["observations"].reshape(6, 4, -1)
    assert seen.dtype == np.float32
    assert seen[1:].mean((0, 1)) == pytest.approx(np.zeros(seen.shape[2]), abs=1e-4)
    assert (seen[1:] ** 2).mean() == pytest.approx(1, abs=1e-4)
    assert arrays["actions"].shape == (5, 3 * 3)
    assert len(arrays["rewards"]) == 5


def test_components_are_frozen_after_the_first_episode_and_fewer_where_there_are_fewer_directions(
    learned: LearnedPolicy, tmp_path: Path
) -> None:
    """Learning an episode more leaves the components, and all that was before, as they were. Of 5 rounds of 3
    clients there are 15 weights and their means: at most 14 directions."""
    shorter = learn_policy(**{**ASKED, "episodes": 2}, out=tmp_path / "p")
    assert untimed(shorter.episodes) == untimed(learned.episodes[:2])
    (long, _), (short, _) = (read_policy(each.file) for each in (learned, shorter))
    for name in ("pca.mean", "pca.components", "pca.scale"):
        assert torch.equal(long[name], short[name])
    assert not torch.equal(long["actor.0.weight"], short["actor.0.weight"])
    assert len(long["pca.components"]) == learned.details["components"] == 14


def test_the_default_target_is_what_central_reaches_with_as_many_steps(learned: LearnedPolicy) -> None:
    same = {"optimizer": "adam", "lr": 0.01, "local_steps": 1}
    central = graphfed.run("central", clients=3, rounds=5, seed=1, threads=1, settings=same, out=False)
    assert learned.reward["target"] == central.val["accuracy"]
    assert "central" in learned.reward["target_from"]


def test_the_episode_without_noise_is_what_a_run_with_the_policy_and_seed_does(
    learned: LearnedPolicy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_with(learned, progress=True, out=tmp_path / "run")
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["val"]["accuracy"] for line in lines] == learned.final["rounds"]["accuracy"]
    spent = np.diff([0.0, *(line["facts"]["modelled_seconds"] for line in lines)])
    assert spent.tolist() == learned.final["rounds"]["modelled_seconds"]
    assert result.details["policy_saw_test"] == 0
    assert "reward on test nodes" not in capsys.readouterr().err


# ---- going on ----


def stop_in(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """Somebody presses Ctrl-C after so many rounds."""
    real, heard = learning.Learning.after_round, []

    def after_round(self: Any) -> None:
        heard.append(1)
        self.stop_request.asked = self.stop_request.asked or len(heard) == rounds
        real(self)

    monkeypatch.setattr(learning.Learning, "after_round", after_round)


def test_learning_that_was_stopped_goes_on_to_the_same_bits(
    learned: LearnedPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rounds, kept in ((7, 1), (12, 2)):
        folder = tmp_path / str(rounds)
        with monkeypatch.context() as patched:
            stop_in(patched, rounds)
            with pytest.raises(Interrupted, match=f"go on with: graphfed resume {folder}"):
                learn_policy(**ASKED, out=folder)
        assert len((folder / "episodes.jsonl").read_text().splitlines()) == kept
        # By the command for that, or by the same question in its folder.
        again = graphfed.resume(folder) if kept == 1 else learn_policy(**ASKED, out=folder)
        assert isinstance(again, LearnedPolicy)
        (tensors, about), (expected, there) = read_policy(again.file), read_policy(learned.file)
        assert about == there
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)
        assert untimed(again.episodes) == untimed(learned.episodes)
        assert again.final["rounds"] == learned.final["rounds"]


def test_the_policy_is_the_best_actor_of_learning_that_went_on_or_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithm, "WINDOW", 1)  # one episode shows how good it is
    asked = {**ASKED, "episodes": 4, "seed": 2}
    whole = learn_policy(**asked, out=tmp_path / "whole")
    kept = whole.details["kept_episode"]
    returns = [line["return"] for line in whole.episodes]
    assert returns[kept - 1] == max(returns[1:])
    assert kept < 4
    assert f"kept: the actor after episode {kept}" in whole.summary()
    with monkeypatch.context() as patched:
        stop_in(patched, 3 * asked["rounds"] + 1)
        with pytest.raises(Interrupted):
            learn_policy(**asked, out=tmp_path / "stopped")
    again = graphfed.resume(tmp_path / "stopped")
    assert isinstance(again, LearnedPolicy)
    shorter = learn_policy(**{**asked, "episodes": kept}, out=tmp_path / "shorter")
    expected, _ = read_policy(whole.file)
    for other in (again, shorter):
        tensors, _ = read_policy(other.file)
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)


@pytest.mark.parametrize("lines", [0, 2])
def test_what_counts_is_the_checkpoint_and_not_the_lines_next_to_it(
    lines: int, learned: LearnedPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the machine had gone down between two files, or somebody had changed one."""
    with monkeypatch.context() as patched:
        stop_in(patched, 7)
        with pytest.raises(Interrupted):
            learn_policy(**ASKED, out=tmp_path / "p")
    (tmp_path / "p" / "episodes.jsonl").write_text(json.dumps({"episode": 1, "return": 0.0}) * lines)
    again = graphfed.resume(tmp_path / "p")
    assert isinstance(again, LearnedPolicy)
    assert untimed(again.episodes) == untimed(learned.episodes)
    text = (tmp_path / "p" / "episodes.jsonl").read_text()
    assert untimed(json.loads(line) for line in text.splitlines()) == untimed(learned.episodes)


def test_what_is_stopped_in_its_first_episode_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_in(monkeypatch, 3)
    with pytest.raises(Interrupted):
        learn_policy(**ASKED, out=tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_a_folder_that_has_ended_is_read_and_another_question_is_refused(learned: LearnedPolicy) -> None:
    again = learn_policy(**ASKED, out=learned.folder)
    assert again.to_json() == learned.to_json()
    assert isinstance(graphfed.resume(learned.folder), LearnedPolicy)
    for other in ({"episodes": 4}, {"seed": 2}):
        with pytest.raises(InputError, match="holds something else"):
            learn_policy(**{**ASKED, **other}, out=learned.folder)
    with pytest.raises(InputError, match="holds a sampling policy and no run"):
        graphfed.predict(learned.folder)


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
    back: int, learned: LearnedPolicy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["round-00000003/local.safetensors", "round-00000002/local.json"]
    folder = damaged(learned, tmp_path / "p", *files[: 1 if back else 2])
    again = graphfed.resume(folder)
    printed = capsys.readouterr().err
    assert "round-00000003: local.safetensors is damaged" in printed
    assert f"going back to {f'round {back}' if back else 'the beginning'}" in printed
    assert json.loads((folder / "manifest.json").read_text())["resumed"][0]["round"] == (back or None)
    assert untimed(again.episodes) == untimed(learned.episodes)
    (tensors, _), (expected, _) = read_policy(again.file), read_policy(learned.file)
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_damaged_transitions_are_refused(learned: LearnedPolicy, tmp_path: Path) -> None:
    folder = damaged(learned, tmp_path / "p")
    path = folder / "checkpoint" / "episode-00001.safetensors"
    for content in (path.read_bytes()[:100], pickle.dumps({"episode": 1}), b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"episode-00001\.safetensors cannot be used"):
            graphfed.resume(folder)


# ---- the settings of the learner ----


def test_the_learner_is_as_the_settings_say() -> None:
    """Alg. 4: the discount, the rate of the target networks, the learning rate, and updates on batches."""
    import gymnasium

    class Still(gymnasium.Env):  # type: ignore[misc]
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    config = DDPGConfig(gamma=0.5, phi=0.125, lr=0.003, batch=3, updates=2, widths="6,4")
    agent = algorithm.make_agent(Still(), config, 9, 0, "cpu")
    assert (agent.gamma, agent.tau, agent.learning_rate, agent.batch_size) == (0.5, 0.125, 0.003, 3)
    assert (agent.replay_buffer.buffer_size, agent.gradient_steps) == (9, 2)
    widths = [layer.out_features for layer in agent.actor.mu if hasattr(layer, "out_features")]
    assert widths == [6, 4, 1]
    sizes = [algorithm.buffer_size(DDPGConfig(buffer=buffer), 5, 10) for buffer in (9, 30, 1000)]
    assert sizes == [10, 30, 50], "at least an episode, and at most all of them"


def test_memory_and_files_of_learning_are_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3 clients, 2 layers and 4 components: states of 16 numbers, actions of 9; 5 times 10 rounds."""
    federation = SimpleNamespace(
        fed=SimpleNamespace(num_clients=3),
        config=SimpleNamespace(network=SimpleNamespace(layers=2)),
        clients=SimpleNamespace(size=100),
    )
    sizes: Any = (federation, DDPGConfig(components=4, buffer=30, widths="8"), 5, 10)
    asked: list[Any] = []
    monkeypatch.setattr(algorithm, "check_memory", lambda *sizes: asked.append(sizes[:3]))
    algorithm.check_fits(*sizes)
    assert asked == [(11 * 4, 100, 4 * 30 * (2 * 16 + 9 + 3))]
    networks = (25 + 1) * 8 + (8 + 1) * 9
    transitions, projection = 5 * 10 * (16 + 9 + 2), 4 * 100
    assert algorithm.bytes_of_files(*sizes) == 4 * transitions + 3 * (4 * 4 * 2 * networks + 8 * projection)


# ---- the reward on the test part ----


@pytest.mark.slow
def test_a_policy_that_was_rewarded_on_the_test_part_says_so_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**ASKED["settings"], "reward.on": "test"}
    learned = learn_policy(**{**ASKED, "settings": settings}, progress=True, out=tmp_path / "p")
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


def test_other_policies_have_nothing_to_say_of_the_test_part() -> None:
    fixed = graphfed.run("fedgraph", clients=3, rounds=1, out=False)
    assert "policy_saw_test" not in fixed.details


# ---- the file ----


def test_a_policy_is_refused_where_it_was_learned_for_something_else(learned: LearnedPolicy) -> None:
    with pytest.raises(InputError, match="learned for clients 3, and this run has 4"):
        run_with(learned, clients=4)
    with pytest.raises(InputError, match="learned for weights of the model"):
        run_with(learned, settings={"hidden": 8})
    with pytest.raises(InputError, match="learned for layers 2, and this run has 3"):
        run_with(learned, settings={"layers": 3})


def test_a_tampered_file_is_refused_in_one_line(learned: LearnedPolicy, tmp_path: Path) -> None:
    tensors, described = read_policy(learned.file)
    path = tmp_path / "bad.safetensors"

    def of(policy: dict[str, torch.Tensor], about: PolicyFile = described) -> None:
        write_policy(path, policy, about)

    whole = learned.file.read_bytes()
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
    ("more", "message"),
    [
        ({"episodes": 1}, "expected a whole number of at least 2"),
        ({"episodes": "many"}, "expected a whole number"),
        ({"rounds": 1}, "expected a whole number of at least 2"),
        ({"settings": {"ddpg.learning_rate": 1}}, "there is no setting 'ddpg.learning_rate'"),
        ({"settings": {"ddpg.gama": 1}}, "did you mean 'ddpg.gamma'"),
        ({"settings": {"ddpg.gamma": 1}}, "ddpg.gamma=1 cannot be used: expected a number"),
        ({"settings": {"ddpg.widths": "512,"}}, "expected whole numbers with commas between"),
        ({"settings": {"ddpg.widths": "0"}}, "expected widths from 1"),
        ({"settings": {"ddpg.lr": True}}, "expected a number"),
        ({"settings": {"reward.target": 90.16}}, "reward.target=90.16 cannot be used: expected"),
        ({"settings": {"reward.on": "tst"}}, "did you mean 'test'"),
        ({"settings": {"reward.omega": 1}}, "more than 1"),
        ({"settings": {"lrr": 1}}, "did you mean 'lr'"),
        ({"settings": {"policy": "full"}}, "policy has no use where a policy is learned"),
        ({"settings": {"patience": 3}}, "patience has no use"),
        ({"settings": {"aggregation": "secure"}}, "aggregation=secure cannot be used with policy=ddpg"),
        ({"settings": {"backbone": "gat"}}, "fedgraph always has backbone=gcn"),
        ({"data": "roads"}, "is for forecasting"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    more: dict[str, Any], message: str, own_folder: Path
) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        learn_policy(**more)
    assert not list(own_folder.iterdir())


@pytest.mark.parametrize("package", ["gymnasium", "stable_baselines3"])
def test_without_the_extra_a_line_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=r"pip install '\.\[rl\]'"):
        learn_policy()


def test_what_does_not_fit_into_memory_is_refused_before_the_first_round(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(algorithm, "memory_bytes", lambda: (1_000_000, 2_000_000))
    with pytest.raises(InputError, match="use fewer rounds or clients"):
        learn_policy(**ASKED)
    assert not list(own_folder.iterdir())
