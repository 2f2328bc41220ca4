"""The files of docker/ go together with the program: what they copy is there, what they start is a command,
and no secret is in them. Nothing is built here."""

import fnmatch
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_docs import parse

from graphfed import __version__
from graphfed.runtime.nvflare.project import PORT

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SITES = ("northbank", "harbour_trust", "union_savings")
IMAGES = ("server", "site")


def instructions(image: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile: each one's word, and what follows it."""
    text = re.sub(r"^#.*\n", "", (DOCKER / f"{image}.Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    found = [line.partition(" ") for line in lines]
    return [(word, rest.strip()) for word, _, rest in found]


def only(image: str, word: str) -> str:
    (found,) = [rest for instruction, rest in instructions(image) if instruction == word]
    return found


def sources(image: str) -> list[str]:
    """What an image copies of this repository."""
    return [
        name for word, rest in instructions(image) if word in ("COPY", "ADD") for name in rest.split()[:-1]
    ]


def ignored(name: str) -> bool:
    """Whether .dockerignore keeps a file from the builder: the last line that fits decides."""
    last = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            # A pattern is about a path and all that is in it.
            paths = [name, *map(str, Path(name).parents)]
            if any(fnmatch.fnmatch(path, pattern.replace("**/", "*")) for path in paths):
                last = not line.startswith("!")
    return last


@pytest.mark.parametrize("image", IMAGES)
def test_all_that_an_image_copies_is_there_and_reaches_the_builder(image: str) -> None:
    assert set(sources(image)) >= {"constraints.txt", "pyproject.toml", "graphfed", "docker/healthy.py"}
    for name in sources(image):
        assert (ROOT / name).exists(), name
        assert not ignored(name), name
    assert not ignored("graphfed/runtime/nvflare/startup_kits.py")


@pytest.mark.parametrize(
    "name",
    ["startup_kits/server/startup/server.key", "startup_kits/authority/cert.json",
     "banks/northbank/customers.csv",
     ".git/config", "runs/a/model.safetensors", "graphfed/__pycache__/x.pyc", "docker/compose.yaml"],
)  # fmt: skip
def test_no_startup_kit_no_data_and_no_run_reaches_the_builder(name: str) -> None:
    assert ignored(name)


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_says_which_version_it_is_built_from_and_installs_the_pinned_ones(image: str) -> None:
    assert re.fullmatch(r"python:3\.11-slim-\w+", only(image, "FROM"))
    (installed,) = [rest for word, rest in instructions(image) if word == "RUN" and "pip install" in rest]
    for command in installed.split("&&"):
        assert "-c constraints.txt" in command
    assert "'.[deploy]'" in installed
    assert re.search(r"^nvflare==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


@pytest.mark.parametrize("image", IMAGES)
def test_what_an_image_starts_is_a_command_of_graphfed_as_nobody_s_root(image: str) -> None:
    assert json.loads(only(image, "ENTRYPOINT")) == ["graphfed"]
    words = json.loads(only(image, "CMD"))
    parse(words)
    assert words[:3] == ["site", "start", "/kit"]
    assert ("--data" in words) == (image == "site")
    order = [word for word, _ in instructions(image)]
    assert int(only(image, "USER")) > 0
    assert order.index("USER") > max(i for i, word in enumerate(order) if word == "RUN")


def test_only_the_server_has_a_port_and_it_is_that_of_a_project_without_one() -> None:
    assert int(only("server", "EXPOSE")) == PORT
    assert "EXPOSE" not in [word for word, _ in instructions("site")]
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"server"}
    assert SERVICES["server"]["ports"] == [f"{PORT}:{PORT}"]


@pytest.mark.parametrize("image", IMAGES)
def test_the_two_images_differ_in_what_they_start_and_open_only(image: str) -> None:
    common = [set(instructions(name)) for name in IMAGES]
    assert {word for word, _ in common[0] ^ common[1]} == {"CMD", "EXPOSE"}


@pytest.mark.parametrize("image", IMAGES)
def test_no_secret_is_in_an_image(image: str) -> None:
    named = [rest for word, rest in instructions(image) if word in ("ENV", "ARG")]
    assert not [line for line in named if re.search(r"KEY|SECRET|TOKEN|PASSWORD", line)]
    assert not any(re.search(r"kit|\.key|\.pem|\.crt|data", name) for name in sources(image))


def test_every_service_runs_a_command_of_graphfed_in_an_image_that_is_built_here() -> None:
    assert set(SERVICES) == {"server", *SITES, "coordinator"}
    for name, service in SERVICES.items():
        parse(service["command"])
        image, _, tag = service["image"].partition(":")
        assert tag == __version__, name
        assert image in {f"graphfed-{built}" for built in IMAGES}
        if "build" in service:
            context = (DOCKER / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (
                context / service["build"]["dockerfile"]
                == DOCKER / f"{image.removeprefix('graphfed-')}.Dockerfile"
            )


def test_every_service_runs_as_whoever_owns_the_startup_kits_and_cannot_change_its_own_rules() -> None:
    for name, service in SERVICES.items():
        assert service["user"] == "${GRAPHFED_UID:-1000}:${GRAPHFED_GID:-1000}"
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
        mounts = dict(volume.split(":", 1) for volume in service["volumes"])
        own = f"../startup_kits/{name}"
        expected = {own: "/kit"} | {
            f"{own}/{part}": f"/kit/{part}:ro" for part in ("kit.json", "startup", "local")
        }
        if name in SITES:
            expected[f"../banks/{name}"] = "/data:ro"
        if name == "coordinator":
            expected["../out"] = "/out"
        assert mounts == expected


def test_the_clients_key_is_handed_through_to_sites_alone_and_written_down_nowhere() -> None:
    given = {name: service.get("environment") for name, service in SERVICES.items()}
    assert given == {name: ["GRAPHFED_CLIENTS_KEY"] if name in SITES else None for name in SERVICES}


def test_the_commands_in_the_comments_are_ones_that_graphfed_takes_for_these_very_services() -> None:
    lines = re.findall(r"^#   (.*)$", (DOCKER / "compose.yaml").read_text(), re.MULTILINE)
    ours = [shlex.split(line)[1:] for line in lines if line.startswith("graphfed ")]
    ours += [shlex.split(line.partition(" coordinator ")[2]) for line in lines if " coordinator " in line]
    assert [words[:2] for words in ours] == [["site", "init"], ["site", "provision"], ["run", "fedavg"]]
    for words in ours:
        parse(words)
    init = dict(zip(ours[0][2::2], ours[0][3::2], strict=True))
    assert init["--sites"].split(",") == list(SITES)
    assert init["--server"] == f"server:{PORT}"
    (example,) = [shlex.split(line)[1] for line in lines if line.startswith("python ")]
    assert (ROOT / example).exists()
    assert [shlex.split(line)[3] for line in lines if line.startswith("docker compose")] == [
        "docker/compose.yaml"
    ] * 2
