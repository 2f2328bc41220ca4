"""Safe quotation of untrusted files in messages."""

LENGTH = 200


def brief(error: Exception | str) -> str:
    """Shorten a text to one printable line of at most 200 characters.

    The text may quote the content of a hostile file, so control characters are replaced by blanks.

    Args:
        error: An error, or a text.

    Returns:
        The shortened text; the name of the error's type if it has no text.
    """
    text = str(error) or type(error).__name__
    return "".join(letter if letter.isprintable() else " " for letter in text[:LENGTH])
