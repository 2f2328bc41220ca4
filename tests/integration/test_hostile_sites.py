"""One of three sites, or the server, sends what no honest participant sends, on real processes: whoever reads
it names the sender and the transfer, and no other participant."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hostile_sites import HOSTILE, SERVER, run_name
from social_sites import write_parts

from graphfed.deployment.deploy import check_outcome
from graphfed.deployment.deploy import request as asked
from graphfed.deployment.rehearsal import loopback_project
from graphfed.errors import FAILED, GraphfedError
from graphfed.methods.registry import get_method

pytest.importorskip("nvflare", reason="deployment needs the extra deploy")

from graphfed.runtime.nvflare.loopback import Loopback
from graphfed.runtime.nvflare.project import Timing

pytestmark = pytest.mark.slow

NOT_FINITE, FORM = "numbers that are not finite", "is expected"
#: (method, transfer, what is sent): what is said of it. The transfers are what a site says when it joins, a
#: gather, an average, a sum, an upload, the agreement on a route, and one from site to site.
REFUSED = {
    ("fedavg", "join", "random_bytes"): "a message that cannot be read",
    ("fedavg", "training_counts", "times_1e9"): "training nodes, but the client declared",
    ("fedavg", "training_counts", "negative"): "where each client's number of training nodes is expected",
    ("fedavg", "training_counts", "wrong_dtype"): FORM,
    ("fedavg", "training_counts", "wrong_rows"): "where 1 rows are expected",
    ("fedavg", "training_counts", "random_bytes"): "a message that cannot be read",
    ("fedavg", "gradient", "nan"): NOT_FINITE,
    ("fedavg", "gradient", "wrong_shape"): FORM,
    ("fedavg", "update", "nan"): NOT_FINITE,
    ("fedavg", "update", "inf"): NOT_FINITE,
    ("fedavg", "update", "1e30"): "numbers too large to compute with",
    ("fedavg", "update", "wrong_shape"): FORM,
    ("fedavg", "update", "wrong_dtype"): FORM,
    ("fedavg", "update", "random_bytes"): "a message that cannot be read",
    ("fedavg", "update", "text"): "something that is not a payload of tensors",
    ("fedavg", "val_scores", "times_1e9"): "nodes of val, and declared",
    ("fedavg", "val_scores", "nan"): "a loss that is not finite, with predictions that all are",
    ("fedavg", "val_scores", "wrong_shape"): FORM,
    ("fedgat", "fedgat/features", "nan"): NOT_FINITE,
    ("fedgat", "fedgat/features", "1e30"): "numbers too large to compute with",
    ("fedgat", "fedgat/features", "wrong_shape"): FORM,
    ("fedgat", "fedgat/features", "wrong_rows"): "rows are expected",
    ("fedgat", "fedgat/edges", "wrong_rows"): "ids that do not fit its clients",
    ("fedgraph", "fedgraph/embeddings", "nan"): NOT_FINITE,
    ("fedgraph", "fedgraph/embeddings", "wrong_shape"): FORM,
    ("sapgnn", "sapgnn/local_embedding", "nan"): NOT_FINITE,
}


#: Those that are not left to slow tests: one for each place in which the checks are.
QUICK = {
    ("fedavg", "join", "random_bytes"),
    ("fedavg", "training_counts", "times_1e9"),
    ("fedavg", "gradient", "nan"),
    ("fedavg", "update", "nan"),
    ("fedavg", "update", "1e30"),
    ("fedavg", "update", "wrong_shape"),
    ("fedavg", "val_scores", "times_1e9"),
    ("fedgat", "fedgat/features", "nan"),
    ("fedgraph", "fedgraph/embeddings", "nan"),
    ("sapgnn", "sapgnn/local_embedding", "nan"),
}


#: (method, transfer, what the server sends): what the sites say of it.
SERVER_REFUSED = {
    ("fedavg", "model", "wrong_shape"): "where float32 [",
    ("fedavg", "model", "wrong_dtype"): "float64 [",
    ("fedavg", "model", "missing"): "nothing as 'layers.0.weight' where float32 [",
    ("fedavg", "model", "additional"): "float32 [2] as 'another' where nothing is expected",
    ("fedavg", "model", "text"): "something that is not a payload of tensors",
    ("fedavg", "model", "random_bytes"): "a message that cannot be read",
    ("fedavg", "control", "roster_number"): "'roster' = 5 where str | None is expected",
    ("fedavg", "control", "roster_nobody"): "'roster' = '00' where bits of the 3 clients that take part are",
    ("fedavg", "control", "stop_text"): "'stop' = 'no' where bool is expected",
    ("fedavg", "control", "text"): "something else than a decision: it is not JSON",
    ("fedavg", "agreed", "start_text"): "'start' = 'yesterday' where a round that the site has saved",
    ("fedavg", "agreed", "start_unsaved"): "'start' = 3 where a round that the site has saved",
    ("fedavg", "agreed", "other_classes"): "'num_classes' = 70 where",
    ("fedgcn", "fedgcn/aggregates", "wrong_shape"): FORM,
    ("fedgat", "fedgat/sizes", "wrong_dtype"): FORM,
    ("sapgnn", "sapgnn/global_embedding", "wrong_shape"): FORM,
}
SERVER_QUICK = {
    ("fedavg", "model", "wrong_shape"),
    ("fedavg", "model", "missing"),
    ("fedavg", "control", "roster_number"),
    ("fedavg", "agreed", "start_text"),
    ("fedgcn", "fedgcn/aggregates", "wrong_shape"),
}


#: What the server sends and no site can tell from honest numbers.
PASSING_OF_SERVER = [("fedavg", "model", kind) for kind in ("times_minus_10", "1e10", "nan")]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What became of each run, by its name: all runs are one job of one federation."""
    everything = "3" in request.config.getoption("--tier")
    refused = REFUSED if everything else QUICK
    refused_of_server = SERVER_REFUSED if everything else SERVER_QUICK
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("hostile")
    project = loopback_project([1, 1, 1], Timing(beat=1.0, give_up=30.0, deadline=60.0, patience=240.0))
    data = write_parts(folder, project, 120)
    install: dict[str, Any] = {"run": "install", "program": "hostile_sites:install"}
    runs = [
        install | {"arguments": {"run": "install"}, "workers": [list(worker) for worker in project.workers]}
    ]
    passing = [("fedavg", "update", kind) for kind in ("large", "times_minus_10")]
    cases = [("", *case) for case in (*refused, *passing)]
    cases += [(SERVER, *case) for case in (*refused_of_server, *PASSING_OF_SERVER)]
    for sender, method, transfer, kind in cases:
        chosen = get_method(method)
        at = {"optimizer_at": "clients"} if transfer == "update" else {}
        config = chosen.configure({"rounds": 2, "hidden": 4, **at})
        name = run_name(kind, transfer, sender)
        runs.append(asked(project, chosen, config, run=name, checkpoint_every=60.0))
    with (
        Loopback(
            project, folder / "startup_kits", data, allow=["hostile_sites"], check_data=False, rehearsal=True
        ) as federation,
        federation.coordinator() as coordinator,
    ):
        ended = coordinator.run(runs, results=folder / "kept")
    assert ended[0]["kind"] == "done"
    return {outcome["run"]: outcome for outcome in ended}


