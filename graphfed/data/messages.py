"""Safe quotation of untrusted files in messages."""

from collections.abc import Sequence

from graphfed.errors import shown

LENGTH = 200


def listed(names: Sequence[str], most: int = 5) -> str:
    """List at most `most` names."""
    return ", ".join(map(shown, names[:most])) + (", ..." if len(names) > most else "")


def brief(error: Exception | str) -> str:
    """Shorten an error or a text to one printable line of at most 200 characters.

    The text may quote the content of a hostile file, so control characters are replaced by blanks.
    """
    text = str(error) or type(error).__name__
    return "".join(letter if letter.isprintable() else " " for letter in text[:LENGTH])
