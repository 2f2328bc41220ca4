"""Programs of deployed places, for `test_deployment_faults` and `test_site_connections`."""

from graphfed.federation.link import SERVER_INDEX
from graphfed.files import write_json
from graphfed.runtime.nvflare.link import MAX_MESSAGE, PART, Part


def hostile(fed, arguments, log, place):
    """All exchange a message; then site 0 sends the server and site 1 what no honest site sends; then all
    exchange again, as if nothing had happened. Every place writes down what was refused, and what arrived."""
    link, run = fed.link, arguments["run"]
    me = SERVER_INDEX if fed.server_is_here else fed.here[0]
    exchange(link, me, len(fed.workers), "before")
    refused = {}
    if me == 0:
        faulty = {
            "too large": Part(f"{run}/0/1/x/0>-1", 0, MAX_MESSAGE // PART + 1, MAX_MESSAGE + 1, b"x"),
            "a part too long": Part(f"{run}/0/2/x/0>-1", 0, 1, 5, bytes(PART + 100)),
            "no such part": Part(f"{run}/0/3/x/0>-1", 7, 1, 5, b"12345"),
            "cut short": Part(f"{run}/0/4/x/0>-1", 0, 1, 5, b"123"),
            "no key": Part("", 0, 1, 1, b"x"),
            "no number": Part(f"{run}/0/5/x/0>-1", "0", 1, 1, b"x"),
        }
        refused = {what: link._posts[SERVER_INDEX](part) for what, part in faulty.items()}
        refused["not sealed"] = link._posts[1](Part(f"{run}/0/6/y/0>1", 0, 1, 40, bytes(40)))
        sealed = link._channels.sealed("site-1", Part(f"{run}/0/7/z/0>1", 0, 1, 6, b"secret"))
        bad = bytes(sealed.content[:-1]) + bytes([sealed.content[-1] ^ 1])
        refused["altered"] = link._posts[1](Part(sealed.key, 0, 1, 6, bad))
        refused["whole"] = link._posts[1](sealed)
    arrived = exchange(link, me, len(fed.workers), "after")
    write_json(place.runs / run / "received.json", {"refused": refused, "arrived": arrived})


def nothing(fed, arguments, log, place):
    """Take part, and do nothing."""


def exchange(link, me, sites, when):
    """What every other place says to this one."""
    others = [end for end in (SERVER_INDEX, *range(sites)) if end != me]
    for other in others:
        link.send(other, f"0/9/{when}/{me}>{other}", f"from {me}".encode())
    return {other: link.recv(other, f"0/9/{when}/{other}>{me}").decode() for other in others}