@pytest.mark.parametrize(
    ("method", "transfer", "kind"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case in QUICK else pytest.mark.on_demand)
        for case in REFUSED
    ],
)
def test_the_refusal_names_the_site_and_the_transfer_and_no_honest_site(
    method: str, transfer: str, kind: str, outcomes: Mapping[str, Any]
) -> None:
    with pytest.raises(GraphfedError) as refusal:
        check_outcome([outcomes[run_name(kind, transfer)]])
    output = str(refusal.value)
    assert f"site-{HOSTILE} sent" in output
    assert repr(transfer) in output
    assert REFUSED[method, transfer, kind] in output
    assert "site-0 sent" not in output
    assert "site-2 sent" not in output
    assert refusal.value.exit_code == FAILED


def test_who_sent_by_far_the_largest_numbers_is_named_once_training_has_diverged(
    outcomes: Mapping[str, Any],
) -> None:
    content = outcomes[run_name("large", "update")]["text"]
    assert "fedavg diverged in round 1" in content
    assert "use a smaller learning rate (lr is " in content
    assert f"look here first: in transfer 'update' of round 1 the numbers of site-{HOSTILE} were " in content


def test_an_update_that_is_plausible_and_wrong_passes_as_the_security_page_says(
    outcomes: Mapping[str, Any],
) -> None:
    assert outcomes[run_name("times_minus_10", "update")]["kind"] == "done"


@pytest.mark.parametrize(
    ("method", "transfer", "kind"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case in SERVER_QUICK else pytest.mark.on_demand)
        for case in SERVER_REFUSED
    ],
)
def test_sites_refuse_in_the_name_of_the_server_what_it_must_not_send(
    method: str, transfer: str, kind: str, outcomes: Mapping[str, Any]
) -> None:
    with pytest.raises(GraphfedError) as refusal:
        check_outcome([outcomes[run_name(kind, transfer, SERVER)]])
    output = str(refusal.value)
    assert "server sent" in output
    assert repr(transfer) in output
    assert SERVER_REFUSED[method, transfer, kind] in output
    assert refusal.value.exit_code == FAILED


def test_numbers_of_the_server_that_are_plausible_and_wrong_pass_as_the_security_page_says(
    outcomes: Mapping[str, Any],
) -> None:
    ended = {kind: outcomes[run_name(kind, "model", SERVER)] for _, _, kind in PASSING_OF_SERVER}
    assert ended["times_minus_10"]["kind"] == ended["1e10"]["kind"] == "done", ended
    # Training that diverges ends in the same way, so no participant is named.
    assert ended["nan"]["kind"] == "failed"
    assert "fedavg diverged in round 1" in ended["nan"]["text"]
    assert "in transfer 'gradient' of round 1 no participant's numbers were small" in ended["nan"]["text"]
