"""The link of one participant of a deployment.

A message is sent in parts. Each part is a request that the receiver answers when it keeps the part; complete
messages wait in a mailbox. `send` only queues: threads make the requests, and repeat one that fails until the
peer is given up. Repeating is safe, because a part that arrives twice, late or out of order does no harm
(`runtime.mailbox`).

Messages between two sites pass through the server. Every part is encrypted for the receiving site
(`crypto.channel`): before their first message the two sites send each other one offer, and from then on the
server relays what it cannot read.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from graphfed.crypto.channel import OVERHEAD, Channel, ChannelError, Handshake, Identity
from graphfed.errors import shown
from graphfed.federation.link import SERVER_INDEX
from graphfed.runtime.failures import kind_and_line
from graphfed.runtime.mailbox import MAX_MESSAGE, Mailbox, ProcessError, check_size, room
from graphfed.runtime.nvflare.tls import FRAME

#: The most bytes of the contents of a part: half of the longest frame.
PART = FRAME // 2
#: The most parts that are sent to one peer at the same time.
AT_ONCE = 4
#: Seconds before a request is repeated: the first pause and the longest.
PAUSES = (0.05, 2.0)
#: The most characters of a key.
MAX_KEY = 1 << 12
#: The key of the offers between two sites.
OFFER = "channel/offer"
#: The reason for refusing a part that may be sent again later.
FULL = "there is no room for it until earlier messages are read"


@dataclass(frozen=True)
class Part:
    """The part of a message that one request carries: `number` of `count`, of a message of `size` bytes."""

    key: str
    number: int
    count: int
    size: int
    content: bytes | memoryview

    @property
    def label(self) -> str:
        """The label under which the contents are encrypted; every part of a session has another one."""
        return f"{self.key}#{self.number}/{self.count}/{self.size}"


#: Sends a part to a peer. Returns why the peer refuses it, "" if the peer keeps it. Raises if the peer
#: cannot be reached.
Post = Callable[[Part], str]


def parts_of(key: str, message: bytes) -> list[Part]:
    """Divide a message into parts of equal size; the last one may be shorter."""
    # An empty message has one empty part.
    count = max(1, -(-len(message) // PART))
    view = memoryview(message)
    return [Part(key, i, count, len(message), view[i * PART : (i + 1) * PART]) for i in range(count)]


@dataclass(frozen=True)
class _Unfinished:
    """A message of which parts are missing: their number and its bytes, and the parts that have arrived."""

    shape: tuple[int, int]
    parts: dict[int, bytes | memoryview] = field(default_factory=dict)


class Inbox:
    """Puts arriving parts together, and complete messages into the mailbox.

    A part that is refused changes nothing, so its sender may try again.

    The bytes that one sender can make this participant keep are limited. Beyond the limit a part is refused
    (`FULL`), unless a thread waits for its message. So no sender can fill the memory. Programs that take the
    messages of a sender in the order in which it sends them, as those of a federation do, cannot block each
    other: the message that is waited for is the oldest one that has not arrived. All parts before it have
    arrived, so the sender's threads are free to send it, and it is accepted.

    Args:
        max_message: Bytes of the largest message.
        max_held: Bytes of incomplete and unread messages of one sender; None for two of the largest messages.
        opened: Decrypts the contents of a part of a sender; None if parts are not encrypted.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        max_message: int = MAX_MESSAGE,
        max_held: int | None = None,
        opened: Callable[[str, Part], bytes | memoryview] | None = None,
    ) -> None:
        self.mailbox = mailbox
        self._max_message, self._opened = max_message, opened
        self._max_held = 2 * max_message if max_held is None else max_held
        self._run = mailbox.run
        self._unfinished: dict[tuple[str, str], _Unfinished] = {}
        #: Bytes of a sender's incomplete messages.
        self._room: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.refused: Counter[str] = Counter()

    def accept(self, sender: str, part: Part) -> str:
        """Keep a part and return "", or return why it is refused."""
        try:
            self._check(part)
            content = part.content if self._opened is None else self._opened(sender, part)
            if part.key != OFFER:  # an offer was already read by `opened`
                self._keep(sender, part, content)
        except (ProcessError, ChannelError) as error:
            with self._lock:
                self.refused[sender] += 1
            return str(error)[:1000]
        return ""

    def held(self, sender: str) -> int:
        """Count the bytes of a sender's messages that were not taken yet, incomplete ones included."""
        with self._lock:
            return self._room[sender] + self.mailbox.held(sender)

    def _check(self, part: Part) -> None:
        # Every field comes from another participant, and FLARE passes on any type.
        numbers = (part.number, part.count, part.size)
        if not isinstance(part.key, str) or not 0 < len(part.key) <= MAX_KEY or not part.key.isprintable():
            raise ProcessError("the message has no key that can be used")
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
            raise ProcessError(f"the numbers of {part.key} are not whole numbers")
        if not 0 <= part.size <= self._max_message:
            raise ProcessError(
                f"{part.key} has {shown(part.size)} bytes; at most {self._max_message} are read"
            )
        if part.count != max(1, -(-part.size // PART)) or not 0 <= part.number < part.count:
            raise ProcessError(
                f"{part.key} of {part.size} bytes has no part {shown(part.number)} of {shown(part.count)}"
            )
        if (
            not isinstance(part.content, bytes | bytearray | memoryview)
            or len(part.content) > PART + OVERHEAD
        ):
            raise ProcessError(f"{part.key} has a part of more than {PART} bytes")

    def _keep(self, sender: str, part: Part, content: bytes | memoryview) -> None:
        expected = min(PART, part.size - part.number * PART)
        if len(content) != expected:
            raise ProcessError(
                f"part {part.number} of {part.key} has {len(content)} bytes and not {expected}"
            )
        box, shape = (sender, part.key), (part.count, part.size)
        with self._lock:
            self._drop_earlier_runs()
            if self.mailbox.knows(*box):
                return
            message = self._unfinished.get(box, _Unfinished(shape))
            if message.shape != shape:
                raise ProcessError(f"{part.key} arrived with two different sizes")
            if part.number in message.parts:
                return
            more = room(part.key, content)
            # The message that is waited for is let in, so a full inbox cannot block the program.
            held = self._room[sender] + self.mailbox.held(sender)
            if held + more > self._max_held and not self.mailbox.asked(*box):
                raise ProcessError(FULL)
            self._unfinished[box] = message
            message.parts[part.number] = content
            self._room[sender] += more
            if len(message.parts) == part.count:
                # Before it is put, so that its bytes are not counted twice.
                self._drop(box)
                whole = b"".join(message.parts[i] for i in range(part.count))
                self.mailbox.put(sender, part.key, whole)

    def _drop(self, box: tuple[str, str]) -> None:
        parts = self._unfinished.pop(box).parts.values()
        self._room[box[0]] -= sum(room(box[1], content) for content in parts)

    def _drop_earlier_runs(self) -> None:
        """Drop the messages that were incomplete when their run ended."""
        run = self.mailbox.run
        if run != self._run:
            for box in [box for box in self._unfinished if self.mailbox.knows(*box)]:
                self._drop(box)
            self._run = run


class Channels:
    """The encrypted channels between one site and the others in a session, made when they are needed.

    A site that has something to send repeats its offer until the offer of its peer arrives. The peer answers
    with its own offer until that has arrived once. A site with nothing to send repeats nothing.

    Args:
        session: The session, which binds the offers.
        posts: Functions that send parts to the other sites, by name.
        patience: Seconds to wait for the offer of a peer.
    """

    def __init__(self, identity: Identity, session: str, posts: Mapping[str, Post], patience: float) -> None:
        self._posts, self._patience = posts, patience
        self._begun = {name: Handshake.begin(identity, name, session) for name in posts}
        self._made: dict[str, Channel] = {}
        #: The offers from which the channels were made.
        self._offers: dict[str, bytes] = {}
        #: Peers to which this site's offer is being sent, peers that have it, and why others do not have it.
        self._offering: set[str] = set()
        self._reached: set[str] = set()
        self._missed: dict[str, str] = {}
        self._changed = threading.Condition()

    def sealed(self, peer: str, part: Part, of_no_use: Callable[[], bool] = lambda: False) -> Part:
        """Encrypt a part for a peer; ChannelError if the peer's offer does not come, or the part is
        `of_no_use`.
        """
        return replace(part, content=self._channel(peer, of_no_use).seal(part.label, part.content))

    def opened(self, sender: str, part: Part) -> bytes:
        """Decrypt a part from another site; ChannelError if the site did not encrypt this part."""
        with self._changed:
            channel = self._made.get(sender)
        if channel is None:
            raise ChannelError(f"{sender} sent {part.key} before its offer")
        return channel.open(part.label, part.content)

    def take_offer(self, sender: str, offer: bytes | memoryview) -> None:
        """Accept the offer of another site, and answer with this site's offer unless the other site has it.

        A copy of an offer changes nothing. ChannelError if the site did not make this offer.
        """
        with self._changed:
            if sender not in self._begun:
                raise ChannelError(f"{sender} is not a site of this run")
            offer = bytes(offer)
            if sender not in self._made:
                self._made[sender] = self._begun[sender].finish(offer)
                self._offers[sender] = offer
                self._changed.notify_all()
            # Another offer would replace the keys of a channel that is in use.
            elif offer != self._offers[sender]:
                raise ChannelError(f"{sender} made a different offer before")
            if sender in self._reached or sender in self._offering:
                return
        threading.Thread(target=self._offer, args=(sender,), daemon=True, name=f"offer-to-{sender}").start()

    def _offer(self, peer: str) -> None:
        """Send this site's offer to the peer, unless it is already being sent."""
        with self._changed:
            if peer in self._offering:
                return
            self._offering.add(peer)
        offer, missed = self._begun[peer].offer, "was not sent"
        try:
            refused = self._posts[peer](Part(OFFER, 0, 1, len(offer), offer))
            missed = f"was refused: {_plain(refused)}" if refused else ""
        except Exception as error:  # FLARE raises many types
            missed = f"did not arrive: {kind_and_line(error)}"
        finally:
            with self._changed:
                self._offering.discard(peer)
                self._missed[peer] = missed
                if not missed:
                    self._reached.add(peer)

    def _channel(self, peer: str, of_no_use: Callable[[], bool]) -> Channel:
        end, pause = time.monotonic() + self._patience, PAUSES[0]
        while not of_no_use():
            with self._changed:
                if peer in self._made:
                    return self._made[peer]
            self._offer(peer)
            with self._changed:
                self._changed.wait_for(lambda: peer in self._made, pause)
                missed = self._missed.get(peer, "")
                if peer not in self._made and time.monotonic() > end:
                    reason = f"; the offer of this site {missed}" if missed else ""
                    raise ChannelError(f"{peer} sent no offer for {self._patience:g} s{reason}")
            pause = min(2 * pause, PAUSES[1])
        raise ChannelError(f"nothing more is sent to {peer}")


class FlareLink:
    """A `Link` of one participant in the present run of its mailbox.

    A peer is lost if requests to it fail for `give_up` seconds. A peer that has no room for a part (`FULL`)
    is alive, and is lost only after the patience of the mailbox.

    Args:
        names: The names of all participants in FLARE, by index.
        posts: Functions that send parts to the other participants, by index.
        channels: At a site, the channels to the other sites.

    Attributes:
        wire: Bytes that this participant has sent, by transfer. They include headers of messages and the
            overhead of encryption, but neither repeated requests nor FLARE's frames.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        posts: Mapping[int, Post],
        mailbox: Mailbox,
        *,
        channels: Channels | None,
        give_up: float,
    ) -> None:
        self.wire: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._names, self._posts, self._mailbox = names, posts, mailbox
        self._channels, self._give_up = channels, give_up
        self._run = mailbox.run
        self._over = threading.Event()
        self._workers = {
            index: ThreadPoolExecutor(AT_ONCE, thread_name_prefix=f"to-{names[index]}") for index in posts
        }

    def send(self, to: int, key: str, message: bytes) -> None:
        """Queue a message; ProcessError if the receiver is lost, or the message is too large."""
        check_size(message, key)
        self._mailbox.check_open(self._names[to], key, self._names[to])
        for part in parts_of(f"{self._run}/{key}", message):
            self._workers[to].submit(self._deliver, to, part)

    def recv(self, sender: int, key: str) -> bytes:
        return self._mailbox.take(self._names[sender], key, self._names[sender])

    def close(self) -> None:
        """Send nothing more. The last request of each thread may still be in progress; its outcome has no
        effect.
        """
        self._over.set()
        for workers in self._workers.values():
            workers.shutdown(wait=False, cancel_futures=True)

    def flush(self) -> None:
        """Wait until all messages are sent, or their receivers are given up."""
        for workers in self._workers.values():
            workers.shutdown(wait=True)

    def _deliver(self, to: int, part: Part) -> None:
        """Send a part, and repeat this until the receiver keeps it or is given up."""
        name, begun, pause = self._names[to], time.monotonic(), PAUSES[0]
        end = begun + self._give_up

        def of_no_use() -> bool:
            return self._over.is_set() or self._mailbox.run != self._run or self._mailbox.closed(name)

        while not of_no_use():
            refused = ""
            try:
                sealed = part
                if self._channels is not None and to != SERVER_INDEX:
                    sealed = self._channels.sealed(name, part, of_no_use)
                refused = self._posts[to](sealed)
                if not refused:
                    with self._counting:
                        self.wire[_transfer(part.key)] += len(sealed.content)
                    return
                why = f"refused it: {_plain(refused)}"
            except BaseException as error:  # of many types; no other code sees what a thread raises
                why = f"could not be reached: {kind_and_line(error)}"
            now = time.monotonic()
            if refused == FULL:
                end = min(now + self._give_up, begun + self._mailbox.patience)
            if now + pause > end:
                if not of_no_use():
                    why = f"{why} (tried for {now - begun:.0f} s to send {part.key})"
                    self._mailbox.close(name, why, run=self._run)
                return
            self._over.wait(pause)
            pause = min(2 * pause, PAUSES[1])


def _plain(reason: str) -> str:
    """Return the reason that another participant gives, without characters that a terminal obeys."""
    return reason if reason.isprintable() else ascii(reason)


def _transfer(key: str) -> str:
    """Return the name of the transfer in the key of a message: run/round/number/NAME/source>to."""
    found = re.fullmatch(r"[^/]*/\d+/\d+/(.*)/[^/]*", key)
    return key if found is None else found[1]
